"""How processes end, and what they leave: nothing, or what a sweep can tell is dead."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path

from stagelink.adapters.shm import LockLiveness, SharedMemoryProvider, sweep

LEAVES = """
import os, sys
from stagelink.adapters.shm import SharedMemoryProvider
segment = SharedMemoryProvider(bytes.fromhex(sys.argv[1]), sys.argv[2]).allocate(4096)
if sys.argv[3] == "fork":
    child = os.fork()
    if child == 0:
        sys.exit(0)  # runs every finalizer of the interpreter
    assert os.waitpid(child, 0)[1] == 0
    os._exit(0 if os.listdir(sys.argv[2]) == [segment.name] else 1)
"""

READER = """
import sys
from stagelink.adapters.shm import ShmMapPlane
from stagelink.core.values import RegionRef
plane = ShmMapPlane(sys.argv[2])
peer = bytes.fromhex(sys.argv[1])
plane.attach(peer, bytes.fromhex(sys.argv[3]))
print(bytes(plane.view(peer, RegionRef(1, 0, 5))).decode())
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run *code* in a process of its own."""
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_an_interpreter_that_ends_without_closing_leaves_no_segment(tmp_path: Path) -> None:
    done = run(LEAVES, secrets.token_hex(16), str(tmp_path), "plain")

    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_a_childs_ordinary_end_leaves_its_parents_segment(tmp_path: Path) -> None:
    done = run(LEAVES, secrets.token_hex(16), str(tmp_path), "fork")

    assert (done.returncode, done.stderr) == (0, "")


def test_a_readers_end_leaves_the_owners_segment_and_both_are_silent(tmp_path: Path) -> None:
    """The resource tracker of multiprocessing would remove it, and warn."""
    from stagelink.adapters.shm import ShmMapPlane

    instance, plane = secrets.token_bytes(16), ShmMapPlane(str(tmp_path))
    with SharedMemoryProvider(instance, str(tmp_path)).allocate(4096) as segment:
        segment.buffer[:5] = b"hello"
        plane.register(1, segment)

        done = run(READER, instance.hex(), str(tmp_path), plane.describe().hex())

        assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
        assert (tmp_path / segment.name).exists()


def test_two_connectors_never_share_a_name_and_one_ends_without_the_other(tmp_path: Path) -> None:
    first, second = (
        SharedMemoryProvider(secrets.token_bytes(16), str(tmp_path)).allocate(4096)
        for _ in range(2)
    )

    first.close()

    assert [path.name for path in tmp_path.iterdir()] == [second.name]
    second.close()


def test_our_own_lock_survives_being_asked_about_by_another_path(tmp_path: Path) -> None:
    """Opening and closing it here would drop it, whatever name led to it."""
    real, alias = tmp_path / "real", tmp_path / "alias"
    real.mkdir()
    alias.symlink_to(real)
    own = LockLiveness(secrets.token_bytes(16), str(real))
    other = LockLiveness(secrets.token_bytes(16), str(alias))

    assert not other.is_dead(own.proof)
    assert sweep(str(alias)) == []

    asks = "import sys; from stagelink.adapters.shm import sweep; print(sweep(sys.argv[1]))"
    assert run(asks, str(real)).stdout == "[]\n"
    assert own.host == other.host
    own.close()
    other.close()
    assert list(real.iterdir()) == []


def test_hosts_differ_where_the_directories_do(tmp_path: Path) -> None:
    """A proof is absent elsewhere, and absence reads as death: so nobody may ask."""
    hosts = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        liveness = LockLiveness(secrets.token_bytes(16), str(tmp_path / name))
        hosts.append(liveness.host)
        liveness.close()

    assert len(set(hosts)) == len(hosts)
