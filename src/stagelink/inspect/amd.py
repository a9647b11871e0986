"""What Mori depends on: its package, AMD's GPUs and their links, RDMA devices, its environment.

Everything is read from files, so nothing is started: the kernel tells of GPUs and XGMI links under
``/sys/class/kfd``, of RDMA devices under ``/sys/class/infiniband``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stagelink.inspect.checks import Check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACKAGE = "amd-mori"
KFD = Path("/sys/class/kfd/kfd/topology/nodes")
INFINIBAND = Path("/sys/class/infiniband")
VERBS = Path("/dev/infiniband")
XGMI = 11
"""The type of a link between two nodes that is XGMI, as the kernel numbers them."""

LEVELS = ("trace", "debug", "info", "warning", "warn", "error", "critical", "off")
IMPORT_S = 60.0

_PROBE = "import mori, mori.io; print('version', getattr(mori, '__version__', 'unknown'))"


class Gpu(NamedTuple):
    """One GPU of AMD's, by its number in the kernel's topology.

    Attributes:
        target: of the compiler, for example ``gfx942``.
        peers: nodes that it has an XGMI link to.
    """

    node: int
    target: str
    peers: tuple[int, ...]


def checks(env: Mapping[str, str], *, wanted: bool = False, ask: bool = False) -> Iterator[Check]:
    """Everything about Mori; only the first line where it is neither installed nor *wanted*.

    Args:
        env: the environment that connectors will be started with.
        wanted: whether the configuration names a backend that needs it.
        ask: import it, in a process of its own.
    """
    here = find_spec("mori") is not None
    yield package(wanted=wanted, ask=ask)
    if not (here or wanted):
        return
    yield links(read_gpus())
    yield named_devices(env)
    yield environment(env)
    yield log_level(env)


def package(*, wanted: bool = False, ask: bool = False) -> Check:
    """Mori and its version; that of the compiled engine is the package's own."""
    if find_spec("mori") is None:
        missing = "not installed"
        remedy = f"pip install {PACKAGE} (Python 3.10 or 3.12, x86-64)"
        return Check("Mori", False, missing, remedy) if wanted else Check("Mori", None, missing)
    try:
        known = version(PACKAGE)
    except PackageNotFoundError:
        known = "installed, its version is unknown"
    return _imported(known) if ask else Check("Mori", True, known)


def _imported(known: str) -> Check:
    """Whether the compiled engine can be loaded: it needs libraries that the package lacks."""
    try:
        done = subprocess.run(  # noqa: S603 - our own code in our own interpreter
            [sys.executable, "-c", _PROBE],
            capture_output=True, text=True, timeout=IMPORT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("Mori", None, f"{known}; it cannot be asked: {error}", "import mori.io")
    if done.returncode == 0:
        engine = done.stdout.strip().rpartition("version ")[2]
        return Check("Mori", True, f"{known}, its engine {engine} can be loaded")
    words = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    missing = words.rpartition("ImportError: ")[2].partition(": cannot open")[0]
    remedy = (
        f"install the system package that holds {missing}"
        if "cannot open shared object" in words
        else "python -c 'import mori.io' shows all of it"
    )
    return Check("Mori", False, f"{known}; its engine cannot be loaded: {words}", remedy)


def read_gpus(folder: Path = KFD) -> list[Gpu]:
    """AMD's GPUs as the kernel tells of them; a container sees those that it may use."""
    return [gpu for node in sorted(folder.glob("*"), key=_number) if (gpu := _gpu(node))]


def _gpu(node: Path) -> Gpu | None:
    found = _properties(node / "properties")
    if not found.get("simd_count"):
        return None  # a CPU, or what we may not look at
    told = [_properties(path) for path in node.glob("io_links/*/properties")]
    told += [_properties(path) for path in node.glob("p2p_links/*/properties")]
    peers = {link["node_to"] for link in told if link.get("type") == XGMI and "node_to" in link}
    number = found.get("gfx_target_version", 0)
    major, minor, step = number // 10000, number // 100 % 100, number % 100
    return Gpu(_number(node), f"gfx{major}{minor:x}{step:x}", tuple(sorted(peers)))


def links(gpus: list[Gpu]) -> Check:
    """Which GPUs reach each other by XGMI."""
    name = "XGMI"
    if not gpus:
        remedy = "give the container /dev/kfd and /dev/dri, and the group render (or video)"
        return Check(name, None, "the kernel shows no GPU of AMD's", remedy)
    nodes = {gpu.node for gpu in gpus}
    rows = [f"{gpu.node} ({gpu.target}) to {_peers(gpu, nodes)}" for gpu in gpus]
    found = f"{len(gpus)} GPUs: " + "; ".join(rows)
    alone = [gpu.node for gpu in gpus if not nodes.intersection(gpu.peers)]
    if len(gpus) == 1:
        return Check(name, None, found, "mori-xgmi needs two: give this process both GPUs")
    if alone:
        said = ", ".join(map(str, alone))
        remedy = f"node {said} has no XGMI link: use device_ipc or mori-rdma there"
        return Check(name, None, found, remedy)
    return Check(name, True, found)


def _peers(gpu: Gpu, nodes: set[int]) -> str:
    return ", ".join(str(peer) for peer in gpu.peers if peer in nodes) or "none"


def named_devices(env: Mapping[str, str], folder: Path = INFINIBAND, verbs: Path = VERBS) -> Check:
    """The RDMA devices that Mori would take: those of MORI_RDMA_DEVICES, or all."""
    name = "RDMA for Mori"
    there = {device.name: _states(device) for device in sorted(folder.glob("*"))}
    if not there:
        remedy = "only mori-rdma needs one: load the NIC's driver, or use mori-xgmi"
        return Check(name, None, "no device", remedy)
    if not any(os.access(node, os.R_OK | os.W_OK) for node in verbs.glob("uverbs*")):
        remedy = "give the container /dev/infiniband (docker: --device=/dev/infiniband)"
        return Check(name, None, f"{', '.join(there)}, but {verbs} cannot be used", remedy)
    listed = env.get("MORI_RDMA_DEVICES", "")
    wanted = [part.split(":")[0] for part in listed.lstrip("^").split(",") if part]
    unknown = [part for part in wanted if part not in there]
    if unknown:
        remedy = f"known: {', '.join(there)}"
        return Check(name, None, f"MORI_RDMA_DEVICES names {', '.join(unknown)}", remedy)
    excluded = listed.startswith("^")
    used = [d for d in there if not wanted or (d in wanted) is not excluded]
    active = [device for device in used if any("ACTIVE" in state for state in there[device])]
    if not active:
        remedy = "rdma link set, the cable, or another device in MORI_RDMA_DEVICES"
        return Check(name, None, f"no port of {', '.join(used) or 'none'} is active", remedy)
    return Check(name, True, f"active: {', '.join(active)}")


def environment(env: Mapping[str, str]) -> Check:
    """What is set of MORI_*, for it changes what the settings say."""
    name = "MORI_* environment"
    found = {key: env[key] for key in sorted(env) if key.startswith("MORI_")}
    said = ", ".join(f"{key}={value}" for key, value in found.items()) or "nothing is set"
    if found.get("MORI_IO_ENABLE_NOTIFICATION", "0") not in {"", "0"}:
        remedy = "set it for both sides or for none: else the second transfer never completes"
        return Check(name, None, said, remedy)
    if found.get("MORI_DISABLE_AUTO_XGMI", "0") not in {"", "0"}:
        return Check(name, None, said, "unset MORI_DISABLE_AUTO_XGMI, or use mori-rdma")
    return Check(name, True if found else None, said)


def log_level(env: Mapping[str, str]) -> Check:
    """How much Mori writes to standard output; only the environment says so, before the start."""
    name = "Mori's log"
    level = env.get("MORI_IO_LOG_LEVEL") or env.get("MORI_GLOBAL_LOG_LEVEL") or ""
    if not level:
        remedy = "MORI_IO_LOG_LEVEL=warning before the start keeps it off standard output"
        return Check(name, None, "its own level, to standard output", remedy)
    if level.lower() not in LEVELS:
        return Check(name, None, f"unknown level {level!r}", f"known: {', '.join(LEVELS)}")
    if level.lower() in {"trace", "debug"}:
        return Check(name, None, f"level {level}", "every transfer writes lines: only to debug")
    return Check(name, True, f"level {level}")


def _states(device: Path) -> list[str]:
    return [_text(path) for path in sorted(device.glob("ports/*/state"))]


def _properties(path: Path) -> dict[str, int]:
    """Names and numbers, one a line."""
    pairs = (line.split() for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}  # noqa: PLR2004


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _number(node: Path) -> int:
    return int(node.name) if node.name.isdigit() else -1
