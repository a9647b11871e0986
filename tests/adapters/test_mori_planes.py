"""Both Mori planes on a fake engine that notices what would crash the real one."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import secrets
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.adapters import mori_fake

from stagelink.adapters.mori import (
    DeviceMemoryProvider,
    PinnedMemoryProvider,
    RdmaOptions,
    XgmiOptions,
    card,
    hip,
    plane,
    rdma_plane,
    rdma_problem,
    verbs,
    xgmi_plane,
    xgmi_problem,
)
from stagelink.core.errors import CapacityError, ConfigError, TransportError
from stagelink.core.values import RegionRef
from stagelink.plugins.conformance.meeting import (
    REGION,
    Meeting,
    Outcome,
    comes,
    difference,
)
from stagelink.plugins.conformance.plane import DataPlaneContract, MakeParty, Party
from stagelink.ports.plane import WriteOrder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


class Runtime:
    """A HIP of two devices whose memory is the host's."""

    def __init__(self) -> None:
        self.settled = 0
        self.full = False
        self._mappings: dict[int, mmap.mmap] = {}

    def count(self) -> int:
        return 2

    def current(self) -> int:
        return 0

    def room(self, device: int) -> tuple[int, int]:
        return 4096, 1 << 30

    def allocate(self, size: int, device: int) -> int:
        if self.full:
            raise hip.HipError("hipMalloc", hip.OUT_OF_MEMORY, "out of memory")
        mapping = mmap.mmap(-1, size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        self._mappings[address] = mapping
        return address

    def free(self, address: int) -> None:
        self._mappings.pop(address)

    def put(self, address: int, content: bytes) -> None:
        ctypes.memmove(address, content, len(content))

    def get(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def settle(self) -> None:
        self.settled += 1


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime()
    monkeypatch.setattr(hip, "load", lambda: made)
    return made


@pytest.fixture
def mori(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> ModuleType:
    """``mori.io`` for this test; two NICs with an active port."""
    made = mori_fake.module()
    monkeypatch.setitem(sys.modules, "mori.io", made)
    nics = [verbs.Device("nic0", "active"), verbs.Device("nic1", "active")]
    monkeypatch.setattr(verbs, "devices", lambda: nics)
    monkeypatch.setattr(verbs, "try_register", lambda *_: None)
    return made


def on_xgmi(size: int, **options: Any) -> Party:
    instance = secrets.token_bytes(16)
    memory = DeviceMemoryProvider("cuda").allocate(size)
    return Party(instance, xgmi_plane(instance, XgmiOptions(**options)), memory)


def on_rdma(size: int, **options: Any) -> Party:
    instance = secrets.token_bytes(16)
    memory = PinnedMemoryProvider().allocate(size)
    return Party(instance, rdma_plane(instance, RdmaOptions(**options)), memory)


class TestXgmiPlane(DataPlaneContract):
    """Between GPUs."""

    crosses_processes = False

    @pytest.fixture
    def make_party(self, mori: ModuleType) -> MakeParty:
        return on_xgmi


class TestRdmaPlane(DataPlaneContract):
    """Through NICs."""

    crosses_processes = False

    @pytest.fixture
    def make_party(self, mori: ModuleType) -> MakeParty:
        return on_rdma


# --- what is told, and in which order things are done ---------------------------------------------


@pytest.fixture
def pair(request: pytest.FixtureRequest, mori: ModuleType) -> Iterator[Meeting]:
    """Two parties of the kind asked for."""
    made = Meeting(request.param(16 << 20), request.param(16 << 20))
    yield made
    mori.IOEngine.knobs.gate.set()
    made.close()


on_both = pytest.mark.parametrize("pair", [on_xgmi, on_rdma], indirect=True)
over_rdma = pytest.mark.parametrize("pair", [on_rdma], indirect=True)
over_xgmi = pytest.mark.parametrize("pair", [on_xgmi], indirect=True)
LARGE = 200 << 10


def post(pair: Meeting, offset: int, size: int = LARGE) -> Outcome:
    where = RegionRef(REGION, offset, size)
    return pair.post(0, source=where, target=where)


def names(mori: ModuleType) -> set[str]:
    """Engine keys that peers have been known by."""
    return {call[1] for call in mori.IOEngine.knobs.calls if call[0] == "read"}


def test_without_mori_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mori.io", None)
    with pytest.raises(ConfigError, match=r"pip install 'stagelink\[mori\]'"):
        on_rdma(4096)
    assert "pip install" in xgmi_problem("cuda")
    assert "pip install" in rdma_problem(RdmaOptions())


@on_both
def test_moris_code_and_words_are_told(pair: Meeting, mori: ModuleType) -> None:
    mori.IOEngine.knobs.fail_next(mori.StatusCode.ERR_BAD_STATE, "no stream")
    assert post(pair, 0).wait() == "Mori: ERR_BAD_STATE: no stream"
    content = pair.fill()
    assert not difference(pair.move(0, LARGE), content[:LARGE])


@over_xgmi
def test_after_a_failed_copy_the_gpus_settle_before_it_is_told(
    pair: Meeting, mori: ModuleType, runtime: Runtime
) -> None:
    """Some copies of a call may have begun before the one that failed."""
    seen: list[int] = []
    mori.IOEngine.knobs.fail_next(mori.StatusCode.ERR_GPU_OP, "launch failure")
    where = RegionRef(REGION, 0, LARGE)
    order = WriteOrder(pair.peer.instance, 1, where, where)

    pair.owner.plane.post(order, lambda *_: seen.append(runtime.settled))

    assert comes(lambda: seen == [1])


@over_rdma
def test_a_failed_connection_is_left_behind_under_another_name(
    pair: Meeting, mori: ModuleType
) -> None:
    knobs, before = mori.IOEngine.knobs, names(mori)
    knobs.gate.clear()
    knobs.fail_next(mori.StatusCode.ERR_RDMA_OP, "remote operation error")
    outcomes = [post(pair, index * LARGE) for index in range(3)]
    knobs.gate.set()

    told = [outcome.wait() for outcome in outcomes]

    assert told[0] == "Mori: ERR_RDMA_OP: remote operation error"
    assert all("Flushed" in other and told[0] in other for other in told[1:])
    assert post(pair, 0).wait() == ""
    [new] = names(mori) - before
    assert new.rpartition(".")[0] in {name.rpartition(".")[0] for name in before}


@over_rdma
def test_a_connection_that_cannot_be_made_again_fails_who_waits_and_is_tried_again(
    pair: Meeting, mori: ModuleType
) -> None:
    knobs = mori.IOEngine.knobs
    for _ in range(2):  # the write, and the look at the peer's memory that follows
        knobs.fail_next(mori.StatusCode.ERR_RDMA_OP, "transport retry counter exceeded")
    assert post(pair, 0).wait()

    assert post(pair, 0).wait() == "Mori: ERR_RDMA_OP: transport retry counter exceeded"

    assert post(pair, 0).wait() == "Mori: ERR_RDMA_OP: transport retry counter exceeded"
    assert comes(lambda: not post(pair, 0).wait())


@on_both
def test_writes_that_queue_up_go_in_one_call(pair: Meeting, mori: ModuleType) -> None:
    knobs, content = mori.IOEngine.knobs, pair.fill()
    before = len(knobs.calls)
    knobs.gate.clear()
    outcomes = [post(pair, index * LARGE) for index in range(30)]
    knobs.gate.set()

    assert {outcome.wait() for outcome in outcomes} == {""}

    sizes = [call[1] for call in knobs.calls[before:] if call[0] == "write"]
    assert sizes == [1] * 16 + [5, 5, 4]
    assert not difference(pair.peer.memory.buffer[: 30 * LARGE], content[: 30 * LARGE])


@on_both
def test_a_close_waits_for_what_is_under_way(pair: Meeting, mori: ModuleType) -> None:
    """Or the engine would write to statuses that are gone: the fake calls that a crash."""
    knobs = mori.IOEngine.knobs
    knobs.gate.clear()
    outcomes = [post(pair, index * LARGE) for index in range(20)]
    closer = threading.Thread(target=pair.owner.plane.close)
    closer.start()
    assert [outcome.wait() for outcome in outcomes[16:]] == ["the write was stopped"] * 4
    assert not any(outcome.errors for outcome in outcomes[:16])
    knobs.gate.set()
    closer.join(20.0)
    assert [outcome.wait() for outcome in outcomes[:16]] == [""] * 16
    assert [call[0] for call in knobs.calls].count("gone") == (1 if on_nic(pair) else 2)


@on_both
def test_a_callback_may_close_the_plane(pair: Meeting, mori: ModuleType) -> None:
    """On the very thread that waits for the writes which are still under way."""
    told: list[str] = []

    def close(order: WriteOrder, error: str) -> None:
        pair.owner.plane.close()
        told.append(error)

    mori.IOEngine.knobs.gate.clear()
    where = RegionRef(REGION, 0, LARGE)
    pair.owner.plane.post(WriteOrder(pair.peer.instance, 1, where, where), close)
    outcomes = [post(pair, index * LARGE) for index in range(20)]
    mori.IOEngine.knobs.gate.set()

    assert comes(lambda: told == [""])
    assert {outcome.wait() for outcome in outcomes[:15]} == {""}
    assert {outcome.wait() for outcome in outcomes[15:]} == {"the write was stopped"}


@over_rdma
def test_a_reset_takes_the_engine_from_under_writes_that_do_not_end(
    pair: Meeting, mori: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane, "PATIENCE_S", 0.05)
    knobs, before = mori.IOEngine.knobs, pair.owner.plane.describe()
    knobs.gate.clear()
    outcomes = [post(pair, index * LARGE) for index in range(20)]

    pair.owner.plane.reset()

    told = [outcome.wait() for outcome in outcomes]
    assert (
        told == ["Mori: ERR_BAD_STATE: the write was stopped"] * 16 + ["the write was stopped"] * 4
    )
    knobs.gate.set()
    assert pair.owner.plane.describe() != before
    assert not post(pair, 0).wait()


def on_nic(pair: Meeting) -> bool:
    return pair.owner.plane.capabilities.crosses_hosts


@over_xgmi
def test_devices_without_a_link_are_told_with_a_remedy(pair: Meeting, mori: ModuleType) -> None:
    mori.IOEngine.knobs.unroutable = True
    with pytest.raises(TransportError, match=r"no route from device 0.*rocm-smi --showtopo"):
        pair.owner.plane.reset()
        pair.owner.plane.attach(pair.peer.instance, pair.peer.plane.describe())


@pytest.mark.parametrize("make", [on_xgmi, on_rdma])
def test_an_engine_that_cannot_be_made_is_told_in_moris_words(
    make: MakeParty, mori: ModuleType
) -> None:
    mori.IOEngine.knobs.refuse_backend = "no active device"
    with pytest.raises(TransportError, match="engine: no active device; see `"):
        make(4096)


def test_every_setting_reaches_mori(mori: ModuleType) -> None:
    calls = mori.IOEngine.knobs.calls
    on_xgmi(4096, num_streams=3, num_events=4).plane.close()
    assert ("backend", "XGMI", {"num_streams": 3, "num_events": 4}) in calls
    settings = {
        "qp_per_transfer": 2, "post_batch_size": 5, "num_worker_threads": 3,
        "enable_notification": True, "enable_transfer_chunking": True, "chunk_bytes": 7,
        "max_chunks_per_transfer": 8, "num_nics_per_transfer": 2,
    }  # fmt: skip
    on_rdma(4096, event_mode=True, **settings).plane.close()
    expected = {**settings, "poll_cq_mode": mori.PollCqMode.EVENT}
    assert [call[2] for call in calls if call[:2] == ("backend", "RDMA")] == [expected]


@pytest.mark.parametrize(
    ("options", "asked", "nics"),
    [
        ({}, "", "nic0,nic1"),
        ({}, "nic1", "nic1"),
        ({}, "^nic1", "nic0"),
        ({"device_name": "nic0"}, "nic1", "nic0"),
        ({"qp_per_transfer": 2, "num_worker_threads": 2}, "", "nic0"),
        ({"qp_per_transfer": 2}, "", "nic0,nic1"),
    ],
    ids=str,
)
def test_nics_are_those_asked_for_and_one_where_several_would_fail(
    mori: ModuleType, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], asked: str,
    nics: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("MORI_RDMA_DEVICES", asked)
    on_rdma(4096, **options).plane.close()
    assert mori.IOEngine.knobs.nics == [nics]
    assert os.environ["MORI_RDMA_DEVICES"] == asked


def test_more_memory_than_may_be_locked_is_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 16, 1 << 16))
    monkeypatch.setattr(verbs, "_may_lock_all", lambda: False)
    with pytest.raises(
        TransportError, match=r"2097152 bytes .* 2 NICs.*65536; raise it \(`ulimit"
    ):
        verbs.check_locked(1 << 20, 2)
    verbs.check_locked(1 << 15, 2)


@over_rdma
def test_memory_of_another_incarnation_is_found_out_by_its_beacon(
    pair: Meeting, mori: ModuleType
) -> None:
    """A restarted process may have its memory where the dead one had it."""
    found = card.unpack(pair.peer.plane.describe(), pair.peer.instance)
    pair.peer.memory.put_tail(0, bytes(64))  # type: ignore[attr-defined]
    with pytest.raises(TransportError, match="another memory than that of peer"):
        pair.owner.plane.attach(pair.peer.instance, card.pack(found))


def test_a_device_without_room_says_how_much_it_has(runtime: Runtime) -> None:
    runtime.full = True
    with pytest.raises(CapacityError, match="device 1 has 4096 available"):
        DeviceMemoryProvider("cuda:1").allocate(1 << 20)


@pytest.mark.parametrize("size", [0, -1])
def test_a_memory_of_no_bytes_is_refused(runtime: Runtime, size: int) -> None:
    for provider in (PinnedMemoryProvider(), DeviceMemoryProvider("hip:0")):
        with pytest.raises(ConfigError, match="positive"):
            provider.allocate(size)


def test_host_memory_is_there_as_long_as_its_views() -> None:
    memory = PinnedMemoryProvider().allocate(4096)
    view = memory.buffer
    memory.close()
    memory.close()
    view[:] = b"x" * 4096
    with pytest.raises(TransportError, match="is closed"):
        _ = memory.buffer


def test_the_kernel_tells_which_addresses_the_cpu_may_touch() -> None:
    hidden = mmap.mmap(-1, 4096, prot=0)
    assert not hip.host_can_read(0)
    assert hip.host_can_read(ctypes.addressof(ctypes.create_string_buffer(8)))
    assert len(hidden) == 4096
