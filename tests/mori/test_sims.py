"""The simulators bear the real engine: every name that it asks for, and its bytes both ways."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from tests.mori.real import SIZE, Far, Side, child, ended, mori
from tests.sims import engine, hipsim, verbsim

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZES = [1, 4096, SIZE]
BACKENDS: list[tuple[str, dict[str, Any]]] = [
    ("xgmi", {}),
    ("rdma", {}),
    ("rdma", {"poll_cq_mode": mori.PollCqMode.EVENT, "enable_notification": False}),
]


# --- names ---------------------------------------------------------------------------------------


def names(library: Path, *, defined: bool) -> set[str]:
    """Symbols with their versions."""
    which = "--defined-only" if defined else "--undefined-only"
    lines = subprocess.run(
        ["nm", "-D", which, str(library)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return {line.split()[-1].replace("@@", "@") for line in lines}


def libraries() -> list[Path]:
    folder = engine.installed()
    assert folder
    return sorted(folder.rglob("*.so"))


@pytest.mark.parametrize("variant", ["host", "cuda"])
def test_every_function_of_hip_that_the_engine_names_is_there(variant: str) -> None:
    wanted = set().union(*(names(library, defined=False) for library in libraries()))
    wanted = {name for name in wanted if re.match(r"(__)?hip[A-Z]", name)}

    assert len(wanted) > 40
    assert wanted - names(hipsim.build(variant), defined=True) == set()


def test_every_function_of_libibverbs_that_the_engine_looks_up_is_there() -> None:
    wanted = set()
    for library in libraries():
        wanted |= set(re.findall(rb"\0(_?ibv_[a-z_0-9]+)\0", library.read_bytes()))
    here = {name.partition("@")[0] for name in names(verbsim.build()[0], defined=True)}

    assert len(wanted) > 20
    assert {name.decode() for name in wanted} - here == set()


# --- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "settings"), BACKENDS)
def test_bytes_go_both_ways_between_processes(
    side: Callable[..., Side], far: Callable[..., Far], kind: str, settings: dict[str, Any]
) -> None:
    ours, theirs = side("ours", kind, 0x11, **settings), far("theirs", kind, 0x44, **settings)
    memory = ours.meet(theirs.described)
    theirs.process.ask("meet_only", ours.described())

    for size in SIZES:
        at = (SIZE - size) // 2
        theirs.process.ask("fill", 0x44)
        code, message = ended(ours.write(memory, size, at=at))
        assert code == "SUCCESS", message
        assert theirs.peek(SIZE) == (b"\x44" * at + b"\x11" * size).ljust(SIZE, b"\x44")
        ours.fill(0x55)
        theirs.process.ask("fill", 0x66)
        code, message = theirs.process.ask("push", ours.described(), size, at)
        assert code == "SUCCESS", message
        assert ours.peek(SIZE) == (b"\x55" * at + b"\x66" * size).ljust(SIZE, b"\x55")
        ours.fill(0x11)


@pytest.mark.parametrize(("kind", "settings"), BACKENDS)
def test_reads_and_batches_take_and_bring_the_right_bytes(
    side: Callable[..., Side], far: Callable[..., Far], kind: str, settings: dict[str, Any]
) -> None:
    ours, theirs = side("ours", kind, 0x11, **settings), far("theirs", kind, 0x44, **settings)
    memory = ours.meet(theirs.described)
    theirs.process.ask("meet_only", ours.described())
    session = ours.engine.create_session(ours.memory, memory)

    assert ended(session.read(5, 9, 100, 1))[0] == "SUCCESS"
    assert ours.peek(110) == (b"\x11" * 5 + b"\x44" * 100).ljust(110, b"\x11")

    ours.fill(0x77)
    assert ended(session.batch_write([0, 9000], [4096, 1], [50, 60], 2))[0] == "SUCCESS"
    assert theirs.peek(70) == (b"\x44" + b"\x77" * 60).ljust(70, b"\x44")
    assert theirs.peek(60, 4096) == (b"\x77" * 50).ljust(60, b"\x44")


@pytest.mark.parametrize("variant", ["host", "cuda"])
def test_both_variants_can_be_tried_by_hand(variant: str) -> None:
    """The CUDA here is one over host memory, so of that variant only the plumbing is tested."""
    cuda = str(hipsim.build_cuda_in_host_memory())
    around = {"HIPSIM_CUDART": cuda, "HIPSIM_LIBCUDA": cuda}
    command = ["-m", "tests.sims.hipsim.trial", variant]

    done = child(f"os.execv(sys.executable, [sys.executable, *{command}])", around)

    assert re.match(rf"{variant}: 2 devices, every byte right; ", done.stdout), done.stderr


# --- streams -------------------------------------------------------------------------------------

EIGHT_STREAMS = """
import ctypes
hip, byte = hipsim._hip(), hipsim.malloc(1)
streams, events = (ctypes.c_void_p * 8)(), (ctypes.c_void_p * 8)()
for i in range(8):
    hip.hipStreamCreateWithFlags(ctypes.byref(streams, 8 * i), 1)
    hip.hipEventCreateWithFlags(ctypes.byref(events, 8 * i), 2)

def last_one(in_order):
    with hipsim.held():
        for i, (stream, event) in enumerate(zip(streams, events)):
            stream, event = ctypes.c_void_p(stream), ctypes.c_void_p(event)
            if in_order and i:
                hip.hipStreamWaitEvent(stream, ctypes.c_void_p(events[i - 1]), 0)
            for value in (100 + i, i):
                hip.hipMemsetAsync(ctypes.c_void_p(byte), value, ctypes.c_size_t(1), stream)
            hip.hipEventRecord(event, stream)
    hip.hipDeviceSynchronize()
    return hipsim.view(byte, 1)[0]

print(sorted({last_one(False) for _ in range(40)}), {last_one(True) for _ in range(40)})
"""


@pytest.mark.parametrize(("seed", "last"), [("0", [7]), ("3", list(range(8)))])
def test_streams_overtake_each_other_if_asked_to_and_events_hold_them(
    seed: str, last: list[int]
) -> None:
    """What a stream does itself is never out of order."""
    done = child(EIGHT_STREAMS, {"HIPSIM_SHUFFLE": seed})

    assert done.stdout == f"{last} {{7}}\n", done.stderr


# --- devices -------------------------------------------------------------------------------------


def test_devices_are_those_that_are_to_be_seen() -> None:
    done = child(
        "print(hipsim.devices(), mori.IOEngine and hipsim.malloc(8, 1) > 0)",
        {"HIPSIM_DEVICES": "4", "HIP_VISIBLE_DEVICES": "3,1,9,0"},
    )

    assert done.stdout == "2 True\n", done.stderr


def test_a_handle_of_what_was_freed_opens_nothing_else(
    side: Callable[..., Side], far: Callable[..., Far]
) -> None:
    """Its descriptor has the same number, and another file behind it."""
    ours, theirs = side("ours", "xgmi"), far("theirs", "xgmi", device=1)
    memory = ours.meet(theirs.described)
    theirs.process.ask("replace")

    assert ended(ours.write(memory))[0] == "ERR_BAD_STATE"
    assert theirs.peek() == b"\x77" * 8


def test_a_full_device_refuses_and_the_other_has_room() -> None:
    done = child(
        """
first = hipsim.malloc(1 << 20)
try:
    hipsim.malloc(1)
except RuntimeError as error:
    print(error)
print(hipsim.malloc(1, 1) > 0)
hipsim.free(first)
print(hipsim.malloc(1) > 0)
""",
        {"HIPSIM_MEM_MB": "1"},
    )

    assert done.stdout.split("\n") == ["HIP error 2: out of memory", "True", "True", ""], (
        done.stderr
    )


def test_a_child_that_was_forked_has_no_part_in_its_parents_cards() -> None:
    """The pairs stay the parent's, and what it had under way is not done twice."""
    done = child("""
ours, theirs = Side("ours", "rdma"), Side("theirs", "rdma")
theirs.meet(ours.described())
memory = ours.meet(theirs.described())
print(*ended(ours.write(memory)), flush=True)
if not os.fork():
    print(verbsim.pairs(), flush=True)
    os._exit(0)
os.wait()
print(*ended(ours.write(memory)), len(verbsim.pairs()))
""")

    assert done.stdout.split("\n") == ["SUCCESS success", "[]", "SUCCESS success 2", ""], (
        done.stderr
    )
