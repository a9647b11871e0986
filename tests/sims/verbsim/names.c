/* As libibverbs says them: the engine's messages have them in it. */
#include "vsim.h"

#define COUNT(names) (sizeof(names) / sizeof *(names))

EXPORT const char *ibv_wc_status_str(enum ibv_wc_status status) {
  static const char *const names[] = {"success",
                                      "local length error",
                                      "local QP operation error",
                                      "local EE context operation error",
                                      "local protection error",
                                      "Work Request Flushed Error",
                                      "memory management operation error",
                                      "bad response error",
                                      "local access error",
                                      "remote invalid request error",
                                      "remote access error",
                                      "remote operation error",
                                      "transport retry counter exceeded",
                                      "RNR retry counter exceeded",
                                      "local RDD violation error",
                                      "remote invalid RD request",
                                      "aborted error",
                                      "invalid EE context number",
                                      "invalid EE context state",
                                      "fatal error",
                                      "response timeout error",
                                      "general error",
                                      "TM error",
                                      "TM software rendezvous"};
  return (unsigned)status < COUNT(names) ? names[status] : "unknown";
}

EXPORT const char *ibv_event_type_str(enum ibv_event_type type) {
  static const char *const names[] = {"CQ error",
                                      "local work queue catastrophic error",
                                      "invalid request local work queue error",
                                      "local access violation work queue error",
                                      "communication established",
                                      "send queue drained",
                                      "path migrated",
                                      "path migration request error",
                                      "local catastrophic error",
                                      "port active",
                                      "port error",
                                      "LID change",
                                      "P_Key change",
                                      "SM change",
                                      "SRQ catastrophic error",
                                      "SRQ limit reached",
                                      "last WQE reached",
                                      "client reregistration",
                                      "GID table change",
                                      "WQ fatal"};
  return (unsigned)type < COUNT(names) ? names[type] : "unknown";
}

EXPORT const char *ibv_port_state_str(int state) {
  static const char *const names[] = {"PORT_NOP",   "PORT_DOWN",   "PORT_INIT",
                                      "PORT_ARMED", "PORT_ACTIVE", "PORT_ACTIVE_DEFER"};
  return (unsigned)state < COUNT(names) ? names[state] : "unknown";
}

EXPORT const char *ibv_node_type_str(int type) {
  return type == IBV_NODE_CA ? "InfiniBand channel adapter" : "unknown";
}
