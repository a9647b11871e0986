#include "vsim.h"

struct send *send_slot(struct pair *pair, uint32_t number) {
  return (struct send *)(pair->sends + number % pair->send_size * pair->send_stride);
}

int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  struct pair *pair = PAIR(qp);
  int error = 0;
  LOCK(pair->lock);
  if (pair->state == IBV_QPS_RESET || qp->srq) {
    *bad = wr;
    error = EINVAL;
  } else if (pair->state == IBV_QPS_ERR) {
    for (; wr; wr = wr->next) {
      struct ibv_wc wc = {.wr_id = wr->wr_id,
                          .status = IBV_WC_WR_FLUSH_ERR,
                          .opcode = IBV_WC_RECV,
                          .qp_num = qp->qp_num};
      complete(qp->recv_cq, pair, &wc, 0);
    }
  } else {
    error = receives_post(&pair->receives, wr, bad);
  }
  UNLOCK(pair->lock);
  return error;
}

static uint64_t length_of(const struct ibv_send_wr *wr) {
  uint64_t length = 0;
  for (int i = 0; i < wr->num_sge; i++) length += wr->sg_list[i].length;
  return length;
}

static int is_inline(const struct ibv_send_wr *wr) {
  return wr->send_flags & IBV_SEND_INLINE && wr->opcode != IBV_WR_RDMA_READ;
}

static int refusal(struct pair *pair, const struct ibv_send_wr *wr) {
  const struct ibv_qp_cap *cap = &pair->made_with.cap;
  uint32_t used = pair->send_head - __atomic_load_n(&pair->send_tail, __ATOMIC_ACQUIRE);
  if (used >= pair->send_size) return ENOMEM;
  if (wr->num_sge < 0 || (uint32_t)wr->num_sge > cap->max_send_sge) return EINVAL;
  if (wr->opcode > IBV_WR_RDMA_READ) return EINVAL; /* atomics and what came after them */
  return is_inline(wr) && length_of(wr) > cap->max_inline_data ? ENOMEM : 0;
}

/* Copied now, because the caller may use its buffer again at once. */
static void take_inline(struct send *send, const struct ibv_send_wr *wr) {
  if (!send->inlined && !(send->inlined = malloc(MAX_INLINE))) abort();
  char *end = send->inlined;
  for (int i = 0; i < wr->num_sge; i++) {
    memcpy(end, (void *)wr->sg_list[i].addr, wr->sg_list[i].length);
    end += wr->sg_list[i].length;
  }
  send->sges = 1;
  send->sge[0] = (struct ibv_sge){(uint64_t)send->inlined, (uint32_t)send->length, 0};
}

/* A delay is a latency: requests that queue have it at the same time. A rate is an occupancy. */
static uint64_t due(struct device *device, uint64_t length) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  uint64_t now = now_ns();
  uint64_t at = settings.delay_us ? now + (uint64_t)settings.delay_us * 1000 : 0;
  if (!settings.gbps) return at;
  LOCK(lock);
  if (at < now) at = now;
  if (at < device->busy_until) at = device->busy_until;
  device->busy_until = at += length * 8 / (uint64_t)settings.gbps;
  UNLOCK(lock);
  return at;
}

static void enqueue(struct pair *pair, const struct ibv_send_wr *wr) {
  struct send *send = send_slot(pair, pair->send_head);
  send->wr_id = wr->wr_id;
  send->opcode = (uint8_t)wr->opcode;
  send->flags = (uint8_t)wr->send_flags;
  send->immediate = wr->imm_data;
  send->length = length_of(wr);
  send->remote = wr->rdma.remote_addr;
  send->rkey = wr->rdma.rkey;
  if (is_inline(wr)) {
    take_inline(send, wr);
  } else {
    send->flags &= (uint8_t)~IBV_SEND_INLINE;
    send->sges = (uint8_t)wr->num_sge;
    size_t size = (size_t)wr->num_sge * sizeof *send->sge;
    if (size) memcpy(send->sge, wr->sg_list, size);
  }
  send->due_ns = due(DEVICE(pair->qp.context), send->length);
  pair->send_head++;
  ADD(counters.requests, 1);
}

static void wake_requester(struct pair *pair) {
  if (pair->send_head == pair->send_done) return;
  if (!pair->has_thread && !start_thread(&pair->thread, request_for_ever, pair))
    pair->has_thread = 1;
  pthread_cond_broadcast(&pair->changed);
}

/* In the error state posting works, and what is posted is flushed. */
int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  struct pair *pair = PAIR(qp);
  LOCK(pair->lock);
  int error = pair->state != IBV_QPS_RTS && pair->state != IBV_QPS_ERR ? EINVAL : 0;
  for (; wr && !error; wr = wr->next) {
    error = refusal(pair, wr);
    if (error) break;
    enqueue(pair, wr);
  }
  if (error) *bad = wr;
  wake_requester(pair);
  UNLOCK(pair->lock);
  return error;
}
