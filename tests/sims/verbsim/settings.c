#include "vsim.h"
#include <sys/prctl.h>
#include <time.h>

struct settings settings;
struct hooks hooks;
struct counters counters;

long setting(const char *name, long otherwise) {
  const char *value = getenv(name);
  return value && *value ? strtol(value, NULL, 0) : otherwise;
}

static void read_settings(void) {
  const char *space = getenv("VERBSIM_NS");
  if (space && *space)
    snprintf(settings.space, sizeof settings.space, "%s", space);
  else
    snprintf(settings.space, sizeof settings.space, "u%u", getuid());
  settings.trace = (int)setting("VERBSIM_TRACE", 0);
  settings.delay_us = setting("VERBSIM_DELAY_US", 0);
  settings.gbps = setting("VERBSIM_GBPS", 0);
  settings.retry_ms = setting("VERBSIM_RETRY_MS", -1);
  settings.stall_ms = setting("VERBSIM_STALL_MS", 5000);
  settings.max_region = setting("VERBSIM_MAX_MR_MB", 0) << 20;
  settings.refused_access = setting("VERBSIM_REFUSE_ACCESS", 0);
  settings.refusal = setting("VERBSIM_REG_ERRNO", EINVAL);
  settings.max_message = setting("VERBSIM_MAX_MSG", 1L << 30);
  settings.max_sge = setting("VERBSIM_MAX_SGE", 16);
  if (settings.max_sge > MAX_SGES) settings.max_sge = MAX_SGES;
  settings.max_wr = setting("VERBSIM_MAX_QP_WR", 16384);
  settings.max_cqe = setting("VERBSIM_MAX_CQE", 1L << 20);
  settings.vendor = setting("VERBSIM_VENDOR_ID", 0);
}

/* A child must not keep its parent's pairs reachable; it starts without any. */
static void after_fork(void) {
  forget_pairs();
  forget_regions();
  forget_contexts();
}

static void init_once(void) {
  read_settings();
  /* Where a kernel lets only ancestors look into a process (Yama), let every peer of this user. */
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  pthread_atfork(NULL, NULL, after_fork);
  init_devices();
}

void vsim_init(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, init_once);
}

uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct timespec as_timespec(uint64_t ns) {
  return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

void init_condition(pthread_cond_t *condition) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(condition, &attributes);
}
