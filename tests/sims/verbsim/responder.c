/* The receiving side. Whose memory it is checks key, bounds, domain and access, under the lock
 * that deregistration takes: nothing is written after that. The bytes move once, by the kernel's
 * copy between processes (within one process too), so memory that is gone is an error and no
 * crash. */
#include "vsim.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* --- moving bytes --------------------------------------------------------------------------- */

struct span {
  struct iovec part[MAX_SGES];
  int count;
};

static void add(struct span *span, uint64_t address, uint64_t length) {
  if (length) span->part[span->count++] = (struct iovec){(void *)address, length};
}

static void skip(struct iovec **parts, int *count, size_t moved) {
  while (moved) {
    size_t step = moved < (*parts)->iov_len ? moved : (*parts)->iov_len;
    (*parts)->iov_base = (char *)(*parts)->iov_base + step;
    (*parts)->iov_len -= step;
    moved -= step;
    if ((*parts)->iov_len) continue;
    ++*parts;
    --*count;
  }
}

/* Who is to blame if the kernel does not move anything. */
static enum answer blame(const struct iovec *here, int count, pid_t pid) {
  if (errno == ESRCH) return LOST;
  if (errno == EPERM) {
    fprintf(stderr, "verbsim: process %d may not be read or written from here\n", pid);
    return REFUSED_OPERATION;
  }
  for (int i = 0; i < count; i++)
    if (touch((uint64_t)here[i].iov_base, here[i].iov_len)) return REFUSED_OPERATION;
  return LOCAL_FAULT; /* the requester's own memory is gone */
}

static enum answer move(struct span *here, struct span *there, uint64_t length, pid_t pid,
                        int is_read) {
  struct iovec *ours = here->part, *theirs = there->part;
  int ours_left = here->count, theirs_left = there->count;
  while (length) {
    unsigned long a = (unsigned long)ours_left, b = (unsigned long)theirs_left;
    ssize_t moved = is_read ? process_vm_writev(pid, ours, a, theirs, b, 0)
                            : process_vm_readv(pid, ours, a, theirs, b, 0);
    if (moved == 0) errno = EFAULT;
    if (moved <= 0) return blame(ours, ours_left, pid);
    ADD(counters.bytes, moved);
    length -= (uint64_t)moved;
    skip(&ours, &ours_left, (size_t)moved);
    skip(&theirs, &theirs_left, (size_t)moved);
  }
  return DONE;
}

/* --- one request ---------------------------------------------------------------------------- */

static int is_send(const struct request *request) {
  return request->opcode == IBV_WR_SEND || request->opcode == IBV_WR_SEND_WITH_IMM;
}

static int has_immediate(const struct request *request) {
  return request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || request->opcode == IBV_WR_SEND_WITH_IMM;
}

/* A card drops what does not come from the peer that the pair was told of. */
static int is_for(struct pair *pair, const struct request *request) {
  struct device *device = DEVICE(pair->qp.context);
  const struct ibv_qp_attr *told = &pair->attributes;
  uint8_t gid = told->ah_attr.grh.sgid_index;
  if (hooks.drop_all || !device->up) return 0;
  if (pair->state != IBV_QPS_RTR && pair->state != IBV_QPS_RTS) return 0;
  return request->from_pair == told->dest_qp_num && request->psn == (told->rq_psn & 0xffffff) &&
         request->gid_type == device->gid_type[gid] &&
         !memcmp(&request->destination, &device->gid[gid], sizeof(union ibv_gid)) &&
         !memcmp(&request->source, &told->ah_attr.grh.dgid, sizeof(union ibv_gid));
}

static int take_receive(struct pair *pair, struct receive *out) {
  if (!pair->qp.srq) return receives_take(&pair->receives, out);
  struct shared_receives *shared = SHARED(pair->qp.srq);
  LOCK(shared->lock);
  int taken = receives_take(&shared->queue, out);
  UNLOCK(shared->lock);
  return taken;
}

/* Nothing arrived after all. With `card` held nobody has taken the next one meanwhile. */
static void give_back_receive(struct pair *pair, struct ibv_wc *wc) {
  if (pair->qp.srq) {
    struct shared_receives *shared = SHARED(pair->qp.srq);
    LOCK(shared->lock);
    shared->queue.tail--;
    UNLOCK(shared->lock);
    return;
  }
  LOCK(pair->lock);
  if (pair->state != IBV_QPS_ERR) {
    pair->receives.tail--;
  } else {
    wc->status = IBV_WC_WR_FLUSH_ERR;
    complete(pair->qp.recv_cq, pair, wc, 0);
  }
  UNLOCK(pair->lock);
}

/* Where the bytes of a send go: an error of the receiver if its buffers will not do. */
static enum ibv_wc_status scatter(struct pair *pair, const struct receive *receive,
                                  uint64_t length, struct span *here) {
  for (int i = 0; i < receive->sges; i++) {
    const struct ibv_sge *sge = &receive->sge[i];
    uint64_t address;
    if (!sge->length) continue;
    if (!find_region(sge->lkey, pair->qp.pd, sge->addr, sge->length, IBV_ACCESS_LOCAL_WRITE,
                     &address))
      return IBV_WC_LOC_PROT_ERR;
    uint64_t part = sge->length < length ? sge->length : length;
    add(here, address, part);
    length -= part;
  }
  return length ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS;
}

/* A violation fails the responder's pair as well, and its application hears of it. */
static enum answer violated(struct pair *pair, enum answer answer, enum ibv_event_type event) {
  LOCK(pair->lock);
  pair_fails(pair);
  UNLOCK(pair->lock);
  ADD(counters.refusals, 1);
  tell(pair->qp.context, event, pair, 0);
  return answer;
}

/* Where the bytes of a write or a read are, and whether the peer may go there. */
static enum answer locate(struct pair *pair, const struct request *request, struct span *here) {
  int is_read = request->opcode == IBV_WR_RDMA_READ;
  unsigned access = is_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  uint64_t address;
  if (!(pair->attributes.qp_access_flags & access))
    return violated(pair, REFUSED_REQUEST, IBV_EVENT_QP_REQ_ERR);
  if (!request->length) return DONE;
  if (!find_region(request->rkey, pair->qp.pd, request->remote, request->length, access,
                   &address)) {
    TRACE(1, "pair %06x: key %x does not allow access %x to %lu bytes at %lx", pair->qp.qp_num,
          request->rkey, access, request->length, request->remote);
    return violated(pair, REFUSED_ACCESS, IBV_EVENT_QP_ACCESS_ERR);
  }
  add(here, address, request->length);
  return DONE;
}

static enum answer receiver_fails(struct pair *pair, struct ibv_wc *wc,
                                  const struct request *request) {
  complete(pair->qp.recv_cq, pair, wc, request->solicited);
  LOCK(pair->lock);
  pair_fails(pair);
  UNLOCK(pair->lock);
  ADD(counters.refusals, 1);
  return wc->status == IBV_WC_LOC_LEN_ERR ? REFUSED_REQUEST : REFUSED_OPERATION;
}

static struct ibv_wc received(struct pair *pair, const struct request *request,
                              const struct receive *receive) {
  return (struct ibv_wc){
      .wr_id = receive->wr_id,
      .opcode = is_send(request) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM,
      .byte_len = (uint32_t)request->length,
      .qp_num = pair->qp.qp_num,
      .src_qp = request->from_pair,
      .imm_data = request->immediate,
      .wc_flags = has_immediate(request) ? IBV_WC_WITH_IMM : 0,
  };
}

/* A request that was admitted, with the receive that it takes if it takes one. */
static enum answer perform(struct pair *pair, const struct request *request, pid_t from,
                           const struct receive *receive) {
  struct span here = {.count = 0}, there = {.count = 0};
  struct ibv_wc wc = {0};
  enum answer answer = DONE;
  if (receive) wc = received(pair, request, receive);
  for (int i = 0; i < request->sges; i++)
    add(&there, request->sge[i].addr, request->sge[i].length);
  if (is_send(request))
    wc.status = scatter(pair, receive, request->length, &here);
  else
    answer = locate(pair, request, &here);
  if (wc.status) return receiver_fails(pair, &wc, request);
  if (answer == DONE)
    answer = move(&here, &there, request->length, from, request->opcode == IBV_WR_RDMA_READ);
  if (answer == DONE) {
    ADD(*(is_send(request) ? &counters.sends_in : &counters.writes_in), 1);
    if (receive) complete(pair->qp.recv_cq, pair, &wc, request->solicited);
    return DONE;
  }
  if (receive) give_back_receive(pair, &wc);
  int is_ours = answer == REFUSED_OPERATION;
  return is_ours ? violated(pair, answer, IBV_EVENT_QP_FATAL) : answer;
}

enum answer respond(struct pair *pair, const struct request *request, pid_t from) {
  struct receive receive;
  int takes_receive = is_send(request) || has_immediate(request), has_one = 0;
  LOCK(pair->lock);
  int admitted = is_for(pair, request);
  if (admitted && takes_receive) has_one = take_receive(pair, &receive);
  UNLOCK(pair->lock);
  if (!admitted) {
    ADD(counters.drops, 1);
    return LOST;
  }
  if (takes_receive && !has_one) return NOT_READY;
  return perform(pair, request, from, has_one ? &receive : NULL);
}

/* --- the thread ----------------------------------------------------------------------------- */

/* The kernel says which process a peer is. */
static void accept_peer(struct pair *pair) {
  int fd = accept4(pair->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  struct ucred peer;
  socklen_t size = sizeof peer;
  if (fd < 0) return;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size)) {
    close(fd);
    return;
  }
  if (pair->from_peer >= 0) close(pair->from_peer);
  pair->from_peer = fd;
  pair->peer_pid = peer.pid;
  watch(fd, pair->qp.qp_num, 1);
}

static int is_whole(const struct request *request, ssize_t size) {
  return size >= (ssize_t)offsetof(struct request, sge) && request->sges <= MAX_SGES &&
         size == (ssize_t)size_of_request(request);
}

static void serve(struct pair *pair) {
  struct request request;
  if (pair->from_peer < 0) return;
  ssize_t size = recv(pair->from_peer, &request, sizeof request, 0);
  if (size < 0 && errno == EAGAIN) return;
  struct pollfd gone = {pair->from_peer, POLLRDHUP, 0};
  poll(&gone, 1, 0); /* who gave up must not be written to any more */
  if (is_whole(&request, size) && !gone.revents) {
    int32_t answer = respond(pair, &request, pair->peer_pid);
    if (send(pair->from_peer, &answer, sizeof answer, MSG_NOSIGNAL) < 0)
      TRACE(1, "an answer is lost: %s", strerror(errno));
    return;
  }
  close(pair->from_peer);
  pair->from_peer = -1;
}

void *respond_for_ever(void *argument) {
  int epoll_fd = (int)(intptr_t)argument;
  struct epoll_event event;
  begin_thread("verbsim-recv");
  for (;;) {
    if (epoll_wait(epoll_fd, &event, 1, -1) < 1) {
      if (errno == EINTR) continue;
      return NULL;
    }
    LOCK(card);
    struct pair *pair = find_pair((uint32_t)(event.data.u64 >> 1));
    if (pair && event.data.u64 & 1)
      serve(pair);
    else if (pair)
      accept_peer(pair);
    UNLOCK(card);
  }
}
