/* librocm_smi64.so.1: the GPUs of tree.h, each one hop of XGMI from every other. */
#include "tree.h"
#include <stdbool.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 1, LINK_XGMI = 2 };

EXPORT int rsmi_init(uint64_t flags) {
  (void)flags;
  return SUCCESS;
}

EXPORT int rsmi_shut_down(void) { return SUCCESS; }

EXPORT int rsmi_num_monitor_devices(uint32_t *count) {
  *count = (uint32_t)gpus();
  return SUCCESS;
}

EXPORT int rsmi_dev_pci_id_get(uint32_t gpu, uint64_t *id) {
  if (gpu >= (uint32_t)gpus()) return INVALID_ARGUMENT;
  *id = (uint64_t)(FIRST_BUS + gpu) << 8;
  return SUCCESS;
}

EXPORT int rsmi_is_P2P_accessible(uint32_t a, uint32_t b, bool *can) {
  (void)a, (void)b;
  *can = true;
  return SUCCESS;
}

EXPORT int rsmi_topo_get_link_type(uint32_t a, uint32_t b, uint64_t *hops, int *type) {
  (void)a, (void)b;
  *hops = 1;
  *type = LINK_XGMI;
  return SUCCESS;
}

EXPORT int rsmi_topo_get_link_weight(uint32_t a, uint32_t b, uint64_t *weight) {
  (void)a, (void)b;
  *weight = 15;
  return SUCCESS;
}

EXPORT int rsmi_status_string(int status, const char **out) {
  *out = status ? "error" : "success";
  return SUCCESS;
}
