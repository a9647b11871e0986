/* What a test may ask of this process's devices; tests.sims.hipsim says it in Python. */
#include "sim.h"

EXPORT void hipsim_set_delay_us(int microseconds) {
  sim_init();
  work_settings.delay_us = microseconds;
}

/* Nothing is copied while it is set, so a test can do something in the middle without sleeping. */
EXPORT void hipsim_hold(int on) {
  sim_init();
  sim_hold(on);
}

/* After `skip` good copies the next `count` fail: no byte moves, and an event tells of it later.
 */
EXPORT void hipsim_fail_next(int count, int error, int skip) {
  sim_init();
  work_settings.error = error;
  work_settings.skip = skip;
  work_settings.fail = count;
}

EXPORT void hipsim_stats(long out[7]) {
  long on_devices, imported;
  sim_count_memory(&on_devices, &imported);
  long all[] = {counters.copies, counters.bytes, counters.streams, counters.events,
                on_devices,      imported,       counters.imports};
  memcpy(out, all, sizeof all);
}
