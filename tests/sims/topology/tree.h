/* The machine that the engine is shown. It reads its topology through libpci and ROCm's system
 * management library; both are told the same here, and nothing is looked up in /sys.
 *
 *   0000:00:00.0         the root bridge, buses 00 to ff
 *     0000:00:<1+g>.0    a bridge to bus c1+g, one for each GPU
 *       0000:<c1+g>:00.0   GPU g, at the address that tests/sims/hipsim reports
 *       0000:<c1+g>:00.1   a card: card n is beside GPU n modulo their number
 *
 * HIPSIM_DEVICES and VERBSIM_DEVICES give the numbers, VERBSIM_NUMA ("0,1") the node of each GPU.
 */
#ifndef VERBSIM_TREE_H
#define VERBSIM_TREE_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { FIRST_BUS = 0xC1, MAX_GPUS = 16 };

/* A number, or how many names there are in a list. */
static inline int count_of(const char *variable, int otherwise) {
  const char *value = getenv(variable);
  if (!value || !*value) return otherwise;
  if (strspn(value, "0123456789") == strlen(value)) return atoi(value);
  int count = 1;
  for (; *value; value++) count += *value == ',';
  return count;
}

static inline int gpus(void) {
  int count = count_of("HIPSIM_DEVICES", 2);
  return count < 1 ? 1 : count > MAX_GPUS ? MAX_GPUS : count;
}
#endif
