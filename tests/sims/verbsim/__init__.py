"""RDMA cards in software, for the processes of one host: AMD's real RDMA backend runs on them.

A ``libibverbs.so.1`` with RoCE v2 devices, and the two libraries by which the engine finds its way
among cards and GPUs. Call :func:`setup` before anything imports ``mori``::

    from tests.sims import verbsim

    verbsim.setup()
    import mori.io

It loads :mod:`tests.sims.hipsim` as well, whose GPUs share a PCI bus with the cards.

**What is emulated**: reliable queue pairs with their states; write and read, also with immediate
data, send, inline, signaled or not; shared receive queues, receivers that are not ready, flushing,
overrun, completion channels, asynchronous events; the checks of domains, keys, bounds, access,
sequence numbers and addresses; capacity; and what happens to those who die.

**What is not**: atomics, datagrams, XRC, extended queue pairs and completion queues, memory windows,
dmabuf regions (``EOPNOTSUPP``), the states SQD and SQE.

Where it differs from a card:

- One-sided operations need the target process to run: a stopped peer stalls, a card would not.
- Requests of one pair do not overlap; between pairs their order is arbitrary.
- Registering touches pages and does not pin them. Memory that is unmapped while it is registered
  gives an error of the operation.
- The pause of a receiver that is not ready is always 0.64 ms.
- The kernel must let processes copy from and to each other (``process_vm_readv``): one user or
  root, no filter against it, and one network namespace for their sockets.

Environment, read when the first list of devices is made:

=========================== ============== =====================================================
``VERBSIM_DEVICES``         2              how many there are, or their names: ``mlx5_0,mlx5_1``
``VERBSIM_NS``              the user's id  processes see those of the same name only
``VERBSIM_HOST``            0              third number of the addresses ``10.86.<host>.<card>``
``VERBSIM_GIDS<n>``                        addresses of card n: ``v1=fe80::1,v2=10.0.0.1,-``
``VERBSIM_DELAY_US``        0              latency of a request
``VERBSIM_GBPS``            0              what a card carries, in Gb/s; 0 is no limit
``VERBSIM_RETRY_MS``                       how long what is lost is sent again
``VERBSIM_STALL_MS``        5000           how long a peer may take that lives and does not answer
``VERBSIM_PORTS_DOWN``      0              a bit for each card whose port is down at first
``VERBSIM_MAX_MR_MB``       0              larger regions are refused; 0 is no limit
``VERBSIM_REFUSE_ACCESS``   0              regions with one of these flags are refused
``VERBSIM_REG_ERRNO``       22             with this error
``VERBSIM_MAX_MSG``         1 GiB          bytes of a request
``VERBSIM_MAX_SGE``         16             parts of a request
``VERBSIM_MAX_QP_WR``       16384          requests of a pair
``VERBSIM_MAX_CQE``         1048576        entries of a completion queue
``VERBSIM_VENDOR_ID``       0              what the cards say they are
``VERBSIM_SYSFS``                          where the stand-ins for folders of /sys lie
``VERBSIM_TRACE``           0              1: errors and pairs on stderr, 2: every request
=========================== ============== =====================================================
"""

from __future__ import annotations

import ctypes
import enum
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.sims import building, engine, hipsim

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Event",
    "Pair",
    "Status",
    "delay",
    "drop_all",
    "event",
    "fail_next",
    "fail_regions",
    "held",
    "limit_regions",
    "pairs",
    "port_down",
    "retry_for",
    "setup",
    "stats",
]

FOLDER = Path(__file__).parent
PARTS = (
    "settings.c", "devices.c", "events.c", "memory.c", "completion.c", "receive.c", "pairs.c",
    "post.c", "requester.c", "responder.c", "names.c", "hooks.c",
)  # fmt: skip
MOST_PAIRS = 1024

_loaded: list[ctypes.CDLL] = []


class Status(enum.IntEnum):
    """How a request may end (``ibv_wc_status``)."""

    LOCAL_LENGTH = 1
    LOCAL_OPERATION = 2
    LOCAL_PROTECTION = 4
    FLUSHED = 5
    REMOTE_REQUEST = 9
    REMOTE_ACCESS = 10
    REMOTE_OPERATION = 11
    RETRIES_EXCEEDED = 12
    NOT_READY_EXCEEDED = 13
    GENERAL = 21


class Event(enum.IntEnum):
    """What a card may tell (``ibv_event_type``)."""

    PAIR_FATAL = 1
    PAIR_REQUEST = 2
    PAIR_ACCESS = 3
    DEVICE_FATAL = 8
    PORT_ACTIVE = 9
    PORT_ERROR = 10


class Pair(NamedTuple):
    """A queue pair of this process: ``state`` is RESET, INIT, RTR, RTS or ERR."""

    number: int
    state: str
    device: int


def setup() -> ctypes.CDLL:
    """Load the cards, then the GPUs and the engine, which finds all of them by name; once.

    Raises:
        CannotBuildError: there is no C compiler, or it refuses.
        ImportError: the engine is not installed.
    """
    if not _loaded:
        verbs, alias = build()
        os.environ.setdefault("MORI_ROCM_SMI_PATH", str(engine.build_smi()))
        library = ctypes.CDLL(str(verbs))
        ctypes.CDLL(str(alias))
        hipsim.setup()
        _loaded.append(library)
    return _loaded[0]


def build() -> tuple[Path, Path]:
    """Build the library and its alias; where they lie.

    Raises:
        CannotBuildError: there is no C compiler, or it refuses.
    """
    flags = [f"-Wl,--version-script={FOLDER / 'verbs.map'}"]
    sources = [FOLDER / name for name in PARTS]
    verbs = building.shared_library("verbsim", "libibverbs.so.1", sources, flags)
    flags = ["-Wl,--no-as-needed", f"-Wl,-rpath,{verbs.parent}", str(verbs)]
    alias = building.shared_library("verbsim-alias", "libibverbs.so", [FOLDER / "alias.c"], flags)
    return verbs, alias


def _lib() -> ctypes.CDLL:
    assert _loaded, "verbsim.setup() comes first"
    return _loaded[0]


# --- hooks: they act on the cards of this process ------------------------------------------------


def fail_next(count: int, status: Status, *, after: bool = False, skip: int = 0) -> None:
    """The next *count* requests end with *status*, after *skip* good ones.

    With *after* their bytes move all the same: only the news of it is lost.
    """
    _lib().verbsim_fail_next(count, int(status), int(after), skip)


def fail_regions(count: int, error: int) -> None:
    """The next *count* registrations fail with this errno."""
    _lib().verbsim_fail_regions(count, error)


@contextmanager
def limit_regions(max_bytes: int = 0, refused_access: int = 0, error: int = 0) -> Iterator[None]:
    """Within, larger regions and those with such access are refused (0: none), with this errno."""
    limit = _lib().verbsim_limit_regions
    limit(ctypes.c_long(max_bytes), ctypes.c_long(refused_access), error)
    try:
        yield
    finally:
        limit(ctypes.c_long(0), ctypes.c_long(0), 0)


@contextmanager
def delay(seconds: float) -> Iterator[None]:
    """Requests that are posted within take that long at least."""
    _lib().verbsim_set_delay_us(ctypes.c_long(int(seconds * 1e6)))
    try:
        yield
    finally:
        _lib().verbsim_set_delay_us(ctypes.c_long(0))


@contextmanager
def held() -> Iterator[None]:
    """No request begins within; those posted begin afterwards."""
    _lib().verbsim_hold(1)
    try:
        yield
    finally:
        _lib().verbsim_hold(0)


@contextmanager
def drop_all() -> Iterator[None]:
    """Whatever comes from others is lost, as on a broken cable."""
    _lib().verbsim_drop_all(1)
    try:
        yield
    finally:
        _lib().verbsim_drop_all(0)


@contextmanager
def retry_for(seconds: float) -> Iterator[None]:
    """What is lost is sent again for that long, whatever the pairs were told."""
    _lib().verbsim_set_retry_ms(ctypes.c_long(int(seconds * 1e3)))
    try:
        yield
    finally:
        _lib().verbsim_set_retry_ms(ctypes.c_long(-1))


@contextmanager
def port_down(device: int = 0) -> Iterator[None]:
    """The port of a card is down within; its applications are told of both."""
    assert _lib().verbsim_set_port(device, 0) >= 0, f"there is no device {device}"
    try:
        yield
    finally:
        _lib().verbsim_set_port(device, 1)


def event(device: int, what: Event, pair: int = 0) -> int:
    """Let a card tell something, of one pair or of all (0); how many were told.

    ``PAIR_FATAL`` fails the pair as well.
    """
    told: int = _lib().verbsim_event(device, int(what), pair)
    assert told >= 0, f"there is no device {device}"
    return told


def pairs() -> list[Pair]:
    """The queue pairs of this process."""
    states = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
    raw = (ctypes.c_uint32 * (3 * MOST_PAIRS))()
    count = _lib().verbsim_pairs(raw, MOST_PAIRS)
    return [Pair(raw[3 * i], states[raw[3 * i + 1]], raw[3 * i + 2]) for i in range(count)]


def stats() -> dict[str, int]:
    """What this process has done, and how many ``regions`` and ``pairs`` it has now.

    ``requests`` posted and ``bytes`` moved; of others' requests the ``sends_in`` and ``writes_in``
    (reads too) carried out, ``refusals`` and ``drops``; ``flushed`` completions; ``local`` ones
    between pairs of this process.
    """
    names = (
        "requests", "bytes", "sends_in", "writes_in", "refusals", "drops", "flushed", "regions",
        "pairs", "local",
    )  # fmt: skip
    values = (ctypes.c_long * len(names))()
    _lib().verbsim_stats(values)
    return dict(zip(names, values, strict=True))
