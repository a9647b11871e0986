/* A handle names the exporter's descriptor in /proc, and the inode behind it: whoever may look
 * into that process can map the same pages, and a number that was used again since is told apart.
 */
#include "sim.h"
#include <fcntl.h>
#include <sys/stat.h>

#define MAGIC "HIPSIM1"

struct handle {
  char magic[8];
  int32_t pid;
  int32_t fd;
  int32_t physical;
  int32_t unused;
  uint64_t size;
  uint64_t inode;
  uint64_t reserved[3];
};
_Static_assert(sizeof(struct handle) == sizeof(hipIpcMemHandle_t), "a handle is 64 bytes");

EXPORT hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *out, void *pointer) {
  struct handle handle = {.magic = MAGIC, .pid = getpid(), .fd = -1};
  sim_lock_memory();
  struct allocation *found = sim_find(pointer);
  if (found && found->kind == DEVICE_MEMORY) {
    handle.fd = found->fd;
    handle.size = found->size;
    handle.inode = found->inode;
    handle.physical = sim.physical[found->device];
  }
  sim_unlock_memory();
  if (handle.fd < 0) return sim_return(hipErrorInvalidValue);
  memcpy(out, &handle, sizeof handle);
  return hipSuccess;
}

/* The number under which this process knows a device; its own one if it does not see that device.
 */
static int visible(int physical) {
  for (int device = 0; device < sim.devices; device++)
    if (sim.physical[device] == physical) return device;
  return sim_current;
}

static void *map(const struct handle *handle) {
  char path[64];
  struct stat file;
  void *base = NULL;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", handle->pid, handle->fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd >= 0 && !fstat(fd, &file) && file.st_ino == handle->inode)
    base = sim_map(fd, handle->size);
  if (fd >= 0) close(fd);
  TRACE("import %s: %p", path, base);
  return base;
}

EXPORT hipError_t hipIpcOpenMemHandle(void **out, hipIpcMemHandle_t raw, unsigned flags) {
  (void)flags;
  struct handle handle;
  memcpy(&handle, &raw, sizeof handle);
  sim_init();
  if (memcmp(handle.magic, MAGIC, sizeof handle.magic)) return sim_return(hipErrorInvalidValue);
  if (handle.pid == getpid())
    return sim_return(hipErrorInvalidContext); /* real ones refuse it too */
  sim_lock_memory();
  struct allocation *known = sim_find_imported(handle.inode);
  if (known) { /* opened again: the same address, counted */
    known->uses++;
    *out = known->base;
  } else if ((*out = map(&handle))) {
    int device = visible(handle.physical);
    sim_insert((struct allocation){*out, handle.size, device, -1, IMPORTED, 1, handle.inode});
    COUNT(imports, 1);
  }
  sim_unlock_memory();
  return *out ? hipSuccess : sim_return(hipErrorMapFailed);
}

EXPORT hipError_t hipIpcCloseMemHandle(void *pointer) { return sim_free(pointer, IMPORTED); }
