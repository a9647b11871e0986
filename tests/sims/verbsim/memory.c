#include "vsim.h"

pthread_mutex_t card = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t regions_idle = PTHREAD_COND_INITIALIZER;

/* Regions by their key, in chains. */
enum { CHAINS = 1024, CHAIN_SHIFT = 22, PAGE = 4096, AT_ONCE = 512 };
static struct region *regions[CHAINS];

void forget_regions(void) {
  pthread_mutex_init(&card, NULL);
  memset(regions, 0, sizeof regions);
}

/* --- protection domains --------------------------------------------------------------------- */

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  struct domain *domain = calloc(1, sizeof *domain);
  if (!domain) return fail_with(ENOMEM);
  domain->pd.context = context;
  ADD(CONTEXT(context)->uses, 1);
  return &domain->pd;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd) {
  if (DOMAIN(pd)->uses) return EBUSY;
  ADD(CONTEXT(pd->context)->uses, -1);
  free(pd);
  return 0;
}

/* --- regions -------------------------------------------------------------------------------- */

/* One byte of every page, as pinning would: asked of the kernel, so that a hole is no crash. */
int touch(uint64_t address, uint64_t length) {
  char sink[AT_ONCE];
  struct iovec here[AT_ONCE], there[AT_ONCE];
  uint64_t end = address + length;
  while (address < end) {
    unsigned long count = 0;
    for (; count < AT_ONCE && address < end; count++) {
      here[count] = (struct iovec){sink + count, 1};
      there[count] = (struct iovec){(void *)address, 1};
      address = (address | (PAGE - 1)) + 1;
    }
    if (process_vm_readv(getpid(), here, count, there, count, 0) != (ssize_t)count)
      return errno == EPERM ? EPERM : EFAULT;
  }
  return 0;
}

/* What a driver would refuse, and what a test wants refused: an errno, or 0. */
static int refusal(const char *address, size_t length, unsigned access) {
  const unsigned writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if (hooks.fail_regions > 0) {
    ADD(hooks.fail_regions, -1);
    return hooks.region_errno;
  }
  if (!length || address + length < address) return EINVAL;
  if (access & writes && !(access & IBV_ACCESS_LOCAL_WRITE)) return EINVAL;
  if (settings.max_region && length > (size_t)settings.max_region) return (int)settings.refusal;
  if (access & (unsigned)settings.refused_access) return (int)settings.refusal;
  return touch((uint64_t)address, length);
}

static struct region *with_key(uint32_t key) {
  struct region *region = regions[key >> CHAIN_SHIFT];
  while (region && region->mr.lkey != key) region = region->next;
  return region;
}

/* With `card` held. Keys differ between processes, so that one that is mixed up is noticed. */
static uint32_t next_key(void) {
  static uint32_t key;
  if (!key) key = (uint32_t)getpid() * 2654435761u;
  do key = key * 1664525u + 1013904223u;
  while (with_key(key));
  return key;
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length,
                                       uint64_t iova, unsigned access) {
  int error = refusal(address, length, access);
  struct region *region = error ? NULL : calloc(1, sizeof *region);
  if (!region) return fail_with(error ? error : ENOMEM);
  region->mr =
      (struct ibv_mr){.context = pd->context, .pd = pd, .addr = address, .length = length};
  region->iova = iova;
  region->access = access;
  LOCK(card);
  uint32_t key = next_key();
  region->mr.lkey = region->mr.rkey = region->mr.handle = key;
  region->next = regions[key >> CHAIN_SHIFT];
  regions[key >> CHAIN_SHIFT] = region;
  UNLOCK(card);
  ADD(DOMAIN(pd)->uses, 1);
  ADD(counters.regions, 1);
  TRACE(1, "region %x: %p, %zu bytes, access %x", key, address, length, access);
  return &region->mr;
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access) {
  return ibv_reg_mr_iova2(pd, address, length, (uintptr_t)address, (unsigned)access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length,
                                      uint64_t iova, int access) {
  return ibv_reg_mr_iova2(pd, address, length, iova, (unsigned)access);
}

EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
                                        uint64_t iova, int fd, int access) {
  (void)pd, (void)offset, (void)length, (void)iova, (void)fd, (void)access;
  return fail_with(EOPNOTSUPP);
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr) {
  struct region *region = (struct region *)mr;
  LOCK(card);
  struct region **place = &regions[mr->lkey >> CHAIN_SHIFT];
  while (*place && *place != region) place = &(*place)->next;
  if (*place) *place = region->next;
  while (region->busy) pthread_cond_wait(&regions_idle, &card); /* a peer may be copying */
  UNLOCK(card);
  ADD(DOMAIN(mr->pd)->uses, -1);
  ADD(counters.regions, -1);
  TRACE(1, "region %x is gone", mr->lkey);
  free(region);
  return 0;
}

struct region *find_region(uint32_t key, struct ibv_pd *pd, uint64_t address, uint64_t length,
                           unsigned access, uint64_t *here) {
  struct region *region = with_key(key);
  if (!region || region->mr.pd != pd || (region->access & access) != access) return NULL;
  if (address < region->iova || length > region->mr.length) return NULL;
  if (address - region->iova > region->mr.length - length) return NULL;
  *here = (uint64_t)region->mr.addr + (address - region->iova);
  return region;
}
