"""Facts about this host that a connector depends on, each with what they mean for it."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from stagelink import __version__
from stagelink.inspect.checks import Check, size

FEW_FILES = 1024
GPU_PATIENCE_S = 60.0
NEEDED = ("pyzmq", "msgspec", "pluggy", "structlog")
OPTIONAL = ("numpy", "torch")
QUICK_CLOCKS = frozenset(("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"))

_GPU_PROBE = """
import json, torch
count = torch.cuda.device_count()
names = [torch.cuda.get_device_name(n) for n in range(count)]
reach = torch.cuda.can_device_access_peer
apart = [f"{a} and {b}" for a in range(count) for b in range(a) if not reach(a, b)]
told = {"names": names, "apart": apart, "hip": torch.version.hip, "cuda": torch.version.cuda}
print(json.dumps(told))
"""


def versions() -> list[Check]:
    """Python, ourselves and what we stand on."""
    import zmq  # noqa: PLC0415

    found = [
        Check("python", True, f"{platform.python_version()} at {sys.executable}"),
        Check("stagelink", True, __version__),
        Check("libzmq", True, zmq.zmq_version()),
    ]
    return found + [_installed(name) for name in (*NEEDED, *OPTIONAL)]


def _installed(name: str) -> Check:
    try:
        return Check(name, True, version(name))
    except PackageNotFoundError:
        if name in OPTIONAL:
            return Check(name, None, "not installed")
        return Check(name, False, "not installed", f"pip install {name}")


def locked_memory(*, needed: int) -> Check:
    """RLIMIT_MEMLOCK, of which planes that register memory take *needed* bytes; 0: none does."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    words = "unlimited" if limit == resource.RLIM_INFINITY else size(limit)
    if not needed:
        return Check("locked memory", None, f"{words}; matters only to planes that cross hosts")
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return Check("locked memory", True, words)
    remedy = "ulimit -l unlimited (docker: --ulimit memlock=-1), or a smaller pool"
    return Check("locked memory", False, f"{words}, the pool is {size(needed)}", remedy)


def open_files() -> Check:
    """RLIMIT_NOFILE; a connector takes some ten, and a few more for every peer."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit >= FEW_FILES:
        return Check("open files", True, f"{limit:,} allowed")
    return Check("open files", None, f"only {limit:,} allowed", f"ulimit -n {FEW_FILES} or more")


def clock(folder: Path = Path("/sys/devices/system/clocksource/clocksource0")) -> Check:
    """The kernel's clock source: with a slow one every reading of the clock is a system call."""
    try:
        name = (folder / "current_clocksource").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return Check("clock source", None, "unknown")
    if name in QUICK_CLOCKS:
        return Check("clock source", True, name)
    remedy = "a slow clock makes every transfer slower; boot with tsc if the host has it"
    return Check("clock source", None, name, remedy)


def rdma(folder: Path = Path("/sys/class/infiniband")) -> Check:
    """RDMA devices and the state of their ports."""
    found = []
    for device in sorted(folder.glob("*")):
        states = [_line(path) for path in sorted(device.glob("ports/*/state"))]
        found.append(f"{device.name} ({', '.join(states) or 'no port'})")
    if not found:
        return Check("RDMA", None, "no device")
    active = any("ACTIVE" in text for text in found)
    remedy = "" if active else "no port is active: check the cable and the subnet manager"
    return Check("RDMA", True if active else None, "; ".join(found), remedy)


def gpus(*, ask_torch: bool = False) -> Check:
    """GPUs, by the drivers' traces; or by torch, in a process of its own: that takes seconds."""
    if ask_torch:
        return _gpus_of_torch()
    traces = {
        "an NVIDIA driver": Path("/proc/driver/nvidia/version").exists(),
        "an AMD driver (/dev/kfd)": Path("/dev/kfd").exists(),
        "nvidia-smi": shutil.which("nvidia-smi") is not None,
        "rocm-smi": shutil.which("rocm-smi") is not None,
    }
    seen = [name for name, there in traces.items() if there]
    return Check("GPU", True if seen else None, ", ".join(seen) or "no trace of one")


def _gpus_of_torch() -> Check:
    if find_spec("torch") is None:
        return Check("GPU", None, "torch is not installed", "pip install torch")
    try:
        done = subprocess.run(  # noqa: S603 - our own code in our own interpreter
            [sys.executable, "-c", _GPU_PROBE],
            capture_output=True, check=True, text=True, timeout=GPU_PATIENCE_S,
            env=os.environ | {"PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        told = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return Check("GPU", None, f"torch did not answer within {GPU_PATIENCE_S:.0f} s")
    except (subprocess.CalledProcessError, OSError, ValueError, IndexError) as error:
        return Check("GPU", None, f"torch cannot tell: {error}", "python -c 'import torch'")
    built = f"HIP {told['hip']}" if told["hip"] else f"CUDA {told['cuda']}" if told["cuda"] else ""
    names = ", ".join(told["names"])
    apart = told.get("apart", [])
    if apart:
        remedy = "between those, device_ipc and mori-xgmi cannot work: use shm or mori-rdma"
        said = f"{names} ({built}); {', '.join(apart)} do not reach each other's memory"
        return Check("GPU", None, said, remedy)
    if names:
        return Check("GPU", True, f"{names} ({built})")
    return Check("GPU", None, f"torch sees none ({built or 'built for the CPU'})")


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return "unknown"
