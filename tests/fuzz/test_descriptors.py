"""What a peer says of its memory names files: only its own segments are ever opened."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stagelink.adapters.shm import SharedMemoryProvider, ShmMapPlane, ShmWritePlane
from stagelink.adapters.shm.regions import _HEAD
from stagelink.adapters.shm.segment import DIRECTORY
from stagelink.core.errors import TransportError
from stagelink.core.values import RegionRef
from stagelink.ports.plane import WriteOrder

SIZE = 64 << 10
LIAR, VICTIM = secrets.token_bytes(16), secrets.token_bytes(16)
NAME = f"stagelink-{LIAR.hex()}-1"


@pytest.fixture
def mount() -> Iterator[Path]:
    """A directory on the shared-memory mount with a victim's segment in it."""
    with tempfile.TemporaryDirectory(dir=DIRECTORY, prefix="test-") as directory:
        segment = SharedMemoryProvider(VICTIM, directory).allocate(SIZE)
        segment.buffer[:] = b"v" * SIZE
        yield Path(directory)
        assert bytes(segment.buffer) == b"v" * SIZE, "nobody has touched it"
        segment.close()


def described(name: str, size: int = SIZE, region: int = 1) -> bytes:
    """One row of a description."""
    raw = name.encode("utf-8", "surrogateescape")
    return _HEAD.pack(len(raw), region, size) + raw


def victim(mount: Path) -> Path:
    """The victim's segment."""
    [path] = mount.glob(f"*{VICTIM.hex()}-*")
    return path


def honest(mount: Path) -> None:
    """A file as a connector makes it."""
    (mount / NAME).write_bytes(bytes(SIZE))
    os.chmod(mount / NAME, 0o600)


def sparse(mount: Path) -> None:
    """A file that has a size and no bytes; to map it would take them from us."""
    with (mount / NAME).open("wb") as file:
        file.truncate(1 << 40)


FILES: list[tuple[str, Callable[[Path], object], str, int]] = [
    ("a symbolic link to a victim", lambda m: (m / NAME).symlink_to(victim(m)), NAME, SIZE),
    ("a second name of a victim", lambda m: os.link(victim(m), m / NAME), NAME, SIZE),
    ("a symbolic link to a device", lambda m: (m / NAME).symlink_to("/dev/zero"), NAME, SIZE),
    ("a symbolic link to itself", lambda m: (m / NAME).symlink_to(NAME), NAME, SIZE),
    ("a pipe", lambda m: os.mkfifo(m / NAME), NAME, SIZE),
    ("a directory", lambda m: (m / NAME).mkdir(), NAME, SIZE),
    ("a file of holes", sparse, NAME, 1 << 40),
    ("a file that is too short", honest, NAME, SIZE + 1),
    ("a file that is empty", lambda m: (m / NAME).touch(), NAME, SIZE),
    ("no file", lambda _: None, NAME, SIZE),
    ("no bytes", honest, NAME, 0),
    ("more bytes than there are numbers", honest, NAME, (1 << 64) - 1),
    ("a victim's segment", lambda _: None, f"stagelink-{VICTIM.hex()}-1", SIZE),
    ("its own lock", lambda m: (m / f"stagelink-{LIAR.hex()}.lock").touch(), f"stagelink-{LIAR.hex()}.lock", 1),
    ("a path upwards", honest, f"../{NAME}", SIZE),
    ("a path upwards behind its name", honest, f"{NAME}/../{NAME}", SIZE),
    ("an absolute path", honest, f"/etc/{NAME}", SIZE),
    ("a name with a zero byte", honest, f"{NAME}\0", SIZE),
    ("a name with a new line", honest, f"{NAME}\n", SIZE),
    ("a name with foreign digits", honest, NAME[:-1] + "\u0661", SIZE),
    ("no name", honest, "", SIZE),
]  # fmt: skip


@pytest.mark.parametrize("kind", [ShmMapPlane, ShmWritePlane])
@pytest.mark.parametrize(
    ("what", "make", "name", "size"), FILES, ids=[f[0].replace(" ", "_") for f in FILES]
)
def test_a_description_of_what_is_no_segment_of_its_own_is_refused(
    mount: Path, kind: type[ShmMapPlane | ShmWritePlane], what: str,
    make: Callable[[Path], object], name: str, size: int,
) -> None:  # fmt: skip
    make(mount)
    before = len(os.listdir("/proc/self/fd"))
    with closing(kind(str(mount))) as plane:
        with pytest.raises(TransportError):
            plane.attach(LIAR, described(name, size))

        with pytest.raises(TransportError, match="not attached"):
            plane.theirs(LIAR, RegionRef(1, 0, 1))
        assert len(os.listdir("/proc/self/fd")) == before
    for path in mount.glob(f"*{LIAR.hex()}*"):
        assert path.is_symlink() or path.stat().st_blocks * 512 <= SIZE, "nothing was filled in"


@pytest.mark.parametrize("rows", [b"", b"\0", described(NAME) * 2, described(NAME) + b"x",
                                  described(NAME)[:-1], b"\xff" * 4096, described(NAME) * 99])  # fmt: skip
def test_a_malformed_description_leaves_nothing_attached(mount: Path, rows: bytes) -> None:
    honest(mount)
    with closing(ShmWritePlane(str(mount))) as plane, pytest.raises(TransportError):
        plane.attach(LIAR, rows)


def test_the_honest_file_is_attached(mount: Path) -> None:
    honest(mount)
    with closing(ShmMapPlane(str(mount))) as plane:
        plane.attach(LIAR, described(NAME))
        assert len(plane.view(LIAR, RegionRef(1, 0, SIZE))) == SIZE


OUTSIDE = [
    RegionRef(1, SIZE, 1), RegionRef(1, 0, SIZE + 1), RegionRef(1, 2**63 - 1, 1), RegionRef(1, 0, 2**63 - 1),
    RegionRef(1, 2**63 - 1, 2**63 - 1), RegionRef(2, 0, 1), RegionRef(2**63 - 1, 0, 1), RegionRef(0, 0, 0),
    RegionRef(1, -1, 2), RegionRef(1, 1, -1),
]  # fmt: skip


@pytest.mark.parametrize("where", OUTSIDE, ids=str)
def test_a_view_or_write_outside_of_what_is_attached_is_refused(
    mount: Path, where: RegionRef
) -> None:
    honest(mount)
    with closing(ShmMapPlane(str(mount))) as maps, closing(ShmWritePlane(str(mount))) as writes:
        for plane in (maps, writes):
            plane.attach(LIAR, described(NAME))
        with pytest.raises(TransportError):
            maps.view(LIAR, where)
        with SharedMemoryProvider(VICTIM, str(mount / "..")).allocate(SIZE) as ours:
            writes.register(1, ours)
            told: list[str] = []
            for source, target in (
                (RegionRef(1, 0, where.size), where),
                (where, RegionRef(1, 0, where.size)),
            ):
                try:
                    writes.post(
                        WriteOrder(LIAR, 1, source, target), lambda _, error: told.append(error)
                    )
                except TransportError as error:
                    told.append(str(error))
            assert len(told) == 2
            assert all(told)
    assert (mount / NAME).read_bytes() == bytes(SIZE)
