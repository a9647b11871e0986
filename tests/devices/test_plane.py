"""The map plane on device memory keeps the contract, and believes no description."""

from __future__ import annotations

import gc
import os
import random
import secrets

import pytest
from tests.devices.host import HANDLE, MEMORIES, ROOM, ipc, space

from stagelink.adapters.device import DevicePoolProvider
from stagelink.adapters.device_ipc import DeviceIpcPlane
from stagelink.adapters.device_ipc.envelope import SharedRegion, pack, parse
from stagelink.adapters.memory import PrivateMemoryProvider
from stagelink.core.errors import CapacityError, ConfigError, TransportError
from stagelink.core.values import RegionRef
from stagelink.plugins.conformance.elsewhere import Elsewhere
from stagelink.plugins.conformance.plane import DataPlaneContract, MakeParty, Party

PAGE = 4096


def party(size: int) -> Party:
    """A party with a pool of *size* bytes on the device."""
    instance = secrets.token_bytes(16)
    memory = DevicePoolProvider(space()).allocate(size)
    return Party(instance, DeviceIpcPlane(instance, ipc), memory)


class TestDeviceIpcPlane(DataPlaneContract):
    """Readers map."""

    @pytest.fixture
    def make_party(self) -> MakeParty:
        """On host memory that plays a device."""
        return party


class Owner:
    """A party in another process."""

    def __init__(self, size: int) -> None:
        self._party = party(size)
        self._party.memory.buffer[:] = bytes(range(256)) * (size // 256)
        self._party.plane.register(1, self._party.memory)

    def card(self) -> tuple[bytes, bytes]:
        """Instance and description."""
        return self._party.instance, self._party.plane.describe()


@pytest.fixture
def owner() -> object:
    """One that lives as long as the test."""
    made = Elsewhere(Owner, PAGE)
    yield made
    made.end()


@pytest.fixture
def reader() -> object:
    """A party here, with a pool of its own."""
    made = party(PAGE)
    made.plane.register(1, made.memory)
    yield made
    made.plane.close()
    made.memory.close()


def test_another_process_memory_is_mapped_once_and_unmapped_with_its_last_view(
    owner: Elsewhere, reader: Party
) -> None:
    instance, card = owner.ask("card")
    before = MEMORIES.calls.copy()
    reader.plane.attach(instance, card)
    second = party(PAGE)
    second.plane.register(1, second.memory)
    second.plane.attach(instance, card)
    view = reader.plane.view(instance, RegionRef(1, 256, 256))

    assert bytes(view) == bytes(range(256))
    assert MEMORIES.calls["open"] - before["open"] == 1
    second.plane.close()
    second.memory.close()
    assert reader.plane.fence(instance, dead=True)
    del second
    gc.collect()
    assert bytes(view) == bytes(range(256))
    assert MEMORIES.calls["shut"] == before["shut"]
    del view
    gc.collect()
    assert MEMORIES.calls["shut"] - before["shut"] == 1


def test_a_peer_that_claims_more_than_there_is_is_refused(owner: Elsewhere, reader: Party) -> None:
    instance, card = owner.ask("card")
    _, [region] = parse(card, "host", instance)
    lie = pack("host", instance, 1, [region._replace(size=2 * PAGE)])

    with pytest.raises(TransportError, match=f"claims {2 * PAGE} bytes .* there are {PAGE}"):
        reader.plane.attach(instance, lie)
    with pytest.raises(TransportError, match="not attached"):
        reader.plane.view(instance, RegionRef(1, 0, 1))


def test_a_dead_peers_handle_cannot_be_opened(owner: Elsewhere, reader: Party) -> None:
    instance, card = owner.ask("card")
    owner.kill()

    with pytest.raises(TransportError, match="the peer must live"):
        reader.plane.attach(instance, card)


def test_host_memory_is_refused() -> None:
    memory = PrivateMemoryProvider().allocate(PAGE)
    with pytest.raises(TransportError, match="cannot serve host-private memory"):
        DeviceIpcPlane(bytes(16), ipc).register(1, memory)


def test_nothing_can_be_attached_before_a_pool_is_registered() -> None:
    with pytest.raises(TransportError, match="register a pool first"):
        DeviceIpcPlane(bytes(16), ipc).attach(b"p" * 16, b"")


def test_pools_are_bounded_by_what_the_device_has() -> None:
    provider = DevicePoolProvider(space())
    with pytest.raises(CapacityError, match=f"it has {ROOM} available") as caught:
        provider.allocate(ROOM + 1)
    assert caught.value.never_fits
    with pytest.raises(ConfigError):
        provider.allocate(0)


def test_a_pool_is_freed_with_its_last_view() -> None:
    pytest.importorskip("torch")
    before = MEMORIES.calls["free"]
    pool = DevicePoolProvider(space()).allocate(PAGE)
    tensor = pool.buffer.tensor(0, 16)
    pool.close()
    gc.collect()
    assert MEMORIES.calls["free"] == before
    tensor.fill_(7)
    del tensor
    gc.collect()
    assert MEMORIES.calls["free"] == before + 1
    with pytest.raises(TransportError, match="is closed"):
        _ = pool.buffer


# --- the envelope --------------------------------------------------------------------------


def regions(count: int) -> list[SharedRegion]:
    handle = HANDLE.pack(1, 2, 3)
    return [SharedRegion(number, 1 + number, handle) for number in range(count)]


@pytest.mark.parametrize("count", [1, 2, 48])
def test_an_envelope_says_what_was_packed_in_at_most_a_page(count: int) -> None:
    data = pack("hip", b"i" * 16, 77, regions(count))
    assert len(data) <= PAGE
    assert parse(data, "hip", b"i" * 16) == (77, regions(count))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (pack("cuda", b"i" * 16, 1, regions(1)), "its runtime is cuda, ours hip"),
        (pack("hip", b"j" * 16, 1, regions(1)), "it describes " + (b"j" * 16).hex()),
        (pack("hip", b"i" * 16, 1, []), "0 regions"),
        (pack("hip", b"i" * 16, 1, regions(49)), "49 regions"),
        (pack("hip", b"i" * 16, 1, regions(1) * 2), "described twice"),
        (pack("hip", b"i" * 16, 1, [SharedRegion(1, 0, b"h" * 64)]), "of 0 bytes"),
        (pack("hip", b"i" * 16, 1, [SharedRegion(1, 1 << 62, b"h" * 64)]), f"of {1 << 62} bytes"),
        (b"", "0 bytes with a wrong checksum"),
        (b"\x80\x04" + bytes(200), "wrong checksum"),
    ],
)  # fmt: skip
def test_what_a_description_must_not_say_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(TransportError, match=words):
        parse(data, "hip", b"i" * 16)


def test_random_bytes_are_no_description() -> None:
    chance = random.Random(5)
    for _ in range(500):
        with pytest.raises(TransportError):
            parse(chance.randbytes(chance.randrange(300)), "hip", b"i" * 16)


def test_a_forked_child_frees_nothing() -> None:
    pool = DevicePoolProvider(space()).allocate(PAGE)
    before = MEMORIES.calls["free"]
    child = os.fork()
    if not child:
        code = 1
        try:
            pool.close()
            del pool
            gc.collect()
            code = 0 if MEMORIES.calls["free"] == before else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
