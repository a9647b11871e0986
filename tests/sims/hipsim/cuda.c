/* libamdhip64.so.7 over the CUDA runtime: the engine's XGMI backend on NVIDIA GPUs.
 *
 * Most calls go straight through. HIPSIM_CUDA_FORCE_P2P=1 claims peer access even where the driver
 * denies it.
 */
#include "cuda.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* PASS(name in HIP, name in CUDA, parameters, arguments) */
#define PASS(hip, name, parameters, arguments)                               \
  EXPORT hipError_t hip parameters;                                          \
  EXPORT hipError_t hip parameters {                                         \
    NEEDS_CUDA;                                                              \
    hipError_t error = cuda.name arguments;                                  \
    if (error && error != hipErrorNotReady) TRACE(#hip ": error %d", error); \
    return error;                                                            \
  }

PASS(hipGetDeviceCount, cudaGetDeviceCount, (int *count), (count))
PASS(hipGetDevice, cudaGetDevice, (int *device), (device))
PASS(hipSetDevice, cudaSetDevice, (int device), (device))
PASS(hipDeviceGetPCIBusId, cudaDeviceGetPCIBusId, (char *text, int size, int device),
     (text, size, device))
PASS(hipRuntimeGetVersion, cudaRuntimeGetVersion, (int *version), (version))
PASS(hipGetLastError, cudaGetLastError, (void), ())
PASS(hipDeviceSynchronize, cudaDeviceSynchronize, (void), ())
PASS(hipMalloc, cudaMalloc, (void **out, size_t size), (out, size))
PASS(hipFree, cudaFree, (void *pointer), (pointer))
PASS(hipHostMalloc, cudaHostAlloc, (void **out, size_t size, unsigned flags),
     (out, size, flags & 7))
PASS(hipHostFree, cudaFreeHost, (void *pointer), (pointer))
PASS(hipHostRegister, cudaHostRegister, (void *pointer, size_t size, unsigned flags),
     (pointer, size, flags & 7))
PASS(hipHostUnregister, cudaHostUnregister, (void *pointer), (pointer))
PASS(hipHostGetDevicePointer, cudaHostGetDevicePointer,
     (void **out, void *pointer, unsigned flags), (out, pointer, flags))
PASS(hipMemGetInfo, cudaMemGetInfo, (size_t *unused, size_t *total), (unused, total))
PASS(hipStreamCreateWithFlags, cudaStreamCreateWithFlags, (stream_t * out, unsigned flags),
     (out, flags))
PASS(hipStreamDestroy, cudaStreamDestroy, (stream_t stream), (stream))
PASS(hipStreamSynchronize, cudaStreamSynchronize, (stream_t stream), (stream))
PASS(hipStreamWaitEvent, cudaStreamWaitEvent, (stream_t stream, event_t event, unsigned flags),
     (stream, event, flags))
PASS(hipEventCreateWithFlags, cudaEventCreateWithFlags, (event_t * out, unsigned flags),
     (out, flags & 7))
PASS(hipEventDestroy, cudaEventDestroy, (event_t event), (event))
PASS(hipEventRecord, cudaEventRecord, (event_t event, stream_t stream), (event, stream))
PASS(hipEventSynchronize, cudaEventSynchronize, (event_t event), (event))
PASS(hipEventQuery, cudaEventQuery, (event_t event), (event))
PASS(hipMemcpy, cudaMemcpy, (void *to, const void *from, size_t size, int kind),
     (to, from, size, kind))
PASS(hipMemset, cudaMemset, (void *to, int value, size_t size), (to, value, size))
PASS(hipMemsetAsync, cudaMemsetAsync, (void *to, int value, size_t size, stream_t stream),
     (to, value, size, stream))

EXPORT hipError_t hipExtMallocWithFlags(void **out, size_t size, unsigned flags) {
  (void)flags;
  return hipMalloc(out, size);
}

EXPORT const char *hipGetErrorString(hipError_t error) {
  if (!cuda_is_there() || !cuda.cudaGetErrorString) return hip_error_string(error);
  return cuda.cudaGetErrorString(error);
}

/* --- devices -------------------------------------------------------------------------------- */

static int claims_peer_access(void) {
  const char *value = getenv("HIPSIM_CUDA_FORCE_P2P");
  return value && *value == '1';
}

EXPORT hipError_t hipDeviceCanAccessPeer(int *can, int device, int peer) {
  NEEDS_CUDA;
  hipError_t error = cuda.cudaDeviceCanAccessPeer(can, device, peer);
  TRACE("device %d can reach device %d: %d, error %d", device, peer, *can, error);
  if (!error && device != peer && claims_peer_access()) *can = 1;
  return error;
}

EXPORT hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  NEEDS_CUDA;
  hipError_t error = cuda.cudaDeviceEnablePeerAccess(peer, flags);
  if (!error || error == hipErrorPeerAccessAlreadyEnabled || !claims_peer_access()) return error;
  (void)cuda.cudaGetLastError();
  return hipSuccess;
}

/* HIP numbers its attributes otherwise than CUDA; a device has none of those the engine asks for.
 */
EXPORT hipError_t hipDeviceGetAttribute(int *value, int attribute, int device) {
  (void)attribute, (void)device;
  *value = 0;
  return hipSuccess;
}

static hipError_t total_memory(int device, size_t *total) {
  size_t unused = 0;
  int before = 0;
  hipError_t error = cuda.cudaGetDevice(&before);
  if (!error) error = cuda.cudaSetDevice(device);
  if (error) return error;
  error = cuda.cudaMemGetInfo(&unused, total);
  cuda.cudaSetDevice(before);
  return error;
}

/* An attribute by its number in CUDA, 0 if there is none. */
static int attribute(int number, int device) {
  int value = 0;
  if (!cuda.cudaDeviceGetAttribute(&value, number, device)) return value;
  (void)cuda.cudaGetLastError();
  return 0;
}

EXPORT hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_t *properties, int device) {
  NEEDS_CUDA;
  memset(properties, 0, sizeof *properties);
  hipError_t error = total_memory(device, &properties->totalGlobalMem);
  if (error) return error;
  strcpy(properties->name, "hipsim: an NVIDIA GPU");
  strcpy(properties->gcnArchName, "gfx942:sramecc+:xnack-"); /* an MI300X, as the engine expects */
  properties->major = 9;
  properties->minor = 4;
  properties->maxThreadsPerBlock = attribute(1, device);
  properties->warpSize = attribute(10, device);
  properties->clockRate = attribute(13, device);
  properties->multiProcessorCount = attribute(16, device);
  properties->pciBusID = attribute(33, device);
  properties->pciDeviceID = attribute(34, device);
  properties->pciDomainID = attribute(50, device);
  return hipSuccess;
}

/* --- pointers and imported memory ----------------------------------------------------------- */

EXPORT hipError_t hipPointerGetAttributes(hipPointerAttribute_t *about, const void *pointer) {
  NEEDS_CUDA;
  struct pointer_attributes found = {0};
  memset(about, 0, sizeof *about);
  about->device = -1;
  hipError_t error = cuda.cudaPointerGetAttributes(&found, pointer);
  if (error) return error;
  if (!found.type)
    return hipErrorInvalidValue; /* CUDA knows host memory of any kind, HIP does not */
  about->type = found.type;
  about->device = found.device;
  about->devicePointer = found.device_pointer;
  about->hostPointer = found.host_pointer;
  about->isManaged = found.type == 3;
  return hipSuccess;
}

int cuda_owner(const void *pointer) {
  struct pointer_attributes found = {0};
  if (!cuda.cudaPointerGetAttributes(&found, pointer))
    return found.type >= hipMemoryTypeDevice ? found.device : -1;
  (void)cuda.cudaGetLastError();
  return -1;
}

EXPORT hipError_t hipMemGetAddressRange(void **base, size_t *size, void *pointer) {
  NEEDS_CUDA;
  if (!cuda.cuMemGetAddressRange) return hipErrorNotSupported;
  int device = cuda_owner(pointer);
  if (device < 0) return hipErrorNotFound;
  int before = cuda_enter(device);
  cuda.cudaFree(NULL); /* the driver needs a context, the runtime makes one when it must */
  hipError_t error = cuda.cuMemGetAddressRange(base, size, pointer);
  cuda_leave(before);
  TRACE("the allocation of %p begins at %p: error %d", pointer, base ? *base : NULL, error);
  return error;
}

/* Memory that CUDA maps itself (expandable segments) has no handle: invalid argument. */
EXPORT hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *out, void *pointer) {
  NEEDS_CUDA;
  int before = cuda_enter(cuda_owner(pointer));
  hipError_t error = cuda.cudaIpcGetMemHandle(out, pointer);
  cuda_leave(before);
  TRACE("export %p: error %d", pointer, error);
  return error;
}

enum { MOST_IMPORTS = 4096 };
static struct import {
  char *base;
  size_t size;
  int device;
  int uses;
} imports[MOST_IMPORTS];
static int filled;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int cuda_count_imports(void) {
  pthread_mutex_lock(&lock);
  int count = filled;
  pthread_mutex_unlock(&lock);
  return count;
}

int cuda_importer(const void *pointer) {
  int device = -1;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < filled && device < 0; i++) {
    const char *base = imports[i].base;
    if ((const char *)pointer >= base && (const char *)pointer < base + imports[i].size)
      device = imports[i].device;
  }
  pthread_mutex_unlock(&lock);
  return device;
}

static void remember(char *base, size_t size, int device) {
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < filled && !(imports[i].base == base && imports[i].device == device)) i++;
  if (i < filled)
    imports[i].uses++;
  else if (filled < MOST_IMPORTS)
    imports[filled++] = (struct import){base, size, device, 1};
  pthread_mutex_unlock(&lock);
}

static void forget(const void *base) {
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < filled && imports[i].base != base) i++;
  if (i < filled && --imports[i].uses == 0) imports[i] = imports[--filled];
  pthread_mutex_unlock(&lock);
}

EXPORT hipError_t hipIpcOpenMemHandle(void **out, hipIpcMemHandle_t handle, unsigned flags) {
  NEEDS_CUDA;
  int device = 0;
  size_t size = 0;
  void *base = NULL;
  hipError_t error = cuda.cudaGetDevice(&device);
  if (!error) error = cuda.cudaIpcOpenMemHandle(out, handle, flags);
  TRACE("import on device %d: %p, error %d", device, error ? NULL : *out, error);
  if (error) return error;
  if (!cuda.cuMemGetAddressRange || cuda.cuMemGetAddressRange(&base, &size, *out))
    size = (size_t)1 << 40; /* too much harms less than too little: it only chooses a stream */
  remember(*out, size, device);
  return hipSuccess;
}

EXPORT hipError_t hipIpcCloseMemHandle(void *pointer) {
  NEEDS_CUDA;
  int before = cuda_enter(cuda_importer(pointer));
  forget(pointer);
  hipError_t error = cuda.cudaIpcCloseMemHandle(pointer);
  cuda_leave(before);
  return error;
}
