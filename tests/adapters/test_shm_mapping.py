"""What is mapped: resident, protected as told, and alive until its last view has gone."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import os
import secrets
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

import pytest

from stagelink.adapters.shm import SharedMemoryProvider, ShmMapPlane, ShmWritePlane, populate
from stagelink.adapters.shm.segment import DIRECTORY
from stagelink.core.errors import ConfigError, TransportError
from stagelink.core.values import RegionRef
from stagelink.ports.plane import WriteOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZE = 64 << 10
WHOLE = RegionRef(1, 0, SIZE)


@pytest.fixture
def mount() -> Iterator[Path]:
    """A directory of our own on the shared-memory mount, empty again at the end."""
    with tempfile.TemporaryDirectory(dir=DIRECTORY, prefix="test-") as directory:
        yield Path(directory)
        gc.collect()
        assert list(Path(directory).iterdir()) == []


def resident(view: memoryview) -> int:
    """How many bytes of the mapping that *view* lies in this process has in its page table."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii").splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            low, high = (int(bound, 16) for bound in head.split("-"))
            inside = low <= address < high
        elif inside and head == "Rss:":
            return int(line.split()[1]) << 10
    pytest.fail("not mapped")


def test_both_sides_have_every_page_before_anybody_touches_one(mount: Path) -> None:
    instance = secrets.token_bytes(16)
    with SharedMemoryProvider(instance, str(mount)).allocate(SIZE) as segment:
        assert resident(segment.buffer) == SIZE
        for kind in (ShmMapPlane, ShmWritePlane):
            owner, reader = kind(str(mount)), kind(str(mount))
            owner.register(1, segment)
            reader.attach(instance, owner.describe())
            assert resident(reader._peers[instance][1].view) == SIZE


def test_an_older_kernel_gets_its_pages_by_touch(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(mapping: mmap.mmap) -> None:
        del mapping
        raise OSError(errno.EINVAL, "no such advice")

    monkeypatch.setattr(populate, "_advise_unlocked", unknown)
    with SharedMemoryProvider(secrets.token_bytes(16), str(mount)).allocate(SIZE) as segment:
        assert resident(segment.buffer) == SIZE
        assert bytes(segment.buffer) == bytes(SIZE)


def test_a_page_that_cannot_be_had_is_an_error_and_leaves_no_name(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(mapping: mmap.mmap) -> None:
        del mapping
        raise OSError(errno.EIO, "poisoned")

    monkeypatch.setattr(populate, "_advise_unlocked", poisoned)
    with pytest.raises(TransportError, match="poisoned"):
        SharedMemoryProvider(secrets.token_bytes(16), str(mount)).allocate(SIZE)


@pytest.mark.parametrize("size", [0, -1])
def test_a_segment_of_no_bytes_is_refused(mount: Path, size: int) -> None:
    with pytest.raises(ConfigError):
        SharedMemoryProvider(secrets.token_bytes(16), str(mount)).allocate(size)


def test_a_map_plane_maps_for_reading_only_where_told(mount: Path) -> None:
    instance = secrets.token_bytes(16)
    with SharedMemoryProvider(instance, str(mount)).allocate(SIZE) as segment:
        owner = ShmMapPlane(str(mount))
        owner.register(1, segment)
        segment.buffer[:4] = b"left"
        for writable in (True, False):
            reader = ShmMapPlane(str(mount), writable=writable)
            reader.attach(instance, owner.describe())
            view = reader.view(instance, WHOLE)
            assert (view.readonly, bytes(view[:4])) == (not writable, b"left")


@pytest.mark.parametrize(("offset", "size"), [(0.0, 1), (0, 1.0), (True, 1), ("0", 1), (None, 1)])
def test_numbers_that_are_no_integers_are_refused(mount: Path, offset: Any, size: Any) -> None:
    instance, errors = secrets.token_bytes(16), []
    where = RegionRef(1, offset, size)
    with SharedMemoryProvider(instance, str(mount)).allocate(SIZE) as segment:
        maps, writes = ShmMapPlane(str(mount)), ShmWritePlane(str(mount))
        for plane in (maps, writes):
            plane.register(1, segment)
            plane.attach(instance, plane.describe())
        with pytest.raises(TransportError, match="integers"):
            maps.view(instance, where)
        order = WriteOrder(instance, 1, where, where)
        writes.post(order, lambda _, error: errors.append(error))
        assert len(errors) == 1
        assert "integers" in errors[0]


def test_more_regions_than_a_greeting_can_carry_are_refused(mount: Path) -> None:
    instance, plane = secrets.token_bytes(16), ShmMapPlane(str(mount))
    with SharedMemoryProvider(instance, str(mount)).allocate(4096) as segment:
        with pytest.raises(TransportError, match="fewer segments"):
            for region in range(200):
                plane.register(region, segment)
        assert len(plane.describe()) <= 4096
        plane.attach(instance, plane.describe())


def test_a_region_described_twice_is_refused(mount: Path) -> None:
    instance, plane = secrets.token_bytes(16), ShmMapPlane(str(mount))
    with SharedMemoryProvider(instance, str(mount)).allocate(4096) as segment:
        plane.register(1, segment)
        with pytest.raises(TransportError, match="twice"):
            plane.attach(instance, plane.describe() * 2)


def test_a_closed_plane_has_no_thread_descriptor_or_page_left(mount: Path) -> None:
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    instance, ended = secrets.token_bytes(16), threading.Event()
    segment = SharedMemoryProvider(instance, str(mount)).allocate(SIZE * 2)
    plane = ShmWritePlane(str(mount))
    plane.register(1, segment)
    plane.attach(instance, plane.describe())
    large = RegionRef(1, 0, SIZE + 1)
    plane.post(WriteOrder(instance, 1, large, large), lambda *_: ended.set())
    assert ended.wait(10.0)

    plane.close()
    segment.close()

    assert set(threading.enumerate()) == threads
    assert len(os.listdir("/proc/self/fd")) == files  # each mapping would keep one
    with pytest.raises(TransportError, match="closed"):
        plane.attach(instance, b"")


def makers() -> list[Callable[[Any], Any]]:
    """What consumers make of a buffer; each must keep that very object alive."""
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    return [
        lambda buffer: torch.frombuffer(buffer, dtype=torch.uint8),
        lambda buffer: torch.frombuffer(buffer, dtype=torch.float32, count=8, offset=64)[2:],
        lambda buffer: torch.frombuffer(memoryview(buffer), dtype=torch.uint8),
        lambda buffer: torch.frombuffer(buffer, dtype=torch.uint8).numpy()[3:],
        lambda buffer: torch.from_numpy(numpy.frombuffer(buffer, dtype=numpy.uint8)),
        lambda buffer: numpy.frombuffer(buffer, dtype=numpy.uint8)[5:],
        lambda buffer: numpy.frombuffer(memoryview(buffer).toreadonly(), dtype=numpy.uint8),
        lambda buffer: memoryview(buffer).cast("B")[8:16],
    ]


@pytest.mark.parametrize("index", range(8))
def test_a_ctypes_array_over_a_view_ends_exactly_with_the_last_thing_made_of_it(
    mount: Path, index: int
) -> None:
    """A release is a finalizer of such an array (a memoryview would end too early)."""
    make = makers()[index]
    ended: list[int] = []
    instance = secrets.token_bytes(16)
    segment = SharedMemoryProvider(instance, str(mount)).allocate(SIZE)
    plane = ShmMapPlane(str(mount))
    plane.register(1, segment)
    plane.attach(instance, plane.describe())
    segment.buffer[:] = b"\x05" * SIZE
    buffer = (ctypes.c_char * 4096).from_buffer(plane.view(instance, RegionRef(1, 64, 4096)))
    finalize(buffer, ended.append, 1)
    made = make(buffer)
    plane.close()
    segment.close()

    del buffer, plane, segment
    gc.collect()

    assert ended == []
    seen = memoryview(made.numpy() if hasattr(made, "numpy") else made).cast("B")
    assert bytes(seen[:4]) == b"\x05" * 4  # its pages are still there
    seen.release()
    del made
    gc.collect()
    assert ended == [1]
