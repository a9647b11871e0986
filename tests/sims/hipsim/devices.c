#include "sim.h"
#include <stdlib.h>

struct settings sim = {.devices = -1};
__thread int sim_current;
static __thread hipError_t last_error;

enum { FIRST_BUS = 0xC1 }; /* device n is at PCI address 0000:<FIRST_BUS + n>:00.0 */

static long setting(const char *name, long otherwise) {
  const char *value = getenv(name);
  return value && *value ? strtol(value, NULL, 0) : otherwise;
}

/* As ROCm reads it: the first number that names no device ends the list. */
static int choose_visible(const char *list, int present) {
  int count = 0;
  while (*list && count < MAX_DEVICES) {
    char *end;
    long device = strtol(list, &end, 10);
    if (end == list || device < 0 || device >= present) break;
    sim.physical[count++] = (int)device;
    list = *end == ',' ? end + 1 : end;
  }
  return count;
}

static void after_fork(void) {
  sim_memory_after_fork();
  sim_work_after_fork();
}

static void read_settings(void) {
  long present = setting("HIPSIM_DEVICES", 2);
  if (present > MAX_DEVICES) present = MAX_DEVICES;
  sim.peer_access = (int)setting("HIPSIM_P2P", 1);
  sim.inline_copies = !setting("HIPSIM_ASYNC", 1);
  sim.trace = (int)setting("HIPSIM_TRACE", 0);
  sim.memory = (size_t)setting("HIPSIM_MEM_MB", 8192) << 20;
  work_settings.delay_us = (int)setting("HIPSIM_DELAY_US", 0);
  work_settings.shuffle = setting("HIPSIM_SHUFFLE", 0);
  const char *visible = getenv("HIP_VISIBLE_DEVICES");
  if (visible) {
    sim.devices = choose_visible(visible, (int)present);
  } else {
    for (int device = 0; device < present; device++) sim.physical[device] = device;
    sim.devices = (int)present;
  }
  pthread_atfork(NULL, NULL, after_fork);
}

void sim_init(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_settings);
}

int sim_no_such_device(int device) {
  sim_init();
  return device < 0 || device >= sim.devices;
}

hipError_t sim_return(hipError_t error) {
  if (error) last_error = error;
  return error;
}

EXPORT hipError_t hipGetLastError(void) {
  hipError_t error = last_error;
  last_error = hipSuccess;
  return error;
}

EXPORT const char *hipGetErrorString(hipError_t error) { return hip_error_string(error); }

EXPORT hipError_t hipRuntimeGetVersion(int *version) {
  *version = 70200000;
  return hipSuccess;
}

EXPORT hipError_t hipGetDeviceCount(int *count) {
  sim_init();
  *count = sim.devices;
  return sim_return(sim.devices ? hipSuccess : hipErrorNoDevice);
}

EXPORT hipError_t hipGetDevice(int *device) {
  sim_init();
  if (!sim.devices) return sim_return(hipErrorNoDevice);
  *device = sim_current;
  return hipSuccess;
}

EXPORT hipError_t hipSetDevice(int device) {
  if (sim_no_such_device(device)) return sim_return(hipErrorInvalidDevice);
  sim_current = device;
  return hipSuccess;
}

EXPORT hipError_t hipDeviceGetPCIBusId(char *text, int size, int device) {
  if (sim_no_such_device(device)) return sim_return(hipErrorInvalidDevice);
  if (!text || size < 13) return sim_return(hipErrorInvalidValue);
  snprintf(text, (size_t)size, "0000:%02X:00.0", FIRST_BUS + sim.physical[device]);
  return hipSuccess;
}

EXPORT hipError_t hipDeviceCanAccessPeer(int *can, int device, int peer) {
  if (sim_no_such_device(device) || sim_no_such_device(peer))
    return sim_return(hipErrorInvalidDevice);
  *can = device != peer && sim.peer_access;
  return hipSuccess;
}

EXPORT hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  static char enabled[MAX_DEVICES][MAX_DEVICES];
  if (sim_no_such_device(peer)) return sim_return(hipErrorInvalidDevice);
  if (flags || peer == sim_current) return sim_return(hipErrorInvalidValue);
  if (!sim.peer_access) return sim_return(hipErrorPeerAccessUnsupported);
  if (__atomic_exchange_n(&enabled[sim_current][peer], 1, __ATOMIC_RELAXED))
    return sim_return(hipErrorPeerAccessAlreadyEnabled);
  return hipSuccess;
}

/* Whatever it is, a device here has none of it. */
EXPORT hipError_t hipDeviceGetAttribute(int *value, int attribute, int device) {
  (void)attribute;
  if (sim_no_such_device(device)) return sim_return(hipErrorInvalidDevice);
  *value = 0;
  return hipSuccess;
}

EXPORT hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_t *properties, int device) {
  if (sim_no_such_device(device)) return sim_return(hipErrorInvalidDevice);
  memset(properties, 0, sizeof *properties);
  strcpy(properties->name, "hipsim: host memory");
  strcpy(properties->gcnArchName, "gfx942:sramecc+:xnack-"); /* an MI300X, as the engine expects */
  properties->major = 9;
  properties->minor = 4;
  properties->totalGlobalMem = sim.memory;
  properties->warpSize = 64;
  properties->multiProcessorCount = 1;
  properties->maxThreadsPerBlock = 1024;
  properties->pciBusID = FIRST_BUS + sim.physical[device];
  return hipSuccess;
}
