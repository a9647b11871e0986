/* The functions of the CUDA runtime that stand behind HIP's, loaded when the first one is wanted.
 *
 * HIP and CUDA agree on what is used here: error numbers, kinds of copies, flags of streams,
 * events and host memory, kinds of memory, and the 64 bytes of an IPC handle.
 */
#ifndef HIPSIM_CUDA_H
#define HIPSIM_CUDA_H
#define _GNU_SOURCE
#include "hip_abi.h"
#include <stdio.h>

typedef void *stream_t;
typedef void *event_t;

/* cudaPointerAttributes of CUDA 11 to 13, with room for what comes after what we read. */
struct pointer_attributes {
  int type;
  int device;
  void *device_pointer;
  void *host_pointer;
  long more[16];
};

#define FUNCTIONS(X)                                                         \
  X(cudaGetDeviceCount, (int *))                                             \
  X(cudaGetDevice, (int *))                                                  \
  X(cudaSetDevice, (int))                                                    \
  X(cudaDeviceGetPCIBusId, (char *, int, int))                               \
  X(cudaDeviceCanAccessPeer, (int *, int, int))                              \
  X(cudaDeviceEnablePeerAccess, (int, unsigned))                             \
  X(cudaDeviceGetAttribute, (int *, int, int))                               \
  X(cudaRuntimeGetVersion, (int *))                                          \
  X(cudaGetLastError, (void))                                                \
  X(cudaDeviceSynchronize, (void))                                           \
  X(cudaMalloc, (void **, size_t))                                           \
  X(cudaFree, (void *))                                                      \
  X(cudaHostAlloc, (void **, size_t, unsigned))                              \
  X(cudaFreeHost, (void *))                                                  \
  X(cudaHostRegister, (void *, size_t, unsigned))                            \
  X(cudaHostUnregister, (void *))                                            \
  X(cudaHostGetDevicePointer, (void **, void *, unsigned))                   \
  X(cudaMemGetInfo, (size_t *, size_t *))                                    \
  X(cudaPointerGetAttributes, (struct pointer_attributes *, const void *))   \
  X(cudaIpcGetMemHandle, (hipIpcMemHandle_t *, void *))                      \
  X(cudaIpcOpenMemHandle, (void **, hipIpcMemHandle_t, unsigned))            \
  X(cudaIpcCloseMemHandle, (void *))                                         \
  X(cudaStreamCreateWithFlags, (stream_t *, unsigned))                       \
  X(cudaStreamDestroy, (stream_t))                                           \
  X(cudaStreamSynchronize, (stream_t))                                       \
  X(cudaStreamWaitEvent, (stream_t, event_t, unsigned))                      \
  X(cudaEventCreateWithFlags, (event_t *, unsigned))                         \
  X(cudaEventDestroy, (event_t))                                             \
  X(cudaEventRecord, (event_t, stream_t))                                    \
  X(cudaEventSynchronize, (event_t))                                         \
  X(cudaEventQuery, (event_t))                                               \
  X(cudaMemcpy, (void *, const void *, size_t, int))                         \
  X(cudaMemcpyAsync, (void *, const void *, size_t, int, stream_t))          \
  X(cudaMemcpyPeerAsync, (void *, int, const void *, int, size_t, stream_t)) \
  X(cudaMemset, (void *, int, size_t))                                       \
  X(cudaMemsetAsync, (void *, int, size_t, stream_t))

#define DECLARE(name, parameters) hipError_t(*name) parameters;
struct cuda {
  FUNCTIONS(DECLARE)
  const char *(*cudaGetErrorString)(hipError_t);
  hipError_t (*cuMemGetAddressRange)(void **, size_t *, void *);
  int trace;
  enum { BY_IMPORTER, PEER, DEFAULT } copies; /* HIPSIM_CUDA_COPY */
};
#undef DECLARE

extern struct cuda cuda;
int cuda_is_there(void); /* loads it, once */

/* First in every function that calls CUDA. */
#define NEEDS_CUDA \
  if (!cuda_is_there()) return hipErrorNotInitialized

#define TRACE(...)                     \
  do {                                 \
    if (cuda.trace) {                  \
      fputs("[hipsim cuda] ", stderr); \
      fprintf(stderr, __VA_ARGS__);    \
      fputc('\n', stderr);             \
    }                                  \
  } while (0)

int cuda_enter(int device); /* make it current; what to give to cuda_leave */
void cuda_leave(int before);
int cuda_owner(const void *pointer);    /* the device whose memory it is, or -1 */
int cuda_importer(const void *pointer); /* the device that imported it by a handle, or -1 */
int cuda_count_imports(void);
#endif
