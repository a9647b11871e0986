/* The sending side. One request at a time, in order; what is lost is sent again for as long as the
 * pair was told, and then it fails: (retry_cnt + 1) times 4.096 us * 2^timeout. */
#include "vsim.h"
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#define MS ((uint64_t)1000000)
enum { NOT_READY_US = 640 }; /* the pause for min_rnr_timer 12; others are not modelled */

static int is_leaving(struct pair *pair) { return pair->stop || pair->state != IBV_QPS_RTS; }

/* Sleep until then, or until the pair leaves its state. */
static void nap(struct pair *pair, uint64_t until) {
  struct timespec at = as_timespec(until);
  LOCK(pair->lock);
  while (!is_leaving(pair) && now_ns() < until)
    pthread_cond_timedwait(&pair->changed, &pair->lock, &at);
  UNLOCK(pair->lock);
}

/* --- one attempt ---------------------------------------------------------------------------- */

/* With `card` held: our side of a request, checked and turned into addresses; a region for each
 * address in `held`. -1 if one of them is not ours to use. */
static int resolve(struct pair *pair, struct send *send, struct request *request,
                   struct region *held[MAX_SGES]) {
  unsigned access = send->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;
  int count = 0;
  if (send->flags & IBV_SEND_INLINE) {
    request->sge[0] = send->sge[0];
    return 0;
  }
  for (int i = 0; i < send->sges; i++) {
    struct ibv_sge *sge = &send->sge[i];
    uint64_t here = 0;
    if (sge->length) {
      held[count] = find_region(sge->lkey, pair->qp.pd, sge->addr, sge->length, access, &here);
      if (!held[count++]) return -1;
    }
    request->sge[i] = (struct ibv_sge){here, sge->length, 0};
  }
  return count;
}

static int connect_to(struct pair *pair, uint32_t number) {
  struct sockaddr_un name;
  struct timeval patience = {0, 200000};
  if (pair->to_peer >= 0) return 0;
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (connect(fd, (struct sockaddr *)&name, name_of_pair(&name, number))) {
    close(fd);
    return -1;
  }
  LOCK(pair->lock);
  pair->to_peer = fd;
  UNLOCK(pair->lock);
  return 0;
}

/* Who leaves waits a little longer for an answer: until then the peer may be moving our bytes. */
static enum answer await(struct pair *pair) {
  uint64_t end = now_ns() + (uint64_t)settings.stall_ms * MS;
  struct pollfd answer = {pair->to_peer, POLLIN, 0};
  int32_t said = LOST;
  int ready = 0;
  while (!ready && now_ns() < end) {
    ready = poll(&answer, 1, 20);
    if (!ready && is_leaving(pair) && end > now_ns() + 500 * MS) end = now_ns() + 500 * MS;
  }
  if (ready == 1 && recv(pair->to_peer, &said, sizeof said, MSG_DONTWAIT) == sizeof said)
    return (enum answer)said;
  disconnect(pair);
  TRACE(1, "pair %06x: no answer", pair->qp.qp_num);
  return ready ? LOST : STALLED;
}

static enum answer ask(struct pair *pair, const struct request *request) {
  size_t size = size_of_request(request);
  if (send(pair->to_peer, request, size, MSG_NOSIGNAL) == (ssize_t)size) return await(pair);
  disconnect(pair);
  return LOST;
}

/* The regions are held only while a peer may touch them. */
static enum answer ask_holding(struct pair *pair, struct send *send, struct request *request) {
  struct region *held[MAX_SGES];
  LOCK(card);
  int count = resolve(pair, send, request, held);
  for (int i = 0; i < count; i++) held[i]->busy++;
  UNLOCK(card);
  if (count < 0) return LOCAL_FAULT;
  enum answer answer = ask(pair, request);
  LOCK(card);
  for (int i = 0; i < count; i++) held[i]->busy--;
  pthread_cond_broadcast(&regions_idle);
  UNLOCK(card);
  return answer;
}

/* A peer within this process needs no talk with ourselves; *is_here says whether it was one. */
static enum answer ask_here(struct pair *pair, struct send *send, struct request *request,
                            int *is_here) {
  struct region *held[MAX_SGES];
  enum answer answer = LOCAL_FAULT;
  LOCK(card);
  struct pair *peer = find_pair(request->to_pair);
  *is_here = peer != NULL;
  if (peer && resolve(pair, send, request, held) >= 0) {
    answer = respond(peer, request, getpid());
    ADD(counters.local, 1);
  }
  UNLOCK(card);
  return answer;
}

static enum answer attempt(struct pair *pair, struct send *send, struct request *request) {
  int is_here;
  if (!DEVICE(pair->qp.context)->up) return LOST;
  enum answer answer = ask_here(pair, send, request, &is_here);
  if (is_here) return answer;
  if (connect_to(pair, request->to_pair)) return LOST;
  return ask_holding(pair, send, request);
}

/* --- attempts until it ends ----------------------------------------------------------------- */

static void describe(struct pair *pair, struct send *send, struct request *out) {
  struct device *device = DEVICE(pair->qp.context);
  uint8_t gid = pair->attributes.ah_attr.grh.sgid_index;
  memset(out, 0, offsetof(struct request, sge));
  out->opcode = send->opcode;
  out->sges = send->sges;
  out->solicited = !!(send->flags & IBV_SEND_SOLICITED);
  out->to_pair = pair->attributes.dest_qp_num;
  out->from_pair = pair->qp.qp_num;
  out->psn = pair->attributes.sq_psn & 0xffffff;
  out->rkey = send->rkey;
  out->immediate = send->immediate;
  out->remote = send->remote;
  out->length = send->length;
  out->source = device->gid[gid];
  out->gid_type = device->gid_type[gid];
  out->destination = pair->attributes.ah_attr.grh.dgid;
}

/* How long a request that is lost is sent again; never given up with a timeout of 0. */
static uint64_t patience(struct pair *pair) {
  const struct ibv_qp_attr *told = &pair->attributes;
  if (settings.retry_ms >= 0) return (uint64_t)settings.retry_ms * MS;
  if (!told->timeout) return UINT64_MAX / 2;
  return (uint64_t)(told->retry_cnt + 1) * (4096ull << told->timeout);
}

static enum ibv_wc_status repeat(struct pair *pair, struct send *send) {
  struct request request;
  uint64_t end = 0, all = patience(pair);
  int not_ready_left = pair->attributes.rnr_retry;
  describe(pair, send, &request);
  while (!is_leaving(pair)) {
    switch (attempt(pair, send, &request)) {
    case DONE: return IBV_WC_SUCCESS;
    case REFUSED_ACCESS: return IBV_WC_REM_ACCESS_ERR;
    case REFUSED_REQUEST: return IBV_WC_REM_INV_REQ_ERR;
    case REFUSED_OPERATION: return IBV_WC_REM_OP_ERR;
    case LOCAL_FAULT: return IBV_WC_LOC_PROT_ERR;
    case STALLED: /* that wait was as long as all repetitions */
      if (pair->attributes.timeout) return IBV_WC_RETRY_EXC_ERR;
      break;
    case NOT_READY:
      if (not_ready_left != 7 && not_ready_left-- == 0) return IBV_WC_RNR_RETRY_EXC_ERR;
      end = 0; /* 7 is for ever */
      nap(pair, now_ns() + NOT_READY_US * MS / 1000);
      break;
    case LOST:
      if (!end) end = now_ns() + all;
      if (now_ns() >= end) return IBV_WC_RETRY_EXC_ERR;
      nap(pair, now_ns() + (all > 20 * MS ? 5 * MS : MS));
      break;
    }
  }
  return IBV_WC_WR_FLUSH_ERR;
}

/* Whether a test wants this request to fail: *after its bytes have moved, or instead. */
static enum ibv_wc_status injected(int *after) {
  *after = hooks.fail_after;
  if (hooks.fail <= 0 || ADD(hooks.fail_skip, -1) >= 0 || ADD(hooks.fail, -1) < 0)
    return IBV_WC_SUCCESS;
  return (enum ibv_wc_status)hooks.fail_status;
}

static void wait_while_held(struct pair *pair) {
  while (hooks.hold && !is_leaving(pair)) nap(pair, now_ns() + MS);
}

static enum ibv_wc_status carry_out(struct pair *pair, struct send *send) {
  int after;
  if (send->due_ns > now_ns()) nap(pair, send->due_ns);
  wait_while_held(pair);
  enum ibv_wc_status wanted = injected(&after);
  if (wanted && !after) return wanted;
  if (send->length > (uint64_t)settings.max_message) return IBV_WC_LOC_LEN_ERR;
  enum ibv_wc_status status = repeat(pair, send);
  return status ? status : wanted;
}

/* --- the thread ----------------------------------------------------------------------------- */

static void report(struct pair *pair, struct send *send, enum ibv_wc_status status) {
  static const enum ibv_wc_opcode opcodes[] = {IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND,
                                               IBV_WC_SEND, IBV_WC_RDMA_READ};
  int is_wanted = pair->made_with.sq_sig_all || send->flags & IBV_SEND_SIGNALED;
  int is_root = status && status != IBV_WC_WR_FLUSH_ERR;
  TRACE(is_root ? 1 : 2, "pair %06x: operation %d, %lu bytes: %s", pair->qp.qp_num, send->opcode,
        send->length, ibv_wc_status_str(status));
  if (!status && !is_wanted) return;
  struct ibv_wc wc = {.wr_id = send->wr_id,
                      .status = status,
                      .opcode = opcodes[send->opcode],
                      .byte_len = (uint32_t)send->length,
                      .qp_num = pair->qp.qp_num,
                      .vendor_err = status ? 0x80u + (uint32_t)status : 0};
  complete_send(pair, &wc, pair->send_done);
}

void *request_for_ever(void *argument) {
  struct pair *pair = argument;
  begin_thread("verbsim-send");
  LOCK(pair->lock);
  while (!pair->stop) {
    if (pair->send_done == pair->send_head || pair->state == IBV_QPS_RESET) {
      pthread_cond_wait(&pair->changed, &pair->lock);
      continue;
    }
    struct send *send = send_slot(pair, pair->send_done);
    enum ibv_wc_status status = IBV_WC_WR_FLUSH_ERR;
    if (pair->state == IBV_QPS_RTS) {
      pair->busy = 1;
      UNLOCK(pair->lock);
      status = carry_out(pair, send);
      LOCK(pair->lock);
      pair->busy = 0;
      pthread_cond_broadcast(&pair->changed);
    }
    if (pair->stop || pair->state == IBV_QPS_RESET) continue;
    pair->send_done++;
    report(pair, send, status);
    if (status) pair_fails(pair);
  }
  UNLOCK(pair->lock);
  return NULL;
}
