/* What the engine's libraries name and no transfer ever calls: kernels, modules, virtual memory.
 *
 * The names must exist, or the libraries do not load. Calling one is refused, loudly and
 * harmlessly; only the registration of device code succeeds, because it runs when the libraries
 * are loaded.
 */
#include "hip_abi.h"

EXPORT void **__hipRegisterFatBinary(const void *binary);
EXPORT void __hipUnregisterFatBinary(void **handle);
EXPORT void __hipRegisterFunction(void);

EXPORT void **__hipRegisterFatBinary(const void *binary) {
  static void *handle;
  (void)binary;
  return &handle;
}

EXPORT void __hipUnregisterFatBinary(void **handle) { (void)handle; }

EXPORT void __hipRegisterFunction(void) {}

#define UNSUPPORTED(name)       \
  EXPORT hipError_t name(void); \
  EXPORT hipError_t name(void) { return hipErrorNotSupported; }

UNSUPPORTED(__hipPushCallConfiguration)
UNSUPPORTED(__hipPopCallConfiguration)
UNSUPPORTED(hipLaunchKernel)
UNSUPPORTED(hipModuleLoad)
UNSUPPORTED(hipModuleUnload)
UNSUPPORTED(hipModuleGetFunction)
UNSUPPORTED(hipModuleGetGlobal)
UNSUPPORTED(hipModuleLaunchKernel)
UNSUPPORTED(hipMemAddressFree)
UNSUPPORTED(hipMemAddressReserve)
UNSUPPORTED(hipMemCreate)
UNSUPPORTED(hipMemExportToShareableHandle)
UNSUPPORTED(hipMemGetAllocationGranularity)
UNSUPPORTED(hipMemImportFromShareableHandle)
UNSUPPORTED(hipMemMap)
UNSUPPORTED(hipMemRelease)
UNSUPPORTED(hipMemRetainAllocationHandle)
UNSUPPORTED(hipMemSetAccess)
UNSUPPORTED(hipMemUnmap)
UNSUPPORTED(hipMemGetHandleForAddressRange)
