/* What the parts of the library share.
 *
 * settings.c    the environment, and what tests may change
 * devices.c     devices, their ports and their addresses
 * events.c      queues of events with a descriptor to wait on; open devices
 * memory.c      protection domains and memory regions
 * completion.c  completion queues and channels
 * receive.c     receive queues, shared ones too
 * pairs.c       queue pairs: their states, and how they are made and unmade
 * post.c        what applications post to them
 * requester.c   the sending side of the card: one thread for each queue pair that sends
 * responder.c   its receiving side: one thread for the process
 * names.c       what the values are called
 * hooks.c       what tests may ask for and count
 *
 * Locks, in the order in which they may be taken: `card`, a pair's `lock`, a receive queue's or a
 * completion queue's, an event queue's.
 */
#ifndef VERBSIM_VSIM_H
#define VERBSIM_VSIM_H
#define _GNU_SOURCE
#include "verbs_abi.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { MAX_DEVICES = 8, MAX_GIDS = 16, MAX_SGES = 30, MAX_INLINE = 512, FIRST_BUS = 0xC1 };

#define LOCK(mutex) pthread_mutex_lock(&(mutex))
#define UNLOCK(mutex) pthread_mutex_unlock(&(mutex))
#define ADD(number, by) __atomic_add_fetch(&(number), (by), __ATOMIC_RELAXED)

/* --- settings and counts -------------------------------------------------------------------- */

struct settings {
  char space[40]; /* processes see those of the same one */
  int trace;
  long delay_us;
  long gbps;
  long retry_ms;
  long stall_ms;
  long max_region;
  long refused_access;
  long refusal; /* errno */
  long max_message;
  long max_sge;
  long max_wr;
  long max_cqe;
  long vendor;
};

/* What tests ask for while it runs. */
struct hooks {
  volatile int hold;
  volatile int drop_all;
  volatile int fail, fail_skip, fail_status, fail_after;
  volatile int fail_regions, region_errno;
};

struct counters {
  long requests, bytes, sends_in, writes_in, refusals, drops, flushed, regions, pairs, local;
};

extern struct settings settings;
extern struct hooks hooks;
extern struct counters counters;

long setting(const char *name, long otherwise);
void vsim_init(void);
uint64_t now_ns(void);
struct timespec as_timespec(uint64_t ns);
void init_condition(pthread_cond_t *condition); /* on the clock of now_ns */

static inline void *fail_with(int error) {
  errno = error;
  return NULL;
}

#define TRACE(level, ...)                         \
  do {                                            \
    if (settings.trace >= (level)) {              \
      fprintf(stderr, "[verbsim %d] ", getpid()); \
      fprintf(stderr, __VA_ARGS__);               \
      fputc('\n', stderr);                        \
    }                                             \
  } while (0)

/* --- objects: each begins with what the application sees of it ------------------------------ */

struct device {
  struct ibv_device device;
  int index;
  volatile int up;
  int gids;
  union ibv_gid gid[MAX_GIDS];
  uint8_t gid_type[MAX_GIDS];
  uint64_t busy_until;
};

struct event {
  struct event *next;
  void *object;
  struct ibv_async_event said;
};

struct events {
  int fd; /* an eventfd that counts what is queued */
  pthread_mutex_t lock;
  struct event *first, **last;
};

struct context {
  struct context *next;
  struct device *device;
  int uses;
  struct events events;
  struct verbs_context verbs;
};

struct domain {
  struct ibv_pd pd;
  int uses;
};

struct region {
  struct ibv_mr mr;
  struct region *next;
  uint64_t iova;
  unsigned access;
  int busy; /* requests under way whose local side it is */
};

struct channel {
  struct ibv_comp_channel channel;
  struct events events;
};

struct pair;

struct completion {
  struct ibv_wc wc;
  struct pair *pair;
  uint32_t next_slot; /* of the send queue: polling this frees the slots before it */
  uint8_t is_send;
};

enum armed { NOT_ARMED, FOR_SOLICITED, FOR_ANY };

struct completions {
  struct ibv_cq cq;
  pthread_mutex_t lock;
  struct completion *ring;
  uint32_t size; /* a power of two */
  volatile uint32_t head, tail;
  enum armed armed;
  int overrun;
  int uses;
  uint32_t events_taken, async_taken;
};

struct receive {
  uint64_t wr_id;
  int sges;
  struct ibv_sge sge[MAX_SGES];
};

struct receives {
  char *slots;
  size_t stride;
  uint32_t size, max_sge, head, tail;
};

struct shared_receives {
  struct ibv_srq srq;
  pthread_mutex_t lock;
  struct receives queue;
  int uses;
};

struct send {
  uint64_t wr_id, remote, length;
  uint64_t due_ns;
  uint32_t rkey, immediate;
  uint8_t opcode, flags, sges;
  char *inlined;
  struct ibv_sge sge[];
};

struct pair {
  struct ibv_qp qp;
  struct pair *next;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct ibv_qp_attr attributes;
  struct ibv_qp_init_attr made_with;
  volatile int state; /* as qp.state, which the application may look at without a lock */
  volatile int stop, busy;
  char *sends;
  size_t send_stride;
  uint32_t send_size, send_head, send_done;
  volatile uint32_t send_tail;
  struct receives receives;
  pthread_t thread;
  int has_thread;
  int listener;   /* its name is the pair's number */
  int to_peer;    /* our requests */
  int from_peer;  /* the peer's requests */
  pid_t peer_pid; /* of from_peer, by the kernel's word */
  uint32_t events_taken;
};

/* One request. The responder moves the bytes itself, so only addresses travel. */
struct request {
  uint8_t opcode, gid_type, solicited, sges;
  uint32_t to_pair, from_pair, psn, rkey, immediate;
  uint64_t remote, length;
  union ibv_gid source, destination;
  struct ibv_sge sge[MAX_SGES];
};

static inline size_t size_of_request(const struct request *request) {
  return offsetof(struct request, sge) + request->sges * sizeof request->sge[0];
}

/* The answer, 32 bits on the socket; the last three are only ever said by the requester itself. */
enum answer {
  DONE,
  REFUSED_ACCESS,
  REFUSED_REQUEST,
  REFUSED_OPERATION,
  NOT_READY,
  LOST,
  STALLED,
  LOCAL_FAULT
};

#define CONTEXT(c) ((struct context *)((char *)(c) - offsetof(struct context, verbs.context)))
#define DEVICE(c) (CONTEXT(c)->device)
#define DOMAIN(pd) ((struct domain *)(pd))
#define COMPLETIONS(cq) ((struct completions *)(cq))
#define SHARED(srq) ((struct shared_receives *)(srq))
#define PAIR(qp) ((struct pair *)(qp))

/* --- devices.c ------------------------------------------------------------------------------ */

extern struct device devices[MAX_DEVICES];
extern int device_count;
void init_devices(void);
int has_gid(struct device *device, uint32_t index);
int query_device_ex(struct ibv_context *context, const void *input, void *out, size_t size);
int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *out, size_t size);

/* --- events.c ------------------------------------------------------------------------------- */

int events_init(struct events *events); /* the descriptor, or -1 */
void events_put(struct events *events, void *object, struct ibv_async_event said);
struct event *events_take(struct events *events); /* blocks unless its descriptor does not */
void events_purge(struct events *events, void *object);
void events_close(struct events *events);
void tell(struct ibv_context *context, enum ibv_event_type type, void *object, int port);
int tell_all(struct device *device, enum ibv_event_type type); /* how many contexts */
void forget_contexts(void);                                    /* in a forked child */

/* --- memory.c ------------------------------------------------------------------------------- */

extern pthread_mutex_t card; /* pairs, regions, and the responder at work */
extern pthread_cond_t regions_idle;
int touch(uint64_t address, uint64_t length); /* 0 if all of it is mapped, else errno */
/* With `card` held: the region of that key if it covers the range and allows the access. */
struct region *find_region(uint32_t key, struct ibv_pd *pd, uint64_t address, uint64_t length,
                           unsigned access, uint64_t *here);
void forget_regions(void);

/* --- completion.c --------------------------------------------------------------------------- */

void complete(struct ibv_cq *cq, struct pair *pair, const struct ibv_wc *wc, int solicited);
void complete_send(struct pair *pair, const struct ibv_wc *wc, uint32_t next_slot);
void purge_completions(struct ibv_cq *cq, struct pair *pair);
int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc);
int req_notify_cq(struct ibv_cq *cq, int solicited);

/* --- receive.c ------------------------------------------------------------------------------ */

int receives_init(struct receives *queue, uint32_t size, uint32_t max_sge);
int receives_post(struct receives *queue, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int receives_take(struct receives *queue, struct receive *out);
int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* --- pairs.c -------------------------------------------------------------------------------- */

extern struct pair *pairs;     /* under `card` */
extern int responder_epoll_fd; /* likewise; -1 until there is a responder */
struct pair *find_pair(uint32_t number);
socklen_t name_of_pair(struct sockaddr_un *name, uint32_t number);
void pair_fails(struct pair *pair); /* with its lock held */
void disconnect(struct pair *pair);
int start_thread(pthread_t *thread, void *(*run)(void *), void *argument);
void begin_thread(const char *name);
void watch(int fd, uint32_t number, int is_request);
void forget_pairs(void);

/* --- post.c, requester.c, responder.c ------------------------------------------------------- */

int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct send *send_slot(struct pair *pair, uint32_t number);
void *request_for_ever(void *pair);
void *respond_for_ever(void *epoll_fd);
/* With `card` held: check one request from that process and carry it out. */
enum answer respond(struct pair *pair, const struct request *request, pid_t from);

/* --- names.c -------------------------------------------------------------------------------- */

const char *ibv_wc_status_str(enum ibv_wc_status status);
const char *ibv_event_type_str(enum ibv_event_type type);
#endif
