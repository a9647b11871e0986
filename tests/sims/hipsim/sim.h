/* What the parts of the runtime over host memory share.
 *
 * devices.c   settings from the environment, devices, properties, errors
 * memory.c    allocations and what is known of a pointer
 * ipc.c       handles by which another process maps an allocation
 * work.c      streams, events and copies
 * hooks.c     what tests may set and count
 */
#ifndef HIPSIM_SIM_H
#define HIPSIM_SIM_H
#define _GNU_SOURCE
#include "hip_abi.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define MAX_DEVICES 16

struct settings {
  int devices;               /* how many this process may see */
  int physical[MAX_DEVICES]; /* which ones: HIP_VISIBLE_DEVICES renumbers them */
  int peer_access;
  int inline_copies;
  int trace;
  size_t memory; /* bytes of each device */
};

extern struct settings sim;
extern __thread int sim_current; /* the calling thread's device */

void sim_init(void);
int sim_no_such_device(int device);
hipError_t sim_return(hipError_t error); /* keeps it for hipGetLastError */

#define TRACE(...)                               \
  do {                                           \
    if (sim.trace) {                             \
      fprintf(stderr, "[hipsim %d] ", getpid()); \
      fprintf(stderr, __VA_ARGS__);              \
      fputc('\n', stderr);                       \
    }                                            \
  } while (0)

enum kind { DEVICE_MEMORY, HOST_MEMORY, IMPORTED };

struct allocation {
  char *base;
  size_t size;
  int device;
  int fd;
  enum kind kind;
  int uses;
  ino_t inode; /* tells a descriptor that was closed and given away from the one meant */
};

/* The table is locked between these two; what `sim_find` returns is valid that long. */
void sim_lock_memory(void);
void sim_unlock_memory(void);
struct allocation *sim_find(const void *pointer);
struct allocation *sim_find_imported(ino_t inode);
void sim_insert(struct allocation allocation);
void *sim_map(int fd, size_t size);

enum reach { UNKNOWN, INSIDE, OVERRUNS };
enum reach sim_reach(const void *pointer, size_t size);
hipError_t sim_free(void *pointer, enum kind kind);
void sim_count_memory(long *on_devices, long *imported);
void sim_memory_after_fork(void);

void sim_drain(void); /* wait for everything that was submitted */
void sim_work_after_fork(void);

struct work_settings {
  volatile int delay_us;
  volatile int hold;     /* copies wait while it is set */
  volatile long shuffle; /* a seed, or 0 */
  volatile int skip, fail, error;
};
extern struct work_settings work_settings;
void sim_hold(int on);

struct counters {
  long copies, bytes, streams, events, imports;
};
extern struct counters counters;
#define COUNT(what, by) __atomic_add_fetch(&counters.what, (by), __ATOMIC_RELAXED)
#endif
