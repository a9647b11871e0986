#include "vsim.h"
#include <arpa/inet.h>
#include <dlfcn.h>
#include <endian.h>
#include <limits.h>
#include <sys/stat.h>

struct device devices[MAX_DEVICES];
int device_count;

/* --- the table of addresses ----------------------------------------------------------------- */

/* One address: "v1=fe80::1", "v2=10.0.0.1"; anything else leaves an empty entry. */
static void add_gid(struct device *device, const char *text) {
  if (device->gids == MAX_GIDS) return;
  uint8_t *raw = device->gid[device->gids].raw;
  device->gid_type[device->gids] =
      strncmp(text, "v1", 2) ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
  const char *address = strchr(text, '=');
  address = address ? address + 1 : text;
  if (!inet_pton(AF_INET6, address, raw) && inet_pton(AF_INET, address, raw + 12))
    raw[10] = raw[11] = 0xff; /* an IPv4 address within IPv6 */
  device->gids++;
}

static void fill_gids(struct device *device) {
  char name[32], text[200], *rest = NULL;
  int host = (int)setting("VERBSIM_HOST", 0), n = device->index;
  snprintf(name, sizeof name, "VERBSIM_GIDS%d", n);
  const char *given = getenv(name);
  if (given && *given)
    snprintf(text, sizeof text, "%s", given);
  else /* as a port with one IPv4 address shows them */
    snprintf(text, sizeof text,
             "v1=fe80::56ff:fe53:%x%02x,v2=fe80::56ff:fe53:%x%02x,v1=10.86.%d.%d,v2=10.86.%d.%d",
             host, n, host, n, host, n + 1, host, n + 1);
  for (char *one = strtok_r(text, ", ", &rest); one; one = strtok_r(NULL, ", ", &rest))
    add_gid(device, one);
}

int has_gid(struct device *device, uint32_t index) {
  static const union ibv_gid none;
  return index < MAX_GIDS && memcmp(&device->gid[index], &none, sizeof none);
}

/* --- devices -------------------------------------------------------------------------------- */

static void make_folders(char *path) {
  for (char *slash = path + 1; *slash; slash++) {
    if (*slash != '/') continue;
    *slash = 0;
    mkdir(path, 0755);
    *slash = '/';
  }
  mkdir(path, 0755);
}

/* Where stand-ins for the folders of /sys lie: beside this library if nobody says otherwise. */
static void find_tree(char root[PATH_MAX]) {
  const char *given = getenv("VERBSIM_SYSFS");
  Dl_info library;
  root[0] = 0;
  if (given && *given)
    snprintf(root, PATH_MAX, "%s", given);
  else if (dladdr((void *)init_devices, &library) && realpath(library.dli_fname, root))
    strcpy(strrchr(root, '/'), "/sys");
}

/* The engine finds a card's PCI address among the folders of its path, so they must exist. Card n
 * is a function of the slot in which GPU n (modulo their number) is: as pci.c shows it. */
static void place(struct device *device, const char *root) {
  char path[PATH_MAX + 200];
  int gpus = (int)setting("HIPSIM_DEVICES", 2);
  if (gpus < 1) gpus = 1;
  int bus = FIRST_BUS + device->index % gpus, function = 1 + device->index / gpus;
  int length = snprintf(path, sizeof path, "%s/pci0000:00/0000:%02x:00.%d/infiniband/%s", root,
                        bus, function, device->device.name);
  make_folders(path);
  size_t room = sizeof device->device.ibdev_path;
  if ((size_t)length >= room)
    fprintf(stderr, "verbsim: set VERBSIM_SYSFS to a shorter folder than %s\n", root);
  snprintf(device->device.ibdev_path, room, "%.*s", (int)room - 1, path);
  memcpy(device->device.dev_path, device->device.ibdev_path, room);
}

static void add_device(const char *name, const char *root) {
  int index = device_count++;
  struct device *device = &devices[index];
  device->index = index;
  device->up = !(setting("VERBSIM_PORTS_DOWN", 0) >> index & 1);
  device->device.node_type = IBV_NODE_CA;
  device->device.transport_type = IBV_TRANSPORT_IB;
  snprintf(device->device.name, sizeof device->device.name, "%s", name);
  snprintf(device->device.dev_name, sizeof device->device.dev_name, "uverbs%d", index);
  place(device, root);
  fill_gids(device);
}

/* VERBSIM_DEVICES is a number or a list of names. */
void init_devices(void) {
  char root[PATH_MAX], text[200], *rest = NULL;
  const char *list = getenv("VERBSIM_DEVICES");
  snprintf(text, sizeof text, "%s", list && *list ? list : "2");
  find_tree(root);
  if (strspn(text, "0123456789") == strlen(text)) {
    char name[16];
    for (int i = 0; i < atoi(text) && i < MAX_DEVICES; i++) {
      snprintf(name, sizeof name, "vsim%d", i);
      add_device(name, root);
    }
    return;
  }
  for (char *name = strtok_r(text, ",", &rest); name && device_count < MAX_DEVICES;
       name = strtok_r(NULL, ",", &rest))
    add_device(name, root);
}

EXPORT struct ibv_device **ibv_get_device_list(int *count) {
  vsim_init();
  struct ibv_device **list = calloc((size_t)device_count + 1, sizeof *list);
  if (!list) return fail_with(ENOMEM);
  for (int i = 0; i < device_count; i++) list[i] = &devices[i].device;
  if (count) *count = device_count;
  return list;
}

/* The devices stay: an open one may outlive the list. */
EXPORT void ibv_free_device_list(struct ibv_device **list) { free(list); }

EXPORT const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

EXPORT int ibv_get_device_index(struct ibv_device *device) {
  return ((struct device *)device)->index;
}

EXPORT uint64_t ibv_get_device_guid(struct ibv_device *device) {
  return htobe64(0x0200565300000000u + (uint64_t)((struct device *)device)->index);
}

/* --- queries -------------------------------------------------------------------------------- */

static void describe_device(struct ibv_context *context, struct ibv_device_attr *out) {
  memset(out, 0, sizeof *out);
  strcpy(out->fw_ver, "verbsim-1");
  out->node_guid = out->sys_image_guid = ibv_get_device_guid(context->device);
  out->max_mr_size = settings.max_region ? (uint64_t)settings.max_region : UINT64_MAX;
  out->page_size_cap = ~(uint64_t)0xfff;
  out->vendor_id = (uint32_t)settings.vendor;
  out->hw_ver = 1;
  out->max_qp = 4096;
  out->max_qp_wr = (int)settings.max_wr;
  out->max_sge = out->max_sge_rd = out->max_srq_sge = (int)settings.max_sge;
  out->max_cq = 65536;
  out->max_cqe = (int)settings.max_cqe;
  out->max_mr = 1 << 20;
  out->max_pd = 65536;
  out->max_qp_rd_atom = out->max_qp_init_rd_atom = 16;
  out->max_res_rd_atom = 65536;
  out->max_srq = 4096;
  out->max_srq_wr = (int)settings.max_wr;
  out->max_pkeys = 1;
  out->local_ca_ack_delay = 16;
  out->phys_port_cnt = 1;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* The extended structure begins with the plain one; of the rest a card here has nothing. */
int query_device_ex(struct ibv_context *context, const void *input, void *out, size_t size) {
  (void)input;
  struct ibv_device_attr plain;
  describe_device(context, &plain);
  memset(out, 0, size);
  memcpy(out, &plain, smaller(size, sizeof plain));
  return 0;
}

EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *out) {
  describe_device(context, out);
  return 0;
}

int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *out, size_t size) {
  if (port != 1) return EINVAL;
  int up = DEVICE(context)->up;
  struct ibv_port_attr about = {
      .state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN,
      .phys_state = up ? 5 : 3, /* link up, disabled */
      .max_mtu = IBV_MTU_4096,
      .active_mtu = IBV_MTU_4096,
      .gid_tbl_len = MAX_GIDS,
      .max_msg_sz = (uint32_t)settings.max_message,
      .pkey_tbl_len = 1,
      .active_width = 2,   /* 4 lanes */
      .active_speed = 128, /* of 100 Gb/s */
      .link_layer = IBV_LINK_LAYER_ETHERNET,
      .max_vl_num = 1,
      .port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
  };
  memset(out, 0, size);
  memcpy(out, &about, smaller(size, sizeof about));
  return 0;
}

/* By name it is called by programs from before the structure grew. */
EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *out) {
  return query_port(context, port, out, offsetof(struct ibv_port_attr, flags));
}

EXPORT int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, uint16_t *key) {
  (void)context;
  if (port != 1 || index) {
    errno = EINVAL;
    return -1;
  }
  *key = 0xffff;
  return 0;
}

EXPORT int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, uint16_t key) {
  (void)context;
  return port == 1 && key == 0xffff ? 0 : -1;
}

EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port, int index,
                         union ibv_gid *out) {
  if (port != 1 || index < 0 || index >= MAX_GIDS) {
    errno = EINVAL;
    return -1;
  }
  *out = DEVICE(context)->gid[index];
  return 0;
}

EXPORT int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                             struct ibv_gid_entry *out, uint32_t flags, size_t size) {
  struct device *device = DEVICE(context);
  if (port != 1 || index >= MAX_GIDS || flags) return EINVAL;
  if (!has_gid(device, index)) return ENODATA;
  struct ibv_gid_entry entry = {device->gid[index], index, 1, device->gid_type[index], 1};
  memset(out, 0, size);
  memcpy(out, &entry, smaller(size, sizeof entry));
  return 0;
}

EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *out,
                                    size_t room, uint32_t flags, size_t size) {
  size_t count = 0;
  for (uint32_t index = 0; index < MAX_GIDS && count < room; index++) {
    void *entry = (char *)out + count * size;
    count += !_ibv_query_gid_ex(context, 1, index, entry, flags, size);
  }
  return (ssize_t)count;
}
