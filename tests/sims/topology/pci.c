/* libpci.so.3: the tree of tree.h. The structures are the head of those of pciutils, which have
 * kept their layout since the version LIBPCI_3.5. */
#include "tree.h"

struct pci_dev {
  struct pci_dev *next;
  uint16_t domain_16;
  uint8_t bus, dev, func;
  unsigned known_fields;
  uint16_t vendor_id, device_id, device_class;
  int irq;
  uint64_t base_addr[6], size[6], rom_base_addr, rom_size;
  void *first_cap;
  char *texts[3];
  int numa_node;
  uint64_t flags[6], rom_flags;
  int domain;
  char rest[512];
  uint8_t config[64]; /* ours */
};

struct pci_access {
  unsigned method;
  int writeable, buscentric;
  char *id_file_name;
  int ids[2];
  unsigned id_lookup_mode;
  int debugging;
  void *reports[3];
  struct pci_dev *devices;
  char rest[1024];
};

enum { BRIDGE = 0x0604, GPU = 0x1200, CARD = 0x0200, AMD = 0x1002, ANY = 0x1d0f };

static struct pci_dev *add(struct pci_access *access, int bus, int dev, int func, int class,
                           int node) {
  struct pci_dev **end = &access->devices, *made = calloc(1, sizeof *made);
  if (!made) abort();
  while (*end) end = &(*end)->next;
  *end = made;
  made->bus = (uint8_t)bus;
  made->dev = (uint8_t)dev;
  made->func = (uint8_t)func;
  made->device_class = (uint16_t)class;
  made->vendor_id = class == GPU ? AMD : ANY;
  made->numa_node = node;
  return made;
}

/* A bridge says in its configuration where it is and what is behind it. The root's own bus is
 * behind the root itself, which keeps the engine from asking /sys whether it is below a root
 * complex. */
static void add_bridge(struct pci_access *access, int dev, int node, int first, int last) {
  struct pci_dev *bridge = add(access, 0, dev, 0, BRIDGE, node);
  bridge->config[0x0e] = 1; /* header of a bridge */
  bridge->config[0x19] = (uint8_t)first;
  bridge->config[0x1a] = (uint8_t)last;
}

static void read_nodes(int nodes[MAX_GPUS]) {
  const char *text = getenv("VERBSIM_NUMA");
  for (int gpu = 0; gpu < gpus() && text && *text; gpu++) {
    nodes[gpu] = atoi(text);
    text = strchr(text, ',');
    if (text) text++;
  }
}

EXPORT struct pci_access *pci_alloc(void) { return calloc(1, sizeof(struct pci_access)); }

EXPORT void pci_init(struct pci_access *access) { (void)access; }

EXPORT void pci_scan_bus(struct pci_access *access) {
  int nodes[MAX_GPUS] = {0}, cards = count_of("VERBSIM_DEVICES", 2);
  read_nodes(nodes);
  add_bridge(access, 0, nodes[0], 0, 0xff);
  for (int gpu = 0; gpu < gpus(); gpu++) {
    int bus = FIRST_BUS + gpu, function = 1;
    add_bridge(access, 1 + gpu, nodes[gpu], bus, bus);
    add(access, bus, 0, 0, GPU, nodes[gpu]);
    for (int card = gpu; card < cards && function < 8; card += gpus())
      add(access, bus, 0, function++, CARD, nodes[gpu]);
  }
}

/* The engine's build for one Python asks for one version of this name, that for another for the
 * other. */
__asm__(".symver fill_info_3_5,pci_fill_info@LIBPCI_3.5");
__asm__(".symver fill_info_3_8,pci_fill_info@@LIBPCI_3.8");

EXPORT int fill_info_3_8(struct pci_dev *device, int flags) {
  (void)device;
  return flags;
}

EXPORT int fill_info_3_5(struct pci_dev *device, int flags) {
  return fill_info_3_8(device, flags);
}

EXPORT uint8_t pci_read_byte(struct pci_dev *device, int at) {
  return at >= 0 && at < (int)sizeof device->config ? device->config[at] : 0xff;
}

EXPORT void pci_cleanup(struct pci_access *access) {
  while (access->devices) {
    struct pci_dev *gone = access->devices;
    access->devices = gone->next;
    free(gone);
  }
  free(access);
}
