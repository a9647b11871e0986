"""What to measure, checked before anything is started."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path  # noqa: TC003  a field's type
from typing import TYPE_CHECKING, NamedTuple

from stagelink.config import load_config
from stagelink.core.errors import ConfigError
from stagelink.plugins import BackendContext, Manager

if TYPE_CHECKING:
    from stagelink.plugins import Backend
    from stagelink.ports import DataPlane

DEFAULT_SIZES = "4K,64K,1M,16M,256M"
QUICK_SIZES = "4K,64K,1M,16M"
ROUNDS = 1000
QUICK_ROUNDS = 100
REPEATS = 5
BUDGET_S = 6.0
QUICK_BUDGET_S = 1.0
"""Seconds for the hand-offs of one size, unless their number is given."""

DEPTH = 4
"""Payloads outstanding while throughput is measured."""

HEADROOM = 1 << 20
MOST = 4 << 30
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Options(NamedTuple):
    """What the user asked for; *rounds* None means enough for steady figures."""

    sizes: str | None = None
    backend: str = "auto"
    rounds: int | None = None
    quick: bool = False
    plot: Path | None = None
    peers: bool = False
    busy: bool = False
    soak: float | None = None
    integrity: str = ""


class Plan(NamedTuple):
    """What will be run.

    Attributes:
        sizes: bytes of the payloads, ascending.
        rounds: hand-offs measured of payloads up to 1 MiB; of larger ones fewer.
        repeats: into how many interleaved blocks they are cut.
        budget_s: how long the hand-offs of one size may take.
        stream_s: how long throughput is measured for each size.
        planes: the backends that *backend* stands for, best first.
        alone: whether the consumer is a process of its own (else a thread).
        maps: whether it uses the producer's pages in place (else its own pool).
        shm_dir: the mount for shared memory.
        peers, busy: whether to measure these too.
        integrity: the digest that both ends compute, or empty.
    """

    sizes: list[int]
    backend: str
    rounds: int
    repeats: int
    budget_s: float
    stream_s: float
    planes: list[str]
    alone: bool
    maps: bool
    shm_dir: str
    peers: bool
    busy: bool
    integrity: str

    @property
    def pool_bytes(self) -> int:
        """Room for as many of the largest payload as are outstanding, and their headers."""
        return DEPTH * (self.sizes[-1] + HEADROOM)

    def rounds_of(self, size: int) -> int:
        """Hand-offs in one repeat; large payloads need fewer for the same time."""
        wanted = min(self.rounds, max(10, (self.rounds << 20) // max(size, 1)))
        return max(1, wanted // self.repeats)


def plan(options: Options) -> Plan:
    """Turn what was asked for into what will be run.

    Raises:
        ConfigError: a size or number is wrong, the backend cannot work, or memory is too small.
    """
    check_plot(options.plot)
    default = QUICK_SIZES if options.quick else DEFAULT_SIZES
    sizes = parse_sizes(default if options.sizes is None else options.sizes)
    rounds = options.rounds
    if rounds is None:
        rounds = QUICK_ROUNDS if options.quick else ROUNDS
    if rounds < 1:
        msg = f"{rounds} rounds measure nothing"
        raise ConfigError(msg, remedy="give --rounds a number of at least 1")
    given = {"backend": options.backend, "integrity": options.integrity}
    config = load_config({"stage": "bench", "role": "peer", **given})
    manager, context = Manager(), BackendContext(bytes(16), config)
    chosen = manager.choose(options.backend, context)
    alone = chosen[0].channel != "memory"
    made = Plan(
        sizes, options.backend, rounds, REPEATS, _budget_s(options),
        0.3 if options.quick else 0.6,
        [backend.name for backend in chosen], alone, _maps(manager, chosen[0], context),
        config.shm_dir, options.peers, options.busy, options.integrity,
    )  # fmt: skip
    if alone:
        check_pools(made)
    return made


def parse_sizes(text: str) -> list[int]:
    """``"4K,1M"`` in bytes, ascending, each once.

    Raises:
        ConfigError: one of them is no size, or too small or large to be measured.
    """
    return sorted({_size(word.strip()) for word in text.split(",")})


def _size(word: str) -> int:
    bare = word.upper().removesuffix("B").removesuffix("I")
    unit = _UNITS.get(bare[-1:], 1)
    digits = bare[:-1] if unit > 1 else bare
    if not (digits.isascii() and digits.isdigit()):
        msg = f"{word!r} is no size"
        raise ConfigError(msg, remedy="write sizes as 4K,64K,1M,16M,256M, or in bytes")
    size = int(digits) * unit
    if not 1 <= size <= MOST:
        msg = f"the size {word!r} is {size} bytes, allowed are 1 to {MOST}"
        raise ConfigError(msg, remedy="write sizes as 4K,64K,1M,16M,256M, or in bytes")
    return size


def _budget_s(options: Options) -> float:
    if options.rounds is not None:
        return float("inf")  # what was asked for will be done
    return QUICK_BUDGET_S if options.quick else BUDGET_S


def _maps(manager: Manager, backend: Backend, context: BackendContext) -> bool:
    plane: DataPlane = manager.build(backend.plane, context)
    try:
        return plane.capabilities.mode == "map"
    finally:
        plane.close()


def check_pools(made: Plan) -> None:
    """Refuse pools that do not fit.

    Raises:
        ConfigError: says how large the largest size may be.
    """
    pools = 1 if made.maps else 2
    most = max(0, free_bytes(made.shm_dir) // (pools * DEPTH) - HEADROOM)
    what = f"pools for {DEPTH} payloads of {size_name(made.sizes[-1])}"
    check_room(what, pools * made.pool_bytes, made.shm_dir, f"give --sizes up to {most >> 10}K")


def check_room(what: str, need: int, directory: str, remedy: str) -> None:
    """Refuse what does not fit *directory*.

    Raises:
        ConfigError: *need* bytes are more than are free there.
    """
    free = free_bytes(directory)
    if need > free:
        msg = f"{what} need {need >> 20} MiB, and {directory} has {free >> 20} MiB free"
        raise ConfigError(msg, remedy=f"{remedy}, or mount a larger {directory}")


def free_bytes(directory: str) -> int:
    """What may be used there, by the system's word."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def size_name(size: int) -> str:
    """``4 KiB`` and the like."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def check_plot(path: Path | None) -> None:
    """Refuse a plot that could not be drawn in the end.

    Raises:
        ConfigError: matplotlib is missing, or the file name says no format.
    """
    if path is None:
        return
    if path.suffix.lower() not in {".png", ".svg"}:
        msg = f"cannot tell the format of the plot {str(path)!r}"
        raise ConfigError(msg, remedy="let the name end in .png or .svg")
    if not path.absolute().parent.is_dir():
        msg = f"there is no directory for the plot {str(path)!r}"
        raise ConfigError(msg, remedy="make it first, or choose another")
    if find_spec("matplotlib") is None:
        msg = "a plot needs matplotlib"
        raise ConfigError(msg, remedy="pip install 'stagelink[bench]'")
