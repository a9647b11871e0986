/* A queue pair is known to the other processes of this host by an abstract Unix socket that has
 * its number for a name. The kernel is the registry: it refuses a number that is taken, and it
 * forgets those of a process that dies. */
#include "vsim.h"
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

struct pair *pairs;
int responder_epoll_fd = -1;

struct pair *find_pair(uint32_t number) {
  struct pair *pair = pairs;
  while (pair && pair->qp.qp_num != number) pair = pair->next;
  return pair;
}

socklen_t name_of_pair(struct sockaddr_un *name, uint32_t number) {
  memset(name, 0, sizeof *name);
  name->sun_family = AF_UNIX;
  int length = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "verbsim:%s:%06x",
                        settings.space, number);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static void close_if_open(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

void forget_pairs(void) {
  for (struct pair *pair = pairs; pair; pair = pair->next) {
    close_if_open(&pair->listener);
    close_if_open(&pair->to_peer);
    close_if_open(&pair->from_peer);
  }
  close_if_open(&responder_epoll_fd);
  pairs = NULL;
}

/* --- threads -------------------------------------------------------------------------------- */

/* Signals belong to the application's threads. */
int start_thread(pthread_t *thread, void *(*run)(void *), void *argument) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(thread, NULL, run, argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

/* A card does not compete for a processor with applications that spin on its queues: this asks for
 * as much, and only root is given it. */
void begin_thread(const char *name) {
  prctl(PR_SET_NAME, name, 0, 0, 0);
  setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), -15);
}

void watch(int fd, uint32_t number, int is_request) {
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)number << 1 | !!is_request};
  epoll_ctl(responder_epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static int start_responder(void) {
  pthread_t thread;
  if (responder_epoll_fd >= 0) return 0;
  responder_epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (responder_epoll_fd < 0) return errno;
  int error = start_thread(&thread, respond_for_ever, (void *)(intptr_t)responder_epoll_fd);
  if (!error) pthread_detach(thread);
  return error;
}

/* --- making one ----------------------------------------------------------------------------- */

static int too_much(const struct ibv_qp_init_attr *wanted) {
  const struct ibv_qp_cap *cap = &wanted->cap;
  uint32_t max_wr = (uint32_t)settings.max_wr, max_sge = (uint32_t)settings.max_sge;
  return !wanted->send_cq || !wanted->recv_cq || cap->max_send_wr > max_wr ||
         cap->max_recv_wr > max_wr || cap->max_send_sge > max_sge || cap->max_recv_sge > max_sge ||
         cap->max_inline_data > MAX_INLINE;
}

/* Cards round up what they are asked for, and say so. */
static void round_up(struct ibv_qp_cap *cap) {
  if (!cap->max_send_wr) cap->max_send_wr = 1;
  if (!cap->max_send_sge) cap->max_send_sge = 1;
  if (cap->max_inline_data < 64) cap->max_inline_data = 64;
}

static struct pair *make_pair(struct ibv_pd *pd, const struct ibv_qp_init_attr *wanted) {
  const struct ibv_qp_cap *cap = &wanted->cap;
  struct pair *pair = calloc(1, sizeof *pair);
  if (!pair) return NULL;
  pair->made_with = *wanted;
  pair->send_size = cap->max_send_wr;
  pair->send_stride = sizeof(struct send) + cap->max_send_sge * sizeof(struct ibv_sge);
  pair->sends = calloc(pair->send_size, pair->send_stride);
  uint32_t receives = wanted->srq ? 0 : cap->max_recv_wr;
  if (!pair->sends || receives_init(&pair->receives, receives, cap->max_recv_sge)) {
    free(pair->sends);
    free(pair);
    return NULL;
  }
  pair->qp = (struct ibv_qp){.context = pd->context,
                             .qp_context = wanted->qp_context,
                             .pd = pd,
                             .send_cq = wanted->send_cq,
                             .recv_cq = wanted->recv_cq,
                             .srq = wanted->srq,
                             .state = IBV_QPS_RESET,
                             .qp_type = IBV_QPT_RC};
  pthread_mutex_init(&pair->qp.mutex, NULL);
  pthread_cond_init(&pair->qp.cond, NULL);
  pthread_mutex_init(&pair->lock, NULL);
  init_condition(&pair->changed);
  pair->listener = pair->to_peer = pair->from_peer = -1;
  return pair;
}

static void free_pair(struct pair *pair) {
  for (uint32_t i = 0; i < pair->send_size; i++) free(send_slot(pair, i)->inlined);
  free(pair->sends);
  free(pair->receives.slots);
  free(pair);
}

/* With `card` held: find a number that nobody has, and listen under it. An errno, or 0. */
static int number(struct pair *pair) {
  static uint32_t next;
  struct sockaddr_un name;
  if (!next) next = (uint32_t)(now_ns() >> 10) ^ (uint32_t)getpid() << 9;
  pair->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (pair->listener < 0) return errno;
  for (;;) {
    pair->qp.qp_num = pair->qp.handle = ++next & 0xffffff;
    if (pair->qp.qp_num < 2) continue; /* 0 and 1 mean something else to a card */
    socklen_t length = name_of_pair(&name, pair->qp.qp_num);
    if (!bind(pair->listener, (struct sockaddr *)&name, length)) break;
    if (errno != EADDRINUSE) return errno;
  }
  return listen(pair->listener, 16) ? errno : start_responder();
}

static void count_uses(struct pair *pair, int by) {
  ADD(DOMAIN(pair->qp.pd)->uses, by);
  ADD(COMPLETIONS(pair->qp.send_cq)->uses, by);
  ADD(COMPLETIONS(pair->qp.recv_cq)->uses, by);
  if (pair->qp.srq) ADD(SHARED(pair->qp.srq)->uses, by);
  ADD(counters.pairs, by);
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *wanted) {
  if (wanted->qp_type != IBV_QPT_RC) return fail_with(EOPNOTSUPP);
  if (too_much(wanted)) return fail_with(EINVAL);
  round_up(&wanted->cap);
  struct pair *pair = make_pair(pd, wanted);
  if (!pair) return fail_with(ENOMEM);
  LOCK(card);
  int error = number(pair);
  if (!error) {
    pair->next = pairs;
    pairs = pair;
    watch(pair->listener, pair->qp.qp_num, 0);
  }
  UNLOCK(card);
  if (error) {
    close_if_open(&pair->listener);
    free_pair(pair);
    return fail_with(error);
  }
  count_uses(pair, 1);
  TRACE(1, "pair %06x on %s", pair->qp.qp_num, pd->context->device->name);
  return &pair->qp;
}

/* --- unmaking it ---------------------------------------------------------------------------- */

void disconnect(struct pair *pair) { close_if_open(&pair->to_peer); }

static void unlist(struct pair *pair) {
  LOCK(card); /* so the responder is not at work on it */
  struct pair **place = &pairs;
  while (*place && *place != pair) place = &(*place)->next;
  if (*place) *place = pair->next;
  close_if_open(&pair->listener);
  close_if_open(&pair->from_peer);
  UNLOCK(card);
}

EXPORT int ibv_destroy_qp(struct ibv_qp *qp) {
  struct pair *pair = PAIR(qp);
  LOCK(pair->lock);
  pair->stop = 1;
  pthread_cond_broadcast(&pair->changed);
  UNLOCK(pair->lock);
  if (pair->has_thread) pthread_join(pair->thread, NULL);
  unlist(pair);
  disconnect(pair);
  purge_completions(qp->send_cq, pair);
  purge_completions(qp->recv_cq, pair);
  events_purge(&CONTEXT(qp->context)->events, pair);
  LOCK(qp->mutex);
  while (qp->events_completed != pair->events_taken) pthread_cond_wait(&qp->cond, &qp->mutex);
  UNLOCK(qp->mutex);
  count_uses(pair, -1);
  TRACE(1, "pair %06x is gone", qp->qp_num);
  free_pair(pair);
  return 0;
}

/* --- states --------------------------------------------------------------------------------- */

static void flush_receives(struct pair *pair) {
  struct receive receive;
  while (receives_take(&pair->receives, &receive)) {
    struct ibv_wc wc = {.wr_id = receive.wr_id,
                        .status = IBV_WC_WR_FLUSH_ERR,
                        .opcode = IBV_WC_RECV,
                        .qp_num = pair->qp.qp_num};
    complete(pair->qp.recv_cq, pair, &wc, 0);
  }
}

/* Its sends are flushed by the requester, in their order. */
void pair_fails(struct pair *pair) {
  if (pair->state == IBV_QPS_ERR) return;
  pair->state = pair->qp.state = IBV_QPS_ERR;
  if (pair->qp.srq)
    tell(pair->qp.context, IBV_EVENT_QP_LAST_WQE_REACHED, pair, 0);
  else
    flush_receives(pair);
  pthread_cond_broadcast(&pair->changed);
  TRACE(1, "pair %06x fails", pair->qp.qp_num);
}

static void reset(struct pair *pair) {
  pair->state = pair->qp.state = IBV_QPS_RESET;
  pthread_cond_broadcast(&pair->changed);
  while (pair->busy) pthread_cond_wait(&pair->changed, &pair->lock);
  pair->send_head = pair->send_done = pair->send_tail = 0;
  pair->receives.head = pair->receives.tail = 0;
  disconnect(pair);
  purge_completions(pair->qp.send_cq, pair);
  purge_completions(pair->qp.recv_cq, pair);
}

/* Whether that step is one of the table; SQD and SQE are not emulated. */
static int may_go(int from, int to) {
  switch (to) {
  case IBV_QPS_INIT: return from == IBV_QPS_RESET || from == IBV_QPS_INIT;
  case IBV_QPS_RTR: return from == IBV_QPS_INIT;
  case IBV_QPS_RTS: return from == IBV_QPS_RTR || from == IBV_QPS_RTS;
  default: return to == IBV_QPS_RESET || to == IBV_QPS_ERR;
  }
}

/* What a step must bring with it. */
static int needs(int to) {
  switch (to) {
  case IBV_QPS_INIT: return IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  case IBV_QPS_RTR:
    return IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  case IBV_QPS_RTS:
    return IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
           IBV_QP_MAX_QP_RD_ATOMIC;
  default: return 0;
  }
}

static int is_valid(struct pair *pair, const struct ibv_qp_attr *to, int mask) {
  if (mask & IBV_QP_PORT && to->port_num != 1) return 0;
  if (mask & IBV_QP_PKEY_INDEX && to->pkey_index != 0) return 0;
  if (mask & IBV_QP_PATH_MTU && (to->path_mtu < IBV_MTU_256 || to->path_mtu > IBV_MTU_4096))
    return 0;
  if (!(mask & IBV_QP_AV)) return 1;
  const union ibv_gid *peer = &to->ah_attr.grh.dgid;
  return to->ah_attr.is_global && has_gid(DEVICE(pair->qp.context), to->ah_attr.grh.sgid_index) &&
         (peer->halves[0] | peer->halves[1]);
}

static void take(struct ibv_qp_attr *into, const struct ibv_qp_attr *from, int mask) {
#define TAKE(bit, field) \
  if (mask & (bit)) into->field = from->field
  TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
  TAKE(IBV_QP_PKEY_INDEX, pkey_index);
  TAKE(IBV_QP_PORT, port_num);
  TAKE(IBV_QP_AV, ah_attr);
  TAKE(IBV_QP_PATH_MTU, path_mtu);
  TAKE(IBV_QP_TIMEOUT, timeout);
  TAKE(IBV_QP_RETRY_CNT, retry_cnt);
  TAKE(IBV_QP_RNR_RETRY, rnr_retry);
  TAKE(IBV_QP_RQ_PSN, rq_psn);
  TAKE(IBV_QP_SQ_PSN, sq_psn);
  TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
  TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
  TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
  TAKE(IBV_QP_DEST_QPN, dest_qp_num);
#undef TAKE
}

EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask) {
  struct pair *pair = PAIR(qp);
  LOCK(pair->lock);
  int from = pair->state, to = mask & IBV_QP_STATE ? attributes->qp_state : from;
  int has_all = from == to || (mask & needs(to)) == needs(to);
  int good = may_go(from, to) && has_all && is_valid(pair, attributes, mask);
  if (good) {
    take(&pair->attributes, attributes, mask);
    if (to == IBV_QPS_ERR)
      pair_fails(pair);
    else if (to == IBV_QPS_RESET && from != to)
      reset(pair);
    else
      pair->state = pair->qp.state = to;
  }
  UNLOCK(pair->lock);
  TRACE(1, "pair %06x: state %d to %d, peer %06x%s", qp->qp_num, from, to,
        pair->attributes.dest_qp_num, good ? "" : ", refused");
  if (!good) errno = EINVAL;
  return good ? 0 : EINVAL;
}

EXPORT int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *out, int mask,
                        struct ibv_qp_init_attr *made_with) {
  (void)mask;
  struct pair *pair = PAIR(qp);
  LOCK(pair->lock);
  *out = pair->attributes;
  out->qp_state = out->cur_qp_state = pair->state;
  out->cap = pair->made_with.cap;
  if (made_with) *made_with = pair->made_with;
  UNLOCK(pair->lock);
  return 0;
}

EXPORT int ibv_fork_init(void) { return 0; }

EXPORT void *ibv_qp_to_qp_ex(struct ibv_qp *qp) {
  (void)qp;
  return NULL; /* none is made with operations of its own */
}
