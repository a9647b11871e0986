#include "vsim.h"

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
  struct channel *made = calloc(1, sizeof *made);
  if (!made || events_init(&made->events) < 0) {
    free(made);
    return NULL;
  }
  made->channel.context = context;
  made->channel.fd = made->events.fd;
  ADD(CONTEXT(context)->uses, 1);
  return &made->channel;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
  if (channel->refcnt) return EBUSY;
  ADD(CONTEXT(channel->context)->uses, -1);
  events_close(&((struct channel *)channel)->events);
  free(channel);
  return 0;
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int wanted, void *cq_context,
                                    struct ibv_comp_channel *channel, int vector) {
  if (wanted < 1 || wanted > settings.max_cqe) return fail_with(EINVAL);
  if (vector < 0 || vector >= context->num_comp_vectors) return fail_with(EINVAL);
  uint32_t size = 1;
  while (size < (uint32_t)wanted) size *= 2;
  struct completions *made = calloc(1, sizeof *made);
  if (!made || !(made->ring = calloc(size, sizeof *made->ring))) {
    free(made);
    return fail_with(ENOMEM);
  }
  made->size = size;
  made->cq = (struct ibv_cq){
      .context = context, .channel = channel, .cq_context = cq_context, .cqe = (int)size};
  pthread_mutex_init(&made->cq.mutex, NULL);
  pthread_cond_init(&made->cq.cond, NULL);
  pthread_mutex_init(&made->lock, NULL);
  if (channel) ADD(channel->refcnt, 1);
  ADD(CONTEXT(context)->uses, 1);
  return &made->cq;
}

/* Waits, as it must, until every event of it that was taken is acknowledged. */
EXPORT int ibv_destroy_cq(struct ibv_cq *cq) {
  struct completions *gone = COMPLETIONS(cq);
  if (gone->uses) return EBUSY;
  if (cq->channel) events_purge(&((struct channel *)cq->channel)->events, gone);
  events_purge(&CONTEXT(cq->context)->events, gone);
  LOCK(cq->mutex);
  while (cq->comp_events_completed != gone->events_taken ||
         cq->async_events_completed != gone->async_taken)
    pthread_cond_wait(&cq->cond, &cq->mutex);
  UNLOCK(cq->mutex);
  if (cq->channel) ADD(cq->channel->refcnt, -1);
  ADD(CONTEXT(cq->context)->uses, -1);
  free(gone->ring);
  free(gone);
  return 0;
}

EXPORT int ibv_resize_cq(struct ibv_cq *cq, int size) { return size <= cq->cqe ? 0 : ENOSYS; }

/* --- events of it --------------------------------------------------------------------------- */

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context) {
  struct event *event = events_take(&((struct channel *)channel)->events);
  if (!event) return -1;
  struct completions *queue = event->object;
  free(event);
  ADD(queue->events_taken, 1);
  *cq = &queue->cq;
  *context = queue->cq.cq_context;
  return 0;
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count) {
  LOCK(cq->mutex);
  cq->comp_events_completed += count;
  pthread_cond_broadcast(&cq->cond);
  UNLOCK(cq->mutex);
}

/* As with a card, what completed before this raises no event. */
int req_notify_cq(struct ibv_cq *cq, int solicited) {
  struct completions *queue = COMPLETIONS(cq);
  if (!cq->channel) return EINVAL;
  LOCK(queue->lock);
  queue->armed = solicited && queue->armed != FOR_ANY ? FOR_SOLICITED : FOR_ANY;
  UNLOCK(queue->lock);
  return 0;
}

/* --- completions ---------------------------------------------------------------------------- */

static void push(struct ibv_cq *cq, struct completion what, int solicited) {
  struct completions *queue = COMPLETIONS(cq);
  int first_overrun = 0;
  if (what.wc.status == IBV_WC_WR_FLUSH_ERR) ADD(counters.flushed, 1);
  LOCK(queue->lock);
  if (queue->tail - queue->head == queue->size) {
    first_overrun = !queue->overrun;
    queue->overrun = 1;
  } else {
    queue->ring[queue->tail & (queue->size - 1)] = what;
    __atomic_store_n(&queue->tail, queue->tail + 1, __ATOMIC_RELEASE);
  }
  int wanted =
      queue->armed == FOR_ANY || (queue->armed == FOR_SOLICITED && (solicited || what.wc.status));
  if (wanted) {
    queue->armed = NOT_ARMED;
    events_put(&((struct channel *)cq->channel)->events, queue, (struct ibv_async_event){0});
  }
  UNLOCK(queue->lock);
  if (first_overrun) tell(cq->context, IBV_EVENT_CQ_ERR, queue, 0);
}

void complete(struct ibv_cq *cq, struct pair *pair, const struct ibv_wc *wc, int solicited) {
  push(cq, (struct completion){.wc = *wc, .pair = pair}, solicited);
}

void complete_send(struct pair *pair, const struct ibv_wc *wc, uint32_t next_slot) {
  struct completion what = {.wc = *wc, .pair = pair, .next_slot = next_slot, .is_send = 1};
  push(pair->qp.send_cq, what, 0);
}

int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *out) {
  struct completions *queue = COMPLETIONS(cq);
  /* Callers spin on it: an empty queue must cost no lock. */
  if (__atomic_load_n(&queue->tail, __ATOMIC_ACQUIRE) == queue->head) return 0;
  int taken = 0;
  LOCK(queue->lock);
  for (; taken < count && queue->head != queue->tail; taken++, queue->head++) {
    struct completion *one = &queue->ring[queue->head & (queue->size - 1)];
    out[taken] = one->wc;
    if (one->is_send) __atomic_store_n(&one->pair->send_tail, one->next_slot, __ATOMIC_RELEASE);
  }
  UNLOCK(queue->lock);
  return taken;
}

void purge_completions(struct ibv_cq *cq, struct pair *pair) {
  struct completions *queue = COMPLETIONS(cq);
  uint32_t mask = queue->size - 1;
  LOCK(queue->lock);
  uint32_t kept = queue->head;
  for (uint32_t at = queue->head; at != queue->tail; at++)
    if (queue->ring[at & mask].pair != pair) queue->ring[kept++ & mask] = queue->ring[at & mask];
  queue->tail = kept;
  UNLOCK(queue->lock);
}
