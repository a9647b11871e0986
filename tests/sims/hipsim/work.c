/* Streams, events and copies, all of them done by one worker.
 *
 * It takes them in the order in which they were submitted, or (HIPSIM_SHUFFLE) in any other that
 * streams and events allow: what a program may not rely on, it then had better not.
 *
 * A copy is checked against the ALLOCATION that it touches, as ROCm checks it, and not against
 * what the engine registered: what the engine does not check must show. */
#include "sim.h"
#include <stdlib.h>

typedef struct {
  hipError_t error; /* of a copy, until an event takes it */
  uint64_t newest;  /* the last operation that was submitted to it */
  uint64_t seen;    /* the choice in which it had its turn */
} stream_t;

typedef struct {
  uint64_t number; /* of the operation that records it */
  hipError_t error;
} event_t;

enum what { COPY, SET, RECORD, WAIT };

struct operation {
  struct operation *next;
  uint64_t number;
  enum what what;
  void *target;
  const void *source;
  size_t size;
  int value;
  hipError_t injected;
  stream_t *stream;
  event_t *event;
  uint64_t until; /* WAIT: the operation that must have been done */
};

struct work_settings work_settings;
struct counters counters;

static stream_t null_stream;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t submitted = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;
static struct operation *first, **last = &first, *current;
static uint64_t submissions;
static int running;

/* --- what is next --------------------------------------------------------------------------- */

/* All of what follows runs with the lock held, but for what is performed. */
static int is_done(uint64_t number) {
  if (current && current->number == number) return 0;
  for (struct operation *one = first; one && one->number <= number; one = one->next)
    if (one->number == number) return 0;
  return 1;
}

static uint64_t chance(void) {
  static uint64_t state;
  if (!state) state = 0x9E3779B97F4A7C15u * (uint64_t)work_settings.shuffle;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

/* Any of those that are the first of their stream and wait for nothing. What the null stream does
 * comes after all before it and before all after it. */
static struct operation **choose(void) {
  static uint64_t choices;
  struct operation **chosen = NULL;
  uint64_t candidates = 0, round = ++choices;
  if (!work_settings.shuffle) return first ? &first : NULL;
  for (struct operation **place = &first; *place; place = &(*place)->next) {
    struct operation *one = *place;
    if (one->stream == &null_stream && one != first) break;
    if (one->stream->seen == round) continue;
    one->stream->seen = round;
    if (one->what == WAIT && !is_done(one->until)) continue;
    if (chance() % ++candidates == 0) chosen = place;
    if (one->stream == &null_stream) break;
  }
  return chosen;
}

static struct operation *take(void) {
  struct operation **place = work_settings.hold ? NULL : choose();
  if (!place) return NULL;
  struct operation *taken = *place;
  *place = taken->next;
  if (!taken->next) last = place;
  return taken;
}

static void perform(struct operation *operation) {
  switch (operation->what) {
  case WAIT: return;
  case RECORD:
    operation->event->error = operation->stream->error;
    operation->stream->error = hipSuccess;
    return;
  case COPY:
  case SET: break;
  }
  if (work_settings.delay_us > 0) usleep((useconds_t)work_settings.delay_us);
  if (operation->injected) {
    operation->stream->error = operation->injected;
    return;
  }
  if (operation->what == COPY)
    memmove(operation->target, operation->source, operation->size);
  else
    memset(operation->target, operation->value, operation->size);
  COUNT(copies, 1);
  COUNT(bytes, (long)operation->size);
}

static void *work(void *unused) {
  (void)unused;
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!(current = take())) pthread_cond_wait(&submitted, &lock);
    pthread_mutex_unlock(&lock);
    perform(current);
    pthread_mutex_lock(&lock);
    free(current);
    current = NULL;
    pthread_cond_broadcast(&finished);
  }
  return NULL;
}

static void start(void) {
  pthread_t thread;
  running = 1;
  if (pthread_create(&thread, NULL, work, NULL)) abort();
  pthread_detach(thread);
}

void sim_hold(int on) {
  pthread_mutex_lock(&lock);
  work_settings.hold = on;
  pthread_cond_broadcast(&submitted);
  pthread_mutex_unlock(&lock);
}

/* The child has no worker, and what its parent submitted is not for it to do. */
void sim_work_after_fork(void) {
  pthread_mutex_init(&lock, NULL);
  pthread_cond_init(&submitted, NULL);
  pthread_cond_init(&finished, NULL);
  first = current = NULL;
  last = &first;
  running = 0;
}

/* Whether this operation is one of those that a test wants to fail. */
static hipError_t injected(void) {
  if (work_settings.fail <= 0) return hipSuccess;
  if (__atomic_fetch_sub(&work_settings.skip, 1, __ATOMIC_RELAXED) > 0) return hipSuccess;
  int left = __atomic_fetch_sub(&work_settings.fail, 1, __ATOMIC_RELAXED);
  return left > 0 ? work_settings.error : hipSuccess;
}

static void submit(struct operation wanted) {
  if (!wanted.stream) wanted.stream = &null_stream;
  if (wanted.what == COPY || wanted.what == SET) wanted.injected = injected();
  if (sim.inline_copies) {
    perform(&wanted);
    return;
  }
  struct operation *operation = malloc(sizeof *operation);
  if (!operation) abort();
  *operation = wanted;
  operation->next = NULL;
  pthread_mutex_lock(&lock);
  if (!running) start();
  *last = operation;
  last = &operation->next;
  operation->number = operation->stream->newest = ++submissions;
  if (operation->what == RECORD) operation->event->number = submissions;
  pthread_cond_signal(&submitted);
  pthread_mutex_unlock(&lock);
}

static void wait_for(uint64_t number) {
  pthread_mutex_lock(&lock);
  while (!is_done(number)) pthread_cond_wait(&finished, &lock);
  pthread_mutex_unlock(&lock);
}

/* Everything of a stream, an event, or of all if neither is said, that was submitted until now. */
static int is_pending(const stream_t *stream, const event_t *event, uint64_t until) {
  for (struct operation *one = current ? current : first; one;
       one = one == current ? first : one->next)
    if (one->number <= until && (!stream || one->stream == stream) &&
        (!event || one->event == event))
      return 1;
  return 0;
}

static void wait_for_all(const stream_t *stream, const event_t *event) {
  pthread_mutex_lock(&lock);
  uint64_t until = submissions;
  while (is_pending(stream, event, until)) pthread_cond_wait(&finished, &lock);
  pthread_mutex_unlock(&lock);
}

void sim_drain(void) { wait_for_all(NULL, NULL); }

/* --- streams -------------------------------------------------------------------------------- */

EXPORT hipError_t hipStreamCreateWithFlags(stream_t **out, unsigned flags) {
  (void)flags;
  sim_init();
  *out = calloc(1, sizeof **out);
  COUNT(streams, 1);
  return *out ? hipSuccess : sim_return(hipErrorOutOfMemory);
}

EXPORT hipError_t hipStreamDestroy(stream_t *stream) {
  if (!stream) return sim_return(hipErrorInvalidHandle);
  wait_for_all(stream, NULL);
  free(stream);
  COUNT(streams, -1);
  return hipSuccess;
}

EXPORT hipError_t hipStreamSynchronize(stream_t *stream) {
  wait_for_all(stream, NULL);
  return hipSuccess;
}

EXPORT hipError_t hipStreamWaitEvent(stream_t *stream, event_t *event, unsigned flags) {
  (void)flags;
  if (!event) return sim_return(hipErrorInvalidHandle);
  submit((struct operation){.what = WAIT, .until = event->number, .stream = stream});
  return hipSuccess;
}

EXPORT hipError_t hipDeviceSynchronize(void) {
  sim_drain();
  return hipSuccess;
}

/* --- events --------------------------------------------------------------------------------- */

EXPORT hipError_t hipEventCreateWithFlags(event_t **out, unsigned flags) {
  (void)flags;
  *out = calloc(1, sizeof **out);
  COUNT(events, 1);
  return *out ? hipSuccess : sim_return(hipErrorOutOfMemory);
}

EXPORT hipError_t hipEventDestroy(event_t *event) {
  if (!event) return sim_return(hipErrorInvalidHandle);
  wait_for_all(NULL, event);
  free(event);
  COUNT(events, -1);
  return hipSuccess;
}

EXPORT hipError_t hipEventRecord(event_t *event, stream_t *stream) {
  if (!event) return sim_return(hipErrorInvalidHandle);
  submit((struct operation){.what = RECORD, .event = event, .stream = stream});
  return hipSuccess;
}

EXPORT hipError_t hipEventSynchronize(event_t *event) {
  if (!event) return sim_return(hipErrorInvalidHandle);
  wait_for(event->number);
  return sim_return(event->error);
}

EXPORT hipError_t hipEventQuery(event_t *event) {
  if (!event) return sim_return(hipErrorInvalidHandle);
  pthread_mutex_lock(&lock);
  int done = is_done(event->number);
  pthread_mutex_unlock(&lock);
  return sim_return(done ? event->error : hipErrorNotReady);
}

/* --- copies --------------------------------------------------------------------------------- */

static hipError_t copy(void *target, const void *source, size_t size, int kind, stream_t *stream) {
  sim_init();
  if (!size) return hipSuccess;
  if (!target || !source || kind < hipMemcpyHostToHost || kind > hipMemcpyDefault)
    return sim_return(hipErrorInvalidValue);
  enum reach to = sim_reach(target, size), from = sim_reach(source, size);
  if (to == OVERRUNS || from == OVERRUNS) return sim_return(hipErrorInvalidValue);
  if (kind == hipMemcpyDeviceToDevice && (to == UNKNOWN || from == UNKNOWN))
    return sim_return(hipErrorInvalidValue);
  submit((struct operation){
      .what = COPY, .target = target, .source = source, .size = size, .stream = stream});
  return hipSuccess;
}

EXPORT hipError_t hipMemcpyAsync(void *target, const void *source, size_t size, int kind,
                                 stream_t *stream) {
  return copy(target, source, size, kind, stream);
}

EXPORT hipError_t hipMemcpy(void *target, const void *source, size_t size, int kind) {
  hipError_t error = copy(target, source, size, kind, NULL);
  if (!error) sim_drain();
  return error;
}

EXPORT hipError_t hipMemcpyPeerAsync(void *target, int target_device, const void *source,
                                     int source_device, size_t size, stream_t *stream) {
  if (sim_no_such_device(target_device) || sim_no_such_device(source_device))
    return sim_return(hipErrorInvalidDevice);
  return copy(target, source, size, hipMemcpyDeviceToDevice, stream);
}

EXPORT hipError_t hipMemsetAsync(void *target, int value, size_t size, stream_t *stream) {
  if (!size) return hipSuccess;
  if (sim_reach(target, size) != INSIDE) return sim_return(hipErrorInvalidValue);
  submit((struct operation){
      .what = SET, .target = target, .value = value, .size = size, .stream = stream});
  return hipSuccess;
}

EXPORT hipError_t hipMemset(void *target, int value, size_t size) {
  hipError_t error = hipMemsetAsync(target, value, size, NULL);
  if (!error) sim_drain();
  return error;
}
