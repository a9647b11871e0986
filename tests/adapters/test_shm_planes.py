"""Both planes over shared memory keep the contract, and trust no name."""

from __future__ import annotations

import secrets
import struct
from pathlib import Path

import pytest

from stagelink.adapters.shm import Segment, SharedMemoryProvider, ShmMapPlane, ShmWritePlane
from stagelink.core.errors import TransportError
from stagelink.core.values import RegionRef
from stagelink.plugins.conformance.plane import DataPlaneContract, MakeParty, Party

HEAD = struct.Struct("!HQQ")


def mapping(size: int) -> Party:
    """A party whose peers map its segment of *size* bytes."""
    instance = secrets.token_bytes(16)
    return Party(instance, ShmMapPlane(), SharedMemoryProvider(instance).allocate(size))


def writing(size: int) -> Party:
    """A party that writes into its peers' segments."""
    return mapping(size)._replace(plane=ShmWritePlane())


class TestShmMapPlane(DataPlaneContract):
    """Readers map."""

    @pytest.fixture
    def make_party(self) -> MakeParty:
        """Over /dev/shm."""
        return mapping


class TestShmWritePlane(DataPlaneContract):
    """Senders write."""

    @pytest.fixture
    def make_party(self) -> MakeParty:
        """Over /dev/shm."""
        return writing


def describe(name: str, size: int = 4096, region: int = 1) -> bytes:
    """A description as a hostile peer may write it."""
    return HEAD.pack(len(name.encode()), region, size) + name.encode()


@pytest.mark.parametrize("kind", [ShmMapPlane, ShmWritePlane])
def test_names_that_lead_elsewhere_are_refused(kind: type[ShmMapPlane], tmp_path: Path) -> None:
    """Only a plain segment name of that very peer is ever opened."""
    peer = secrets.token_bytes(16)
    own = f"stagelink-{peer.hex()}"
    target = tmp_path / "secret"
    target.write_bytes(b"s" * 8192)
    (tmp_path / f"{own}-7").symlink_to(target)
    (tmp_path / f"{own}-8").write_bytes(b"x" * 4095)
    plane = kind(str(tmp_path))
    names = [
        "secret", "../secret", f"{own}-1/../secret", f"../{tmp_path.name}/secret", str(target),
        f"{own}-7", f"{own}-9", f"{own}.lock", f"{own}-7\0", f"{own}-7\n", f"{own}-", "",
        f"stagelink-{peer.hex().upper()}-1", f"{own}-8",
    ]  # fmt: skip
    for name in names:
        with pytest.raises(TransportError):
            plane.attach(peer, describe(name))
    plane.close()


@pytest.mark.parametrize("size", [0, 8193, 1 << 40, 1 << 62, (1 << 64) - 1])
def test_a_segment_smaller_than_described_is_refused(size: int, tmp_path: Path) -> None:
    """Mapping beyond the end of a file would end in a signal."""
    peer = secrets.token_bytes(16)
    (tmp_path / f"stagelink-{peer.hex()}-1").write_bytes(b"x" * 8192)
    with pytest.raises(TransportError):
        ShmMapPlane(str(tmp_path)).attach(peer, describe(f"stagelink-{peer.hex()}-1", size))


def test_memory_of_another_kind_is_refused() -> None:
    """It has no name that a peer could map."""
    instance = secrets.token_bytes(16)
    segment = SharedMemoryProvider(instance).allocate(4096)
    try:
        foreign = type("Foreign", (), {"kind": "host-private", "name": "", "size": 4096})()
        for plane in (ShmMapPlane(), ShmWritePlane()):
            plane.register(1, segment)
            with pytest.raises(TransportError, match="host-private"):
                plane.register(2, foreign)
            plane.close()
    finally:
        segment.close()
    assert segment.kind == Segment.kind


def test_a_new_description_of_a_peer_replaces_the_old_one() -> None:
    """A view made before keeps its pages."""
    instance = secrets.token_bytes(16)
    provider = SharedMemoryProvider(instance)
    old, new = provider.allocate(4096), provider.allocate(4096)
    old.buffer[:3], new.buffer[:3] = b"old", b"new"
    plane = ShmMapPlane()
    try:
        where = RegionRef(1, 0, 3)
        plane.attach(instance, describe(old.name))
        before = plane.view(instance, where)
        plane.attach(instance, describe(new.name))
        assert (bytes(before), bytes(plane.view(instance, where))) == (b"old", b"new")
    finally:
        plane.close()
        old.close()
        new.close()
