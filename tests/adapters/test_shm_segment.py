"""Segments: reserved or refused, gone by name at once and by page with the last view."""

from __future__ import annotations

import errno
import mmap
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

from stagelink.adapters.shm import LockLiveness, SharedMemoryProvider, populate, sweep
from stagelink.adapters.shm import segment as segment_module
from stagelink.adapters.shm.segment import DIRECTORY
from stagelink.core.errors import CapacityError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator

OWNER = """
import sys
from stagelink.adapters.shm import LockLiveness, SharedMemoryProvider
instance, directory = bytes.fromhex(sys.argv[1]), sys.argv[2]
proof = LockLiveness(instance, directory)
segment = SharedMemoryProvider(instance, directory).allocate(1 << 16)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def small_mount(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB, where we may mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip("mounting needs rights that we do not have")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def start_owner(instance: bytes, directory: str) -> subprocess.Popen[str]:
    """Another process that owns a lock and a segment."""
    command = [sys.executable, "-c", OWNER, instance.hex(), directory]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    return owner


def end(owner: subprocess.Popen[str]) -> None:
    """Kill it and close our pipes."""
    owner.kill()
    owner.communicate()


def mapped(name: str, size: int) -> mmap.mmap:
    """Somebody else's mapping of a segment."""
    descriptor = os.open(Path(DIRECTORY, name), os.O_RDWR)
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def test_a_segment_is_zeroed_shared_and_as_large_as_asked() -> None:
    """Two mappings are the same pages."""
    segment = SharedMemoryProvider(secrets.token_bytes(16)).allocate(3 * 4096)
    try:
        assert (segment.size, len(segment.buffer), segment.kind) == (12288, 12288, "host-shared")
        assert bytes(segment.buffer) == bytes(12288)
        mapping = mapped(segment.name, segment.size)
        segment.buffer[-5:] = b"hello"
        assert mapping[-5:] == b"hello"
    finally:
        segment.close()


def test_the_name_goes_with_the_close_and_the_pages_with_the_last_view() -> None:
    """Closing takes memory from nobody."""
    segment = SharedMemoryProvider(secrets.token_bytes(16)).allocate(4096)
    path = Path(DIRECTORY, segment.name)
    mapping = memoryview(mapped(segment.name, 4096))
    view = segment.buffer[10:15]
    view[:] = b"still"
    assert path.exists()
    assert path.stat().st_mode & 0o777 == 0o600
    segment.close()
    segment.close()
    assert not path.exists()
    assert bytes(view) == bytes(mapping[10:15]) == b"still"
    with pytest.raises(TransportError, match="closed"):
        _ = segment.buffer


def test_a_pool_beyond_the_mount_is_refused_with_both_numbers_and_leaves_nothing() -> None:
    """However large the mount is."""
    instance = secrets.token_bytes(16)
    with pytest.raises(CapacityError) as caught:
        SharedMemoryProvider(instance).allocate(1 << 50)
    error = caught.value
    assert error.never_fits
    assert error.numbers["requested"] == float(1 << 50)
    assert str(1 << 50) in str(error)
    assert f"{error.numbers['free']:.0f}" in str(error)
    assert "--shm-size" in error.remedy
    assert not list(Path(DIRECTORY).glob(f"*{instance.hex()}*"))


def test_a_full_mount_is_refused_before_anybody_touches_a_page(small_mount: Path) -> None:
    """A page that cannot be had later would end the process with SIGBUS."""
    provider = SharedMemoryProvider(secrets.token_bytes(16), str(small_mount))
    first = provider.allocate(768 << 10)
    open_before = descriptors()
    for size in (512 << 10, 4 << 20):
        with pytest.raises(CapacityError) as caught:
            provider.allocate(size)
        assert caught.value.numbers["requested"] == size
        assert 0 <= caught.value.numbers["free"] <= 256 << 10
    assert [path.name for path in small_mount.iterdir()] == [first.name]
    assert descriptors() == open_before
    first.close()
    second = provider.allocate(768 << 10)
    second.close()
    assert not list(small_mount.iterdir())


def test_another_may_take_the_last_room_on_an_older_kernel(
    small_mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at the free space proves nothing: it is the reservation that does."""

    def unknown(mapping: mmap.mmap) -> None:
        del mapping
        raise OSError(errno.EINVAL, "no such advice")

    monkeypatch.setattr(populate, "_advise_unlocked", unknown)
    monkeypatch.setattr(segment_module, "available", lambda directory: 1 << 40)
    with pytest.raises(CapacityError):
        SharedMemoryProvider(secrets.token_bytes(16), str(small_mount)).allocate(2 << 20)
    assert not list(small_mount.iterdir())


def test_a_directory_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    """With the path and the remedy."""
    with pytest.raises(TransportError, match="missing") as caught:
        SharedMemoryProvider(secrets.token_bytes(16), str(tmp_path / "missing")).allocate(4096)
    assert "tmpfs" in caught.value.remedy


def test_no_descriptor_is_kept_for_a_segment() -> None:
    """Nothing is left once it is closed and nobody views it."""
    provider = SharedMemoryProvider(secrets.token_bytes(16))
    provider.allocate(4096).close()
    before = descriptors()
    for _ in range(20):
        segment = provider.allocate(4096)
        segment.close()
        del segment
    # Python's own mmap keeps one descriptor each, which goes with the mapping.
    assert descriptors() == before


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # xdist has threads
def test_a_forked_child_does_not_take_the_segment_away() -> None:
    """Neither by closing it nor by exiting."""
    segment = SharedMemoryProvider(secrets.token_bytes(16)).allocate(4096)
    child = os.fork()
    if child == 0:
        segment.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert Path(DIRECTORY, segment.name).exists()
    segment.close()


# --- sweep ---------------------------------------------------------------------------------


def test_a_sweep_removes_what_a_killed_owner_left_and_nothing_of_a_living_one(
    tmp_path: Path,
) -> None:
    """Ours, another process's, and things that are not ours at all, stay."""
    directory = str(tmp_path)
    dead, living = start_owner(secrets.token_bytes(16), directory), None
    try:
        living = start_owner(secrets.token_bytes(16), directory)
        own = secrets.token_bytes(16)
        proof, segment = LockLiveness(own, directory), SharedMemoryProvider(own, directory)
        memory = segment.allocate(4096)
        (tmp_path / "stagelink-of-somebody").write_text("else")
        everything = {path.name for path in tmp_path.iterdir()}
        assert sweep(directory) == []
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        removed = sweep(directory)
        assert len(removed) == 2
        assert {path.name for path in tmp_path.iterdir()} == everything - set(removed)
        assert {name for name in removed if name.endswith(".lock")}
        assert sweep(directory) == []
        memory.close()
        proof.close()
    finally:
        end(dead)
        if living is not None:
            end(living)
    assert len(sweep(directory)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["stagelink-of-somebody"]


def test_a_stopped_owner_is_not_swept(tmp_path: Path) -> None:
    """It goes on some day, and its lock with it."""
    owner = start_owner(secrets.token_bytes(16), str(tmp_path))
    try:
        owner.send_signal(signal.SIGSTOP)
        assert sweep(str(tmp_path)) == []
    finally:
        owner.send_signal(signal.SIGCONT)
        end(owner)


def test_a_segment_without_a_lock_is_residue_only_when_it_is_old(tmp_path: Path) -> None:
    """A young one may belong to an owner between two steps."""
    young, old = (tmp_path / f"stagelink-{secrets.token_hex(16)}-1" for _ in range(2))
    for path in (young, old):
        path.write_bytes(b"x")
    os.utime(old, (time.time() - 60, time.time() - 60))
    assert sweep(str(tmp_path)) == [old.name]
    assert young.exists()


def test_two_sweeps_at_once_are_fine(tmp_path: Path) -> None:
    """Each file is removed once, and nobody fails over the other."""
    old_s = time.time() - 60
    for _ in range(200):
        path = tmp_path / f"stagelink-{secrets.token_hex(16)}-1"
        path.write_bytes(b"x")
        os.utime(path, (old_s, old_s))
    removed: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: removed.append(sweep(str(tmp_path)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert sorted(sum(removed, [])) == sorted(set(sum(removed, [])))
    assert sum(map(len, removed)) == 200
    assert not list(tmp_path.iterdir())
