"""Machines to plan for: this one, as it was found, or one of the usual ones."""

from __future__ import annotations

from typing import NamedTuple

KINDS = ("mi300x", "nvidia", "cpu", "none")


class Machine(NamedTuple):
    """What a connector could use there.

    Attributes:
        name: how people call it.
        platform: vLLM-Omni's name for it: ``rocm``, ``cuda``, …; empty: it has none for it.
        backends: every backend by name, and why it cannot work there; empty: it can. None: nothing
            is known of the machine.
    """

    name: str
    platform: str
    backends: dict[str, str] | None

    @property
    def has_gpus(self) -> bool:
        """Whether pools can lie on a GPU."""
        return self.backends is None or not self.backends.get("device_ipc", "none")

    def why_not(self, backend: str) -> str:
        """Why *backend* cannot work there; empty when it can, or when nothing is known."""
        if self.backends is None:
            return ""
        return self.backends.get(backend, "it is not installed")


_SHARED = {"shm": "", "shm-write": ""}
_NO_GPU = "there is no GPU"
_NO_ROCM = "AMD's Mori needs ROCm"
_USUAL = {
    "mi300x": Machine(
        "MI300X", "rocm", {"mori-xgmi": "", "device_ipc": "", "mori-rdma": "", **_SHARED}
    ),
    "nvidia": Machine(
        "NVIDIA GPUs", "cuda",
        {"mori-xgmi": _NO_ROCM, "device_ipc": "", "mori-rdma": _NO_ROCM, **_SHARED},
    ),
    "cpu": Machine(
        "no GPU", "",
        {"mori-xgmi": _NO_GPU, "device_ipc": _NO_GPU, "mori-rdma": "no NIC", **_SHARED},
    ),
    "none": Machine("any machine", "", None),
}  # fmt: skip


def assumed(kind: str) -> Machine:
    """The usual machine of that *kind*, one of :data:`KINDS`."""
    return _USUAL[kind]
