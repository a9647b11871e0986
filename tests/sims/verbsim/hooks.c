/* What a test may ask of this process's cards; tests.sims.verbsim says it in Python. */
#include "vsim.h"

EXPORT void verbsim_set_delay_us(long us) {
  vsim_init();
  settings.delay_us = us;
}

EXPORT void verbsim_set_retry_ms(long ms) {
  vsim_init();
  settings.retry_ms = ms;
}

EXPORT void verbsim_hold(int on) { hooks.hold = on; }

EXPORT void verbsim_drop_all(int on) { hooks.drop_all = on; }

/* After `skip` good requests the next `count` end with `status`, their bytes moved or not. */
EXPORT void verbsim_fail_next(int count, int status, int after, int skip) {
  hooks.fail_status = status;
  hooks.fail_after = after;
  hooks.fail_skip = skip;
  hooks.fail = count;
}

EXPORT void verbsim_fail_regions(int count, int error) {
  hooks.region_errno = error;
  hooks.fail_regions = count;
}

EXPORT void verbsim_limit_regions(long max_size, long refused_access, int error) {
  vsim_init();
  settings.max_region = max_size;
  settings.refused_access = refused_access;
  settings.refusal = error ? error : EINVAL;
}

static int is_of_pair(int type) {
  return type >= IBV_EVENT_QP_FATAL && type <= IBV_EVENT_SQ_DRAINED;
}

static int tell_pairs(struct device *device, int type, uint32_t number) {
  int count = 0;
  LOCK(card);
  for (struct pair *pair = pairs; pair; pair = pair->next) {
    if (DEVICE(pair->qp.context) != device || (number && pair->qp.qp_num != number)) continue;
    if (type == IBV_EVENT_QP_FATAL) {
      LOCK(pair->lock);
      pair_fails(pair);
      UNLOCK(pair->lock);
    }
    tell(pair->qp.context, (enum ibv_event_type)type, pair, 0);
    count++;
  }
  UNLOCK(card);
  return count;
}

/* An event of a pair (0: of each one on the device) or of the device: how many were told, or -1.
 */
EXPORT int verbsim_event(int device, int type, uint32_t number) {
  vsim_init();
  if (device < 0 || device >= device_count) return -1;
  if (is_of_pair(type)) return tell_pairs(&devices[device], type, number);
  return tell_all(&devices[device], (enum ibv_event_type)type);
}

EXPORT int verbsim_set_port(int device, int up) {
  vsim_init();
  if (device < 0 || device >= device_count) return -1;
  devices[device].up = up;
  return verbsim_event(device, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, 0);
}

/* Number, state and device of each pair. */
EXPORT int verbsim_pairs(uint32_t *out, int room) {
  int count = 0;
  LOCK(card);
  for (struct pair *pair = pairs; pair && count < room; pair = pair->next, count++) {
    out[3 * count] = pair->qp.qp_num;
    out[3 * count + 1] = (uint32_t)pair->state;
    out[3 * count + 2] = (uint32_t)DEVICE(pair->qp.context)->index;
  }
  UNLOCK(card);
  return count;
}

EXPORT void verbsim_stats(long *out) { memcpy(out, &counters, sizeof counters); }
