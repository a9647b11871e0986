#include "vsim.h"

int receives_init(struct receives *queue, uint32_t size, uint32_t max_sge) {
  queue->size = size;
  queue->max_sge = max_sge;
  queue->stride = offsetof(struct receive, sge) + max_sge * sizeof(struct ibv_sge);
  if (size && !(queue->slots = calloc(size, queue->stride))) return ENOMEM;
  return 0;
}

static struct receive *slot(struct receives *queue, uint32_t number) {
  return (struct receive *)(queue->slots + number % queue->size * queue->stride);
}

static int refusal(struct receives *queue, struct ibv_recv_wr *wr) {
  if (wr->num_sge < 0 || (uint32_t)wr->num_sge > queue->max_sge) return EINVAL;
  return queue->head - queue->tail == queue->size ? ENOMEM : 0;
}

int receives_post(struct receives *queue, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  for (; wr; wr = wr->next) {
    int error = refusal(queue, wr);
    if (error) {
      *bad = wr;
      return error;
    }
    struct receive *receive = slot(queue, queue->head++);
    receive->wr_id = wr->wr_id;
    receive->sges = wr->num_sge;
    size_t size = (size_t)wr->num_sge * sizeof *receive->sge;
    if (size) memcpy(receive->sge, wr->sg_list, size);
  }
  return 0;
}

int receives_take(struct receives *queue, struct receive *out) {
  if (queue->head == queue->tail) return 0;
  memcpy(out, slot(queue, queue->tail++), queue->stride);
  return 1;
}

/* --- shared receive queues ------------------------------------------------------------------ */

EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *wanted) {
  uint32_t size = wanted->attr.max_wr, max_sge = wanted->attr.max_sge;
  if (!size || size > (uint32_t)settings.max_wr) return fail_with(EINVAL);
  if (max_sge > (uint32_t)settings.max_sge) return fail_with(EINVAL);
  struct shared_receives *made = calloc(1, sizeof *made);
  if (!made || receives_init(&made->queue, size, max_sge)) {
    free(made);
    return fail_with(ENOMEM);
  }
  made->srq =
      (struct ibv_srq){.context = pd->context, .srq_context = wanted->srq_context, .pd = pd};
  pthread_mutex_init(&made->srq.mutex, NULL);
  pthread_cond_init(&made->srq.cond, NULL);
  pthread_mutex_init(&made->lock, NULL);
  ADD(DOMAIN(pd)->uses, 1);
  return &made->srq;
}

EXPORT int ibv_destroy_srq(struct ibv_srq *srq) {
  struct shared_receives *gone = SHARED(srq);
  if (gone->uses) return EBUSY;
  ADD(DOMAIN(srq->pd)->uses, -1);
  free(gone->queue.slots);
  free(gone);
  return 0;
}

int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  struct shared_receives *shared = SHARED(srq);
  LOCK(shared->lock);
  int error = receives_post(&shared->queue, wr, bad);
  UNLOCK(shared->lock);
  return error;
}
