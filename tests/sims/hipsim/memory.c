#include "sim.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define PAGE ((size_t)4096)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *table; /* sorted by base */
static size_t filled, room;
static size_t used[MAX_DEVICES];

void sim_lock_memory(void) { pthread_mutex_lock(&lock); }

void sim_unlock_memory(void) { pthread_mutex_unlock(&lock); }

void sim_memory_after_fork(void) { pthread_mutex_init(&lock, NULL); }

/* --- the table ------------------------------------------------------------------------------ */

/* The index of the first allocation that begins after the pointer. */
static size_t after(const char *pointer) {
  size_t low = 0, high = filled;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (table[middle].base <= pointer)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

struct allocation *sim_find(const void *pointer) {
  size_t index = after(pointer);
  if (!index) return NULL;
  struct allocation *found = &table[index - 1];
  return (const char *)pointer < found->base + found->size ? found : NULL;
}

struct allocation *sim_find_imported(ino_t inode) {
  for (size_t index = 0; index < filled; index++)
    if (table[index].kind == IMPORTED && table[index].inode == inode) return &table[index];
  return NULL;
}

void sim_insert(struct allocation allocation) {
  if (filled == room) {
    room = room ? 2 * room : 64;
    table = realloc(table, room * sizeof *table);
    if (!table) abort();
  }
  size_t index = after(allocation.base);
  memmove(table + index + 1, table + index, (filled - index) * sizeof *table);
  table[index] = allocation;
  filled++;
}

static void erase(struct allocation *allocation) {
  size_t index = (size_t)(allocation - table);
  filled--;
  memmove(table + index, table + index + 1, (filled - index) * sizeof *table);
}

enum reach sim_reach(const void *pointer, size_t size) {
  enum reach reach = UNKNOWN;
  sim_lock_memory();
  struct allocation *found = sim_find(pointer);
  if (found) {
    size_t left = (size_t)(found->base + found->size - (const char *)pointer);
    reach = size <= left ? INSIDE : OVERRUNS;
  }
  sim_unlock_memory();
  return reach;
}

void sim_count_memory(long *on_devices, long *imported) {
  *on_devices = *imported = 0;
  sim_lock_memory();
  for (size_t index = 0; index < filled; index++) {
    *on_devices += table[index].kind == DEVICE_MEMORY;
    *imported += table[index].kind == IMPORTED;
  }
  sim_unlock_memory();
}

/* --- pages ---------------------------------------------------------------------------------- */

static size_t in_pages(size_t size) { return (size + PAGE - 1) & ~(PAGE - 1); }

/* An inaccessible page follows, so that an overrun never lands unseen in a neighbour. */
void *sim_map(int fd, size_t size) {
  size_t length = in_pages(size);
  char *place =
      mmap(NULL, length + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return NULL;
  void *mapped = mmap(place, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped != MAP_FAILED) return mapped;
  munmap(place, length + PAGE);
  return NULL;
}

static void unmap(struct allocation *allocation) {
  munmap(allocation->base, in_pages(allocation->size) + PAGE);
  if (allocation->fd >= 0) close(allocation->fd);
}

/* A file in memory, so that another process can map the very same pages. */
static hipError_t allocate(void **out, size_t size, enum kind kind) {
  sim_init();
  if (!out) return sim_return(hipErrorInvalidValue);
  *out = NULL;
  if (!sim.devices) return sim_return(hipErrorNoDevice);
  if (!size) return hipSuccess;
  if (kind == DEVICE_MEMORY && used[sim_current] + size > sim.memory)
    return sim_return(hipErrorOutOfMemory);
  struct stat file;
  void *base = NULL;
  int fd = memfd_create("hipsim", MFD_CLOEXEC);
  if (fd >= 0 && !ftruncate(fd, (off_t)size) && !fstat(fd, &file)) base = sim_map(fd, size);
  if (!base) {
    if (fd >= 0) close(fd);
    return sim_return(hipErrorOutOfMemory);
  }
  sim_lock_memory();
  sim_insert((struct allocation){base, size, sim_current, fd, kind, 1, file.st_ino});
  if (kind == DEVICE_MEMORY) used[sim_current] += size;
  sim_unlock_memory();
  TRACE("allocate %zu bytes on device %d: %p", size, sim_current, base);
  *out = base;
  return hipSuccess;
}

hipError_t sim_free(void *pointer, enum kind kind) {
  if (!pointer) return hipSuccess;
  sim_drain(); /* as hipFree does */
  sim_lock_memory();
  struct allocation *found = sim_find(pointer);
  if (!found || found->base != pointer || found->kind != kind) {
    sim_unlock_memory();
    return sim_return(hipErrorInvalidValue);
  }
  if (--found->uses == 0) {
    unmap(found);
    if (kind == DEVICE_MEMORY) used[found->device] -= found->size;
    erase(found);
  }
  sim_unlock_memory();
  return hipSuccess;
}

/* --- what is exported ----------------------------------------------------------------------- */

EXPORT hipError_t hipMalloc(void **out, size_t size) { return allocate(out, size, DEVICE_MEMORY); }

EXPORT hipError_t hipExtMallocWithFlags(void **out, size_t size, unsigned flags) {
  (void)flags;
  return allocate(out, size, DEVICE_MEMORY);
}

EXPORT hipError_t hipFree(void *pointer) { return sim_free(pointer, DEVICE_MEMORY); }

EXPORT hipError_t hipHostMalloc(void **out, size_t size, unsigned flags) {
  (void)flags;
  return allocate(out, size, HOST_MEMORY);
}

EXPORT hipError_t hipHostFree(void *pointer) { return sim_free(pointer, HOST_MEMORY); }

EXPORT hipError_t hipHostRegister(void *pointer, size_t size, unsigned flags) {
  (void)pointer, (void)size, (void)flags; /* any host memory will do here */
  return hipSuccess;
}

EXPORT hipError_t hipHostUnregister(void *pointer) {
  (void)pointer;
  return hipSuccess;
}

EXPORT hipError_t hipHostGetDevicePointer(void **out, void *pointer, unsigned flags) {
  (void)flags;
  *out = pointer;
  return hipSuccess;
}

EXPORT hipError_t hipMemGetInfo(size_t *unused, size_t *total) {
  sim_init();
  *total = sim.memory;
  *unused = sim.memory - used[sim_current];
  return hipSuccess;
}

EXPORT hipError_t hipMemGetAddressRange(void **base, size_t *size, void *pointer) {
  sim_lock_memory();
  struct allocation *found = sim_find(pointer);
  if (found && base) *base = found->base;
  if (found && size) *size = found->size;
  sim_unlock_memory();
  return found ? hipSuccess : sim_return(hipErrorNotFound);
}

EXPORT hipError_t hipPointerGetAttributes(hipPointerAttribute_t *about, const void *pointer) {
  memset(about, 0, sizeof *about);
  about->device = -1;
  sim_lock_memory();
  struct allocation *found = sim_find(pointer);
  if (found) {
    int on_host = found->kind == HOST_MEMORY;
    about->type = on_host ? hipMemoryTypeHost : hipMemoryTypeDevice;
    about->device = found->device;
    about->devicePointer = (void *)pointer;
    about->hostPointer = on_host ? (void *)pointer : NULL;
  }
  sim_unlock_memory();
  return found ? hipSuccess : sim_return(hipErrorInvalidValue);
}
