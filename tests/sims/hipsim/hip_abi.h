/* The part of the HIP 7 binary interface that the two runtimes here implement.
 *
 * Written down because neither ROCm nor its headers are wanted on a machine that only runs tests.
 * The numbers and layouts are those of ROCm 6 and 7 ("R0600"); the assertions below catch a slip.
 */
#ifndef HIP_ABI_H
#define HIP_ABI_H
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef int hipError_t;
enum {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorNotInitialized = 3,
  hipErrorNoDevice = 100,
  hipErrorInvalidDevice = 101,
  hipErrorInvalidContext = 201,
  hipErrorMapFailed = 205,
  hipErrorPeerAccessUnsupported = 217,
  hipErrorInvalidHandle = 400,
  hipErrorNotFound = 500,
  hipErrorNotReady = 600,
  hipErrorIllegalAddress = 700,
  hipErrorPeerAccessAlreadyEnabled = 704,
  hipErrorLaunchFailure = 719,
  hipErrorNotSupported = 801,
  hipErrorUnknown = 999
};

enum {
  hipMemcpyHostToHost,
  hipMemcpyHostToDevice,
  hipMemcpyDeviceToHost,
  hipMemcpyDeviceToDevice,
  hipMemcpyDefault
};
enum { hipMemoryTypeUnregistered, hipMemoryTypeHost, hipMemoryTypeDevice };

typedef struct {
  char reserved[64];
} hipIpcMemHandle_t;

typedef struct {
  int type;
  int device;
  void *devicePointer;
  void *hostPointer;
  int isManaged;
  unsigned allocationFlags;
} hipPointerAttribute_t;

/* hipDeviceProp_tR0600. Only what is filled in has a name; the rest keeps its place. */
typedef struct {
  char name[256];
  char uuid_luid[28];
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  size_t memPitch;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int clockRate;
  size_t totalConstMem;
  int major;
  int minor;
  size_t textureAlignment[2];
  int deviceOverlap;
  int multiProcessorCount;
  int modes[4];
  int textures[39];
  size_t surfaceAlignment;
  int concurrentKernels;
  int ECCEnabled;
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
  char unnamed[1160 - 596];
  char gcnArchName[256];
  char unnamed_too[1472 - 1416];
} hipDeviceProp_t;

_Static_assert(offsetof(hipDeviceProp_t, totalGlobalMem) == 288, "totalGlobalMem");
_Static_assert(offsetof(hipDeviceProp_t, pciBusID) == 584, "pciBusID");
_Static_assert(offsetof(hipDeviceProp_t, gcnArchName) == 1160, "gcnArchName");
_Static_assert(sizeof(hipDeviceProp_t) == 1472, "hipDeviceProp_t");

/* What the HIP runtime says of its errors. */
static inline const char *hip_error_string(hipError_t error) {
  switch (error) {
  case hipSuccess: return "no error";
  case hipErrorInvalidValue: return "invalid argument";
  case hipErrorOutOfMemory: return "out of memory";
  case hipErrorNotInitialized: return "initialization error";
  case hipErrorNoDevice: return "no ROCm-capable device is detected";
  case hipErrorInvalidDevice: return "invalid device ordinal";
  case hipErrorInvalidContext: return "invalid device context";
  case hipErrorMapFailed: return "mapping of buffer object failed";
  case hipErrorPeerAccessUnsupported:
    return "peer access is not supported between these two devices";
  case hipErrorInvalidHandle: return "invalid resource handle";
  case hipErrorNotFound: return "named symbol not found";
  case hipErrorNotReady: return "device not ready";
  case hipErrorIllegalAddress: return "an illegal memory access was encountered";
  case hipErrorPeerAccessAlreadyEnabled: return "peer access is already enabled";
  case hipErrorLaunchFailure: return "unspecified launch failure";
  case hipErrorNotSupported: return "operation not supported";
  default: return "unknown error";
  }
}
#endif
