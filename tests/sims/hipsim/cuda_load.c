/* HIPSIM_CUDART and HIPSIM_LIBCUDA name other libraries; HIPSIM_TRACE=1 says on stderr what is
 * done. */
#include "cuda.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct cuda cuda;
static int loaded;

/* One that the process has already (torch brings its own) goes before one of the system. */
static void *open_library(const char *variable, const char *const *names) {
  const char *wanted = getenv(variable);
  void *library = wanted ? dlopen(wanted, RTLD_NOW) : NULL;
  for (int i = 0; !library && names[i]; i++) library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
  for (int i = 0; !library && names[i]; i++) library = dlopen(names[i], RTLD_NOW);
  if (!library)
    fprintf(stderr, "hipsim: cannot load %s: %s; %s may name it\n", names[0], dlerror(), variable);
  return library;
}

static int says(const char *variable, const char *wanted) {
  const char *value = getenv(variable);
  return value && !strcmp(value, wanted);
}

static void load(void) {
  static const char *const runtimes[] = {"libcudart.so.13",
                                         "libcudart.so.12",
                                         "libcudart.so.11.0",
                                         "libcudart.so",
                                         "/usr/local/cuda/lib64/libcudart.so",
                                         NULL};
  static const char *const drivers[] = {"libcuda.so.1", NULL};
  cuda.trace = says("HIPSIM_TRACE", "1");
  cuda.copies = says("HIPSIM_CUDA_COPY", "peer")      ? PEER
                : says("HIPSIM_CUDA_COPY", "default") ? DEFAULT
                                                      : BY_IMPORTER;
  void *runtime = open_library("HIPSIM_CUDART", runtimes);
  if (!runtime) return;
  loaded = 1;
#define LOAD(name, parameters)                                      \
  if (!(*(void **)&cuda.name = dlsym(runtime, #name))) {            \
    fprintf(stderr, "hipsim: the CUDA runtime has no %s\n", #name); \
    loaded = 0;                                                     \
  }
  FUNCTIONS(LOAD)
  *(void **)&cuda.cudaGetErrorString = dlsym(runtime, "cudaGetErrorString");
  /* The runtime has no function for the extent of an allocation, the driver has. */
  void *driver = open_library("HIPSIM_LIBCUDA", drivers);
  if (driver) *(void **)&cuda.cuMemGetAddressRange = dlsym(driver, "cuMemGetAddressRange_v2");
}

int cuda_is_there(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load);
  return loaded;
}

int cuda_enter(int device) {
  int before = 0;
  cuda.cudaGetDevice(&before);
  if (device < 0 || device == before) return -1;
  cuda.cudaSetDevice(device);
  return before;
}

void cuda_leave(int before) {
  if (before >= 0) cuda.cudaSetDevice(before);
}
