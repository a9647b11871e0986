/* Copies between devices: the one thing in which CUDA and HIP differ here.
 *
 * The engine imports a handle on its LOCAL device and copies on a stream of the REMOTE one. In
 * CUDA an imported mapping belongs to the context that imported it, so such a copy runs on a
 * stream of our own on that device, and events put it between what comes before and after on the
 * engine's.
 *
 * HIPSIM_CUDA_COPY=peer or =default does without that, to see what the driver makes of it.
 */
#include "cuda.h"
#include <pthread.h>
#include <string.h>

enum { MOST_DEVICES = 64, NO_TIMING = 2, NON_BLOCKING = 1 };

/* The device must be current. */
static stream_t own_stream(int device) {
  static stream_t streams[MOST_DEVICES];
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  if (!streams[device] && cuda.cudaStreamCreateWithFlags(&streams[device], NON_BLOCKING))
    streams[device] = NULL;
  stream_t stream = streams[device];
  pthread_mutex_unlock(&lock);
  return stream;
}

/* On the importer's own stream, which is current: wait for `before`, copy, record `after`. */
static hipError_t copy_there(int device, void *to, const void *from, size_t size, event_t before,
                             event_t *after) {
  stream_t own = own_stream(device);
  if (!own) return hipErrorUnknown;
  hipError_t error = cuda.cudaEventCreateWithFlags(after, NO_TIMING);
  if (!error) error = cuda.cudaStreamWaitEvent(own, before, 0);
  if (!error) error = cuda.cudaMemcpyAsync(to, from, size, hipMemcpyDefault, own);
  if (!error) error = cuda.cudaEventRecord(*after, own);
  return error;
}

static hipError_t copy_by_importer(int device, void *to, const void *from, size_t size,
                                   stream_t stream) {
  event_t before = NULL, after = NULL;
  hipError_t error = cuda.cudaEventCreateWithFlags(&before, NO_TIMING);
  if (!error) error = cuda.cudaEventRecord(before, stream);
  if (!error) {
    int current = cuda_enter(device);
    error = copy_there(device, to, from, size, before, &after);
    cuda_leave(current);
  }
  if (!error) error = cuda.cudaStreamWaitEvent(stream, after, 0);
  if (before) cuda.cudaEventDestroy(before);
  if (after) cuda.cudaEventDestroy(after);
  return error;
}

static hipError_t copy(void *to, int to_device, const void *from, int from_device, size_t size,
                       stream_t stream) {
  int importer = -1, current = 0;
  cuda.cudaGetDevice(&current); /* the stream's: the engine saw to that */
  if (cuda.copies == BY_IMPORTER) {
    importer = cuda_importer(to);
    if (importer < 0) importer = cuda_importer(from);
  }
  TRACE("copy %zu bytes from %p (%d) to %p (%d), imported by %d, current %d", size, from,
        from_device, to, to_device, importer, current);
  if (importer >= 0 && importer != current)
    return copy_by_importer(importer, to, from, size, stream);
  if (cuda.copies == DEFAULT || importer >= 0 || to_device == from_device)
    return cuda.cudaMemcpyAsync(to, from, size, hipMemcpyDefault, stream);
  return cuda.cudaMemcpyPeerAsync(to, to_device, from, from_device, size, stream);
}

EXPORT hipError_t hipMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                     size_t size, stream_t stream) {
  NEEDS_CUDA;
  return copy(to, to_device, from, from_device, size, stream);
}

EXPORT hipError_t hipMemcpyAsync(void *to, const void *from, size_t size, int kind,
                                 stream_t stream) {
  NEEDS_CUDA;
  if (kind == hipMemcpyDeviceToDevice) return copy(to, 0, from, 0, size, stream);
  return cuda.cudaMemcpyAsync(to, from, size, kind, stream);
}

EXPORT void hipsim_stats(long out[7]) {
  memset(out, 0, 7 * sizeof *out);
  out[5] = cuda_count_imports();
}
