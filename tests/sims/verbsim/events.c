#include "vsim.h"
#include <poll.h>
#include <sys/eventfd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct context *contexts;

/* --- queues of events ----------------------------------------------------------------------- */

int events_init(struct events *events) {
  memset(events, 0, sizeof *events);
  pthread_mutex_init(&events->lock, NULL);
  events->last = &events->first;
  events->fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  return events->fd;
}

void events_put(struct events *events, void *object, struct ibv_async_event said) {
  struct event *event = malloc(sizeof *event);
  if (!event) abort();
  *event = (struct event){NULL, object, said};
  LOCK(events->lock);
  *events->last = event;
  events->last = &event->next;
  UNLOCK(events->lock);
  if (write(events->fd, &(uint64_t){1}, 8) < 0) TRACE(1, "eventfd: %s", strerror(errno));
}

struct event *events_take(struct events *events) {
  for (uint64_t count;;) {
    if (read(events->fd, &count, 8) < 0) return NULL;
    LOCK(events->lock);
    struct event *event = events->first;
    if (event && !(events->first = event->next)) events->last = &events->first;
    UNLOCK(events->lock);
    if (event) return event;
    /* else it was purged between our two steps */
  }
}

static void uncount(struct events *events) {
  struct pollfd readable = {events->fd, POLLIN, 0};
  uint64_t count;
  if (poll(&readable, 1, 0) == 1 && read(events->fd, &count, 8) < 0)
    TRACE(1, "eventfd: %s", strerror(errno));
}

void events_purge(struct events *events, void *object) {
  LOCK(events->lock);
  struct event **place = &events->first, *event;
  while ((event = *place)) {
    if (event->object != object) {
      place = &event->next;
      continue;
    }
    *place = event->next;
    if (!event->next) events->last = place;
    free(event);
    uncount(events);
  }
  UNLOCK(events->lock);
}

void events_close(struct events *events) {
  while (events->first) events_purge(events, events->first->object);
  close(events->fd);
  events->fd = -1; /* whoever is left tells nobody, and never whose number it is next */
}

/* --- open devices --------------------------------------------------------------------------- */

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device) {
  struct context *made = calloc(1, sizeof *made);
  if (!made || events_init(&made->events) < 0) {
    free(made);
    return NULL;
  }
  made->device = (struct device *)device;
  made->verbs.sz = sizeof made->verbs;
  made->verbs.query_device_ex = query_device_ex;
  made->verbs.query_port = query_port;
  struct ibv_context *context = &made->verbs.context;
  context->device = device;
  context->cmd_fd = -1;
  context->async_fd = made->events.fd;
  context->num_comp_vectors = 1;
  context->abi_compat = VERBS_ABI_IS_EXTENDED;
  pthread_mutex_init(&context->mutex, NULL);
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->ops.post_srq_recv = post_srq_recv;
  context->ops.poll_cq = poll_cq;
  context->ops.req_notify_cq = req_notify_cq;
  LOCK(lock);
  made->next = contexts;
  contexts = made;
  UNLOCK(lock);
  return context;
}

EXPORT int ibv_close_device(struct ibv_context *context) {
  struct context *closed = CONTEXT(context);
  LOCK(lock);
  struct context **place = &contexts;
  while (*place && *place != closed) place = &(*place)->next;
  if (*place) *place = closed->next;
  UNLOCK(lock);
  events_close(&closed->events); /* the real one closes its descriptors whatever is left, too */
  if (closed->uses) /* a leak is better than a leaked pair that points at freed memory */
    TRACE(1, "%s closed with %d objects left", context->device->name, closed->uses);
  else
    free(closed);
  return 0;
}

void forget_contexts(void) {
  pthread_mutex_init(&lock, NULL);
  contexts = NULL;
}

/* --- what cards tell ------------------------------------------------------------------------ */

void tell(struct ibv_context *context, enum ibv_event_type type, void *object, int port) {
  struct ibv_async_event said = {.event_type = type};
  if (object)
    said.element.object = object;
  else
    said.element.port_num = port;
  TRACE(1, "%s: %s", context->device->name, ibv_event_type_str(type));
  events_put(&CONTEXT(context)->events, object, said);
}

int tell_all(struct device *device, enum ibv_event_type type) {
  int count = 0;
  LOCK(lock);
  for (struct context *one = contexts; one; one = one->next) {
    if (one->device != device) continue;
    tell(&one->verbs.context, type, NULL, 1);
    count++;
  }
  UNLOCK(lock);
  return count;
}

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *out) {
  struct event *event = events_take(&CONTEXT(context)->events);
  if (!event) return -1;
  *out = event->said;
  if (event->object && out->event_type == IBV_EVENT_CQ_ERR)
    ADD(COMPLETIONS(event->object)->async_taken, 1);
  else if (event->object)
    ADD(PAIR(event->object)->events_taken, 1);
  free(event);
  return 0;
}

static void acknowledge(pthread_mutex_t *mutex, pthread_cond_t *condition, uint32_t *count) {
  pthread_mutex_lock(mutex);
  ++*count;
  pthread_cond_broadcast(condition);
  pthread_mutex_unlock(mutex);
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *event) {
  struct ibv_cq *cq = event->element.cq;
  struct ibv_qp *qp = event->element.qp;
  switch (event->event_type) {
  case IBV_EVENT_CQ_ERR: acknowledge(&cq->mutex, &cq->cond, &cq->async_events_completed); break;
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
  case IBV_EVENT_COMM_EST:
  case IBV_EVENT_SQ_DRAINED:
  case IBV_EVENT_PATH_MIG:
  case IBV_EVENT_PATH_MIG_ERR:
  case IBV_EVENT_QP_LAST_WQE_REACHED:
    acknowledge(&qp->mutex, &qp->cond, &qp->events_completed);
    break;
  default: break; /* of a port or a device: nobody waits for it */
  }
}
