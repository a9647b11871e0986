"""What a plan asks of this machine: its kind, its backends, and ports that somebody listens on."""

from __future__ import annotations

from pathlib import Path

from stagelink.adapters.hosts.planning import Machine
from stagelink.inspect.backends import list_backends

NAME = "this machine"
SHARED = "/dev/shm"  # noqa: S108 - the mount of POSIX shared memory
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"


def machine_here() -> Machine:
    """This machine, by the probes of the backends and the traces of drivers."""
    backends = {row.name: _reason(row.reason, row.remedy) for row in list_backends()}
    return Machine(NAME, platform(), backends)


def _reason(reason: str, remedy: str) -> str:
    return f"{reason}; {remedy}" if remedy else reason


def platform(root: Path = Path("/")) -> str:
    """vLLM-Omni's name for the kind of GPUs here: ``rocm``, ``cuda``, or empty."""
    if (root / "dev/kfd").exists():
        return "rocm"
    if any((root / node).exists() for node in ("proc/driver/nvidia/version", "dev/nvidiactl")):
        return "cuda"
    return ""


def shared_free(directory: str = SHARED) -> int | None:
    """Bytes available in the mount of shared memory; None where there is none."""
    from stagelink.adapters.shm import available  # noqa: PLC0415  as the pool's owner counts

    try:
        return available(Path(directory))
    except OSError:
        return None


def listening(tables: tuple[Path, ...] = _TABLES) -> frozenset[int]:
    """TCP ports that somebody listens on, at any address; empty where the kernel does not tell."""
    found = set()
    for table in tables:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        for line in lines:
            _, local, _, state, *_ = line.split()
            if state == _LISTENING:
                found.add(int(local.rpartition(":")[2], 16))
    return frozenset(found)
