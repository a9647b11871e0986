"""Proof of death: the kernel's word, which neither a stop nor a fork can bend."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stagelink.adapters.shm import LockLiveness, sweep
from stagelink.adapters.shm.liveness import is_locked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OWNER = """
import os, sys, time
from stagelink.adapters.shm import LockLiveness
proof = LockLiveness(bytes.fromhex(sys.argv[1]), sys.argv[2])
child = 0
if sys.argv[3] == "fork":
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
print(proof.proof, child, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[LockLiveness]:
    """The one who asks."""
    liveness = LockLiveness(secrets.token_bytes(16), str(tmp_path))
    yield liveness
    liveness.close()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], str, int]]]:
    """Starts owners of a lock; their process, proof and child (or 0)."""
    started: list[subprocess.Popen[str]] = []

    def start(how: str = "") -> tuple[subprocess.Popen[str], str, int]:
        command = [sys.executable, "-c", OWNER, secrets.token_hex(16), str(tmp_path), how]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        started.append(process)
        assert process.stdout is not None
        proof, child = process.stdout.readline().split()
        return process, proof, int(child)

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def dead_within(judge: LockLiveness, proof: str, patience_s: float) -> bool:
    """Whether *proof* is judged dead in time."""
    until_s = time.monotonic() + patience_s
    while not judge.is_dead(proof):
        if time.monotonic() > until_s:
            return False
        time.sleep(0.001)
    return True


def test_a_living_owner_is_not_dead_and_a_killed_one_is_at_once(
    judge: LockLiveness, owner: Callable[[], tuple[subprocess.Popen[str], str, int]]
) -> None:
    """Even before anybody has waited for the process."""
    process, proof, _ = owner()
    assert not judge.is_dead(proof)
    process.send_signal(signal.SIGKILL)
    assert dead_within(judge, proof, 0.5)


def test_a_stopped_owner_is_not_dead(
    judge: LockLiveness, owner: Callable[[], tuple[subprocess.Popen[str], str, int]]
) -> None:
    """It may go on writing some day."""
    process, proof, _ = owner()
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert not judge.is_dead(proof)
    process.send_signal(signal.SIGCONT)
    assert not judge.is_dead(proof)


def test_a_child_of_a_killed_owner_does_not_keep_it_alive(
    judge: LockLiveness, owner: Callable[[str], tuple[subprocess.Popen[str], str, int]]
) -> None:
    """Workers of a data loader must not hide the death of their parent."""
    process, proof, child = owner("fork")
    try:
        assert not judge.is_dead(proof)
        process.send_signal(signal.SIGKILL)
        assert dead_within(judge, proof, 0.5)
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_childs_end_leaves_the_parents_lock(
    judge: LockLiveness, owner: Callable[[str], tuple[subprocess.Popen[str], str, int]]
) -> None:
    """Closing its copy of the descriptor is not closing ours."""
    _, proof, child = owner("fork")
    os.kill(child, signal.SIGKILL)
    assert not dead_within(judge, proof, 0.1)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # xdist has threads
def test_a_childs_close_leaves_the_parents_lock(tmp_path: Path) -> None:
    """What was opened before the fork is the parent's."""
    liveness = LockLiveness(secrets.token_bytes(16), str(tmp_path))
    child = os.fork()
    if child == 0:
        liveness.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / liveness.proof).exists()
    probe = f"import sys; from pathlib import Path; from {is_locked.__module__} import is_locked"
    code = f"{probe}; sys.exit(is_locked(Path(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(tmp_path / liveness.proof)]
    assert subprocess.run(command, check=False).returncode == 1
    liveness.close()
    assert subprocess.run(command, check=False).returncode == 0


def test_we_are_alive_until_we_close(judge: LockLiveness, tmp_path: Path) -> None:
    """In one process the table tells; asking the kernel would cost us the lock."""
    other = LockLiveness(secrets.token_bytes(16), str(tmp_path))
    for _ in range(3):
        assert not judge.is_dead(other.proof)
        assert not judge.is_dead(judge.proof)
        assert sweep(str(tmp_path)) == []
    assert judge.host == other.host
    other.close()
    other.close()
    assert judge.is_dead(other.proof)
    assert not judge.is_dead(judge.proof)
    assert [path.name for path in tmp_path.iterdir()] == [judge.proof]


@pytest.mark.parametrize(
    "proof",
    [
        "", "x", "/etc/passwd", "../x", "stagelink-", "stagelink-00.lock", "\0", "\udcff",
        "stagelink-" + "0" * 32, "stagelink-" + "0" * 32 + "-1", "stagelink-" + "g" * 32 + ".lock",
        "stagelink-" + "0" * 32 + ".lock\n", "../stagelink-" + "0" * 32 + ".lock",
        "stagelink-" + "A" * 32 + ".lock", "x" * 100_000,
    ],
)  # fmt: skip
def test_a_malformed_proof_proves_nothing(judge: LockLiveness, proof: str) -> None:
    """It comes from a peer: nothing is opened for it, nobody is dead by it."""
    assert not judge.is_dead(proof)


def test_a_link_in_place_of_a_lock_proves_nothing(judge: LockLiveness, tmp_path: Path) -> None:
    """It is not followed."""
    name = f"stagelink-{secrets.token_hex(16)}.lock"
    (tmp_path / name).symlink_to("/dev/null")
    assert not judge.is_dead(name)


def test_judging_leaks_no_descriptor(judge: LockLiveness, tmp_path: Path) -> None:
    """Nor do owners that come and go."""
    (tmp_path / f"stagelink-{'0' * 32}.lock").write_bytes(b"")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        assert judge.is_dead(f"stagelink-{'0' * 32}.lock")
        LockLiveness(secrets.token_bytes(16), str(tmp_path)).close()
        sweep(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_sweep_beside_an_opening_owner_never_costs_it_the_lock(tmp_path: Path) -> None:
    """Both on threads of one process: the sweep must know the file before it has its name."""
    stop, made = threading.Event(), []

    def sweep_on() -> None:
        while not stop.is_set():
            sweep(str(tmp_path))

    thread = threading.Thread(target=sweep_on)
    thread.start()
    try:
        made = [LockLiveness(secrets.token_bytes(16), str(tmp_path)) for _ in range(100)]
    finally:
        stop.set()
        thread.join(10.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(one.proof for one in made)
    code = (
        f"import sys; from pathlib import Path; from {is_locked.__module__} import is_locked\n"
        "sys.exit(not all(map(is_locked, Path(sys.argv[1]).iterdir())))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0
    for one in made:
        one.close()
