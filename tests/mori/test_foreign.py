"""Engines that do not speak our protocol, as vLLM-Omni's connector uses the real one."""

from __future__ import annotations

import os
import secrets
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.dialect.theirs import REGION as THEIRS
from tests.dialect.theirs import TheirReceiver, TheirSender
from tests.mori.parties import on_rdma, on_xgmi
from tests.sims import verbsim

import stagelink
from stagelink.adapters.mori import DeviceMemoryProvider, PinnedMemoryProvider
from stagelink.core.errors import TransportError
from stagelink.core.values import RegionRef
from stagelink.plugins.conformance.meeting import REGION
from stagelink.ports import ForeignCard, ForeignOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.plugins.conformance.plane import Party

mori = pytest.importorskip("mori.io")
SIZE = 1 << 20
PATIENCE_S = 20.0


class TheirEngine:
    """What their connector does with ``mori.io``, and no more; sizes in bytes."""

    def __init__(self, fabric: str, size: int = SIZE) -> None:
        key = f"omni-sender-{secrets.token_hex(4)}-pid{os.getpid()}-127.0.0.1"
        self.engine = mori.IOEngine(key, mori.IOEngineConfig(host="127.0.0.1", port=0))
        if fabric == "xgmi":
            self.engine.create_backend(mori.BackendType.XGMI, mori.XgmiBackendConfig())
            self.memory: Any = DeviceMemoryProvider("cuda:1").allocate(size)
            place = mori.MemoryLocationType.GPU
        else:
            config = mori.RdmaBackendConfig(1, -1, 1, mori.PollCqMode.POLLING, False)
            self.engine.create_backend(mori.BackendType.RDMA, config)
            self.memory = PinnedMemoryProvider().allocate(size)
            place = mori.MemoryLocationType.CPU
        self.described = self.engine.register_memory(
            self.memory.address, size, self.memory.device, place
        )
        self.pool = self.memory.buffer

    def card(self, region: int = THEIRS) -> ForeignCard:
        return ForeignCard(self.engine.get_engine_desc().pack(), self.described.pack())

    def post(self, order: ForeignOrder, done: Any) -> None:
        """One batch of one write, waited for."""
        self.engine.register_remote_engine(mori.EngineDesc.unpack(order.card.engine))
        remote = mori.MemoryDesc.unpack(order.card.memory)
        uid = self.engine.allocate_transfer_uid()
        [status] = self.engine.batch_write(
            [self.described], [[order.source.offset]], [remote], [[order.offset]],
            [[order.source.size]], [uid],
        )  # fmt: skip
        status.Wait()
        done(order, status.Message() or "failed" if status.Failed() else "")

    def write(self, card: ForeignCard, offset: int, content: bytes) -> str:
        """Write *content* to our memory; the error, or nothing."""
        self.pool[: len(content)] = content
        ends: list[str] = []
        order = ForeignOrder(1, RegionRef(THEIRS, 0, len(content)), card, offset)
        self.post(order, lambda _, error: ends.append(error))
        return ends[0]

    def close(self) -> None:
        self.engine.deregister_memory(self.described)
        self.engine = None


@pytest.fixture(params=["xgmi", "rdma"])
def fabric(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ours(fabric: str) -> Iterator[Party]:
    party = on_xgmi(SIZE) if fabric == "xgmi" else on_rdma(SIZE)
    party.plane.register(REGION, party.memory)
    yield party
    party.plane.close()
    party.memory.close()


@pytest.fixture
def theirs(fabric: str) -> Iterator[TheirEngine]:
    engine = TheirEngine(fabric)
    yield engine
    engine.close()


def post(ours: Party, card: ForeignCard, offset: int = 0, size: int = SIZE, at: int = 0) -> str:
    """Write so much of our region to *at* of theirs; how it ended."""
    ended, found = threading.Event(), []

    def done(order: ForeignOrder, error: str) -> None:
        found.append(error)
        ended.set()

    order = ForeignOrder(7, RegionRef(REGION, offset, size), card, at)
    ours.plane.foreign.post(order, done)  # type: ignore[attr-defined]
    assert ended.wait(PATIENCE_S)
    return found[0]


def card_of(ours: Party) -> ForeignCard:
    card: ForeignCard = ours.plane.foreign.card(REGION)  # type: ignore[attr-defined]
    return card


def fence(ours: Party) -> bool:
    return bool(ours.plane.foreign.fence())  # type: ignore[attr-defined]


def test_we_write_to_an_engine_of_theirs(ours: Party, theirs: TheirEngine) -> None:
    content = secrets.token_bytes(SIZE)
    ours.memory.buffer[:] = content

    for offset, size, at in ((0, SIZE, 0), (4096, 100, 77), (SIZE - 1, 1, SIZE - 1)):
        theirs.pool[:] = bytes(SIZE)
        assert post(ours, theirs.card(), offset, size, at) == ""
        assert theirs.pool[at : at + size] == content[offset : offset + size]
        assert bytes(theirs.pool).count(0) >= SIZE - size


def test_an_engine_of_theirs_writes_to_us(ours: Party, theirs: TheirEngine) -> None:
    content = secrets.token_bytes(5000)

    assert theirs.write(card_of(ours), 8192, content) == ""

    assert ours.memory.buffer[8192:13192] == content


def test_cards_and_ranges_that_lie_are_refused_and_the_engine_goes_on(
    ours: Party, theirs: TheirEngine, fabric: str
) -> None:
    good, other = theirs.card(), TheirEngine(fabric, 8192)
    lies = [
        ForeignCard(b"", b""), ForeignCard(b"x", good.memory), ForeignCard(good.engine, b"\x90"),
        ForeignCard(good.memory, good.engine), ForeignCard(good.engine, good.memory[:-1]),
        ForeignCard(good.engine + b"\0", good.memory), other.card()._replace(memory=good.memory),
        good._replace(memory=good.memory * 2),
    ]  # fmt: skip
    for lie in lies:
        with pytest.raises(TransportError) as caught:
            post(ours, lie)
        assert caught.value.message
    for offset, size, at in (
        (0, SIZE, 1),
        (1, SIZE, 0),
        (0, 1, SIZE),
        (0, 1, 1 << 62),
        (0, 9000, 0),
    ):
        card = other.card() if size == 9000 else good
        with pytest.raises(TransportError, match="outside"):
            post(ours, card, offset, size, at)

    assert post(ours, good) == ""
    other.close()


def test_spoilt_cards_are_refused_or_reach_nothing(ours: Party, theirs: TheirEngine) -> None:
    good = theirs.card()
    for at in range(0, len(good.memory), 7):
        spoilt = bytearray(good.memory)
        spoilt[at] ^= 0xFF
        try:
            ended = post(ours, good._replace(memory=bytes(spoilt)), 0, SIZE, SIZE)
        except TransportError:
            continue
        assert ended, f"byte {at} was spoilt, and bytes outside of the memory were written"


def test_a_fence_ends_what_theirs_may_write_or_says_that_it_cannot(
    ours: Party, theirs: TheirEngine, fabric: str
) -> None:
    old = card_of(ours)
    assert theirs.write(old, 0, b"before") == ""

    fenced = fence(ours)

    assert fenced == (fabric == "rdma")
    new = card_of(ours)
    assert (new == old) == (fabric == "xgmi")
    if fenced:
        fresh = TheirEngine(fabric)  # one that has met no error
        try:
            failed = fresh.write(old, 0, b"after!")
        except RuntimeError as error:
            failed = str(error)
        assert failed
        assert bytes(ours.memory.buffer[:6]) == b"before"
        fresh.close()
    assert theirs.write(new, 100, b"by the new card") == ""
    assert bytes(ours.memory.buffer[100:115]) == b"by the new card"


def test_our_writes_go_on_after_a_fence(ours: Party, theirs: TheirEngine) -> None:
    assert post(ours, theirs.card()) == ""
    card_of(ours)
    fence(ours)
    assert post(ours, theirs.card()) == ""


@pytest.mark.parametrize("fabric", ["rdma"], indirect=True)
def test_a_write_after_one_that_failed_finds_a_new_connection(
    ours: Party, theirs: TheirEngine
) -> None:
    content = secrets.token_bytes(SIZE)
    ours.memory.buffer[:] = content
    assert post(ours, theirs.card()) == ""
    verbsim.fail_next(1, verbsim.Status.REMOTE_OPERATION)

    assert "Mori" in post(ours, theirs.card())

    theirs.pool[:] = bytes(SIZE)
    assert post(ours, theirs.card()) == ""
    assert theirs.pool == content


@pytest.mark.parametrize("fabric", ["rdma"], indirect=True)
def test_an_engine_that_wants_notice_is_not_spoken_to(theirs: TheirEngine) -> None:
    party = on_rdma(SIZE, enable_notification=True)
    party.plane.register(REGION, party.memory)
    with pytest.raises(TransportError, match="notice"):
        post(party, theirs.card())
    with pytest.raises(TransportError, match="notice"):
        card_of(party)
    party.plane.close()
    party.memory.close()


def open_ours(fabric: str, role: str, **settings: Any) -> Any:
    return stagelink.open(
        stage="1", role=role, backend=f"mori-{fabric}", pool_bytes="1MiB",
        dialect="vllm-omni-mori", **settings,
    )  # fmt: skip


def test_connectors_of_both_kinds_pass_payloads_both_ways(fabric: str) -> None:
    def make(name: str, size: int) -> tuple[memoryview, Any]:
        engine = TheirEngine(fabric, size)
        return engine.pool, engine

    data = secrets.token_bytes(300_000)
    with TheirSender(make=make) as first:
        first.put("k", data, plain=True)
        with (
            open_ours(
                fabric, "peer", dialect_senders={"0": first.address}, dialect_readers=("2",)
            ) as middle,
            TheirReceiver(middle.dialect_endpoint, make=make) as last,
        ):
            with middle.get("k", source="0", timeout=PATIENCE_S) as payload:
                middle.put("k", bytes(payload.value), to="2")
            assert last.get("k@1_2") == (data, True)
            assert middle.health()["dialect"]["stranded"] == 0
