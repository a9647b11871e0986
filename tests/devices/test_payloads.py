"""What is put from a device arrives on the device, and all else as anywhere."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.devices.host import HeldStreams, HostDevice, HostMemories, space

import stagelink
from stagelink.adapters.device import DevicePoolProvider, Space, dlpack
from stagelink.adapters.device.streams import NoStreams
from stagelink.adapters.msgspec.device import DeviceSerializer
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.adapters.threads.views import Views
from stagelink.compose import compose
from stagelink.core.errors import ConfigError, PayloadError
from stagelink.plugins import Manager
from stagelink.plugins.conformance.elsewhere import Elsewhere
from stagelink.plugins.conformance.kit import eventually, is_whole

pytest.importorskip("torch", reason="these values are tensors, and torch is an extra")

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagelink.connector import Connector

MIB = 1 << 20
BIG = torch.arange(300_000, dtype=torch.float32).view(300, 1000)
SERIALIZER = DeviceSerializer(space())


def open_(**settings: Any) -> Connector:
    """A connector whose pool lies on the device."""
    known = {"backend": "host_ipc", "pool_bytes": 8 * MIB, **settings}
    return compose(known, Manager(plugins=[HostDevice()]))


@pytest.fixture
def opened() -> Iterator[Callable[..., Connector]]:
    """Opens connectors and closes them again, the last one first."""
    made: list[Connector] = []

    def make(**settings: Any) -> Connector:
        made.append(open_(**settings))
        return made[-1]

    yield make
    for connector in reversed(made):
        connector.close()


@pytest.fixture
def pair(opened: Callable[..., Connector]) -> tuple[Connector, Connector]:
    """A sender and its receiver."""
    tx = opened(stage="thinker", role="sender")
    return tx, opened(stage="talker", role="receiver", senders={"thinker": tx.endpoint})


def through(value: Any, pool_bytes: int = MIB) -> Any:
    """*value* written to the device and read from it."""
    staged = SERIALIZER.stage(value)
    pool = DevicePoolProvider(space()).allocate(pool_bytes)
    staged.write(pool.buffer[: staged.size])  # type: ignore[arg-type]
    lent, _ = pool.buffer.lend(staged.size)
    return SERIALIZER.load(lent, staged.size)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(10),
        torch.tensor(3.5),
        torch.zeros(0, 3),
        torch.randn(5, 7).t(),
        torch.randn(64)[::3],
        torch.tensor([1 + 2j, 3 - 1j]),
        torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128).conj(),
        torch.tensor([float("nan"), -0.0], dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.randn(3, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
    ],
)
@pytest.mark.parametrize("where", ["device", "inline"])
def test_tensors_of_every_kind_come_back_bit_for_bit(tensor: torch.Tensor, where: str) -> None:
    staged = SERIALIZER.stage(tensor)
    body = bytearray(staged.size)
    staged.write(memoryview(body))

    found = SERIALIZER.load(body, len(body)) if where == "inline" else through(tensor)

    assert (found.dtype, found.shape, found.requires_grad) == (tensor.dtype, tensor.shape, False)
    assert torch.equal(bits(found), bits(tensor))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().contiguous()
    return plain.flatten().view(torch.uint8) if plain.numel() else plain.view(torch.uint8)


def test_what_is_not_on_the_device_lies_beside_it_and_comes_back_as_it_was() -> None:
    value = {
        "before": np.arange(1000),
        "tensor": torch.arange(2000),
        "between": b"x" * 500,
        "nested": [torch.ones(3), (np.float32(2), {"deep": bytearray(b"y" * 300)})],
        "after": np.arange(3),
    }

    found = through(value)

    assert found.keys() == value.keys()
    assert np.array_equal(found["before"], np.arange(1000))
    assert torch.equal(found["tensor"], torch.arange(2000))
    assert found["between"] == b"x" * 500
    assert torch.equal(found["nested"][0], torch.ones(3))
    assert found["nested"][1] == (np.float32(2), {"deep": bytearray(b"y" * 300)})
    assert np.array_equal(found["after"], np.arange(3))
    found["before"][0] = 9  # a copy of our own


def test_a_header_longer_than_the_head_is_fetched_as_well() -> None:
    value = {"names": [f"a name of some length {n}" for n in range(1000)], "t": torch.arange(4)}
    found = through(value)
    assert found["names"] == value["names"]
    assert torch.equal(found["t"], torch.arange(4))


def test_whatever_bytes_lie_on_the_device_an_error_is_typed() -> None:
    pool = DevicePoolProvider(space()).allocate(MIB)
    staged = SERIALIZER.stage({"t": torch.arange(50), "b": b"z" * 300})
    staged.write(pool.buffer[: staged.size])  # type: ignore[arg-type]
    good = bytes(pool.buffer[: staged.size])
    for index in range(200):
        for flip in (0x01, 0x80):
            bad = bytearray(good)
            bad[index] ^= flip
            pool.buffer[: len(bad)] = bytes(bad)
            lent, _ = pool.buffer.lend(len(bad))
            with contextlib.suppress(PayloadError):
                SERIALIZER.load(lent, len(bad))
    pool.buffer[:8] = b"no such "
    for size in (0, 5, 31, 32, 400):
        with pytest.raises(PayloadError):
            SERIALIZER.load(pool.buffer.lend(size)[0], size)


def test_a_host_pool_says_that_it_takes_no_device_tensors() -> None:
    staged = SERIALIZER.stage([torch.arange(3)])
    body = bytearray(staged.size)
    staged.write(memoryview(body))
    with pytest.raises(PayloadError, match="same backend"):
        PayloadSerializer().load(body, len(body))


# --- connectors ----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [BIG, torch.arange(5), {"a": BIG, "b": b"k" * 99}, "text"])
def test_a_value_goes_from_pool_to_reader(pair: tuple[Connector, Connector], value: Any) -> None:
    tx, rx = pair
    tx.put("k", value, to="talker")
    with rx.get("k", source="thinker", timeout=10) as payload:
        found = payload.value
        tensor = found["a"] if isinstance(found, dict) else found
        wanted = value["a"] if isinstance(value, dict) else value
        assert torch.equal(tensor, wanted) if isinstance(wanted, torch.Tensor) else found == value
        del found, tensor
    assert eventually(lambda: is_whole(tx))


def test_the_reader_sees_the_senders_very_memory(pair: tuple[Connector, Connector]) -> None:
    tx, rx = pair
    with tx.alloc(BIG.shape, BIG.dtype) as draft:
        draft.tensor.copy_(BIG)
        address = draft.tensor.data_ptr()
        tx.put("k", draft, to="talker")
    payload = rx.get("k", source="thinker", timeout=10)
    assert payload.value.data_ptr() == address  # of one process here, so of one mapping
    assert torch.equal(payload.value, BIG)
    payload.close()


def test_a_tensor_keeps_the_lease_after_its_payload_is_closed(
    pair: tuple[Connector, Connector],
) -> None:
    tx, rx = pair
    tx.put("k", BIG, to="talker")
    with rx.get("k", source="thinker", timeout=10) as payload:
        part = payload.value[3]
    assert not eventually(lambda: is_whole(tx), 0.2)
    assert torch.equal(part, BIG[3])
    del part
    gc.collect()
    assert eventually(lambda: is_whole(tx))


def test_strict_close_refuses_while_a_tensor_lives(pair: tuple[Connector, Connector]) -> None:
    tx, rx = pair
    tx.put("k", BIG, to="talker")
    payload = rx.get("k", source="thinker", timeout=10)
    value = payload.value
    with pytest.raises(stagelink.LeaseError):
        payload.close(strict=True)
    del value
    payload.close(strict=True)


def test_into_a_tensor_of_the_callers(pair: tuple[Connector, Connector]) -> None:
    tx, rx = pair
    mine = torch.empty_like(BIG)
    tx.put("k", BIG, to="talker")
    rx.get("k", source="thinker", timeout=10, into=mine)
    assert torch.equal(mine, BIG)
    assert eventually(lambda: is_whole(tx))


def test_readers_of_one_payload_cannot_spoil_it_for_each_other(
    opened: Callable[..., Connector],
) -> None:
    tx = opened(stage="thinker", role="sender", readers=2)
    readers = [
        opened(stage="talker", role="receiver", rank=rank, senders={"thinker": tx.endpoint})
        for rank in range(2)
    ]
    tx.put("k", BIG, to="talker")
    for reader in readers:
        with reader.get("k", source="thinker", timeout=10) as payload:
            assert torch.equal(payload.value, BIG)
            payload.value.zero_()
    assert eventually(lambda: is_whole(tx))


def test_polls_and_many_at_once(pair: tuple[Connector, Connector]) -> None:
    tx, rx = pair
    assert rx.poll("k0", source="thinker") is None
    keys = [f"k{n}" for n in range(5)]
    for number, key in enumerate(keys):
        tx.put(key, torch.full((30_000,), number), to="talker")
    for number, payload in enumerate(rx.get_many(keys, source="thinker", timeout=10)):
        assert int(payload.value[0]) == number
        payload.close()
    del payload
    gc.collect()
    assert eventually(lambda: is_whole(tx))


@pytest.mark.parametrize(
    "setting", [{"integrity": "xxh3"}, {"compression": {"talker": "zstd"}}, {"tracing": True}]
)
def test_what_needs_every_byte_on_the_host_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        open_(stage="thinker", role="sender", **setting)


class Producer:
    """A connector in another process."""

    def __init__(self) -> None:
        self._link = open_(stage="thinker", role="sender")

    def endpoint(self) -> str:
        """Where to dial."""
        return self._link.endpoint

    def put(self, key: str) -> None:
        """Publish a tensor."""
        self._link.put(key, {"t": BIG, "key": key}, to="talker")

    def is_whole(self) -> bool:
        """Whether all of the pool is free again."""
        return eventually(lambda: is_whole(self._link), 5)


def test_between_two_processes(opened: Callable[..., Connector]) -> None:
    producer = Elsewhere(Producer)
    try:
        rx = opened(stage="talker", role="receiver", senders={"thinker": producer.ask("endpoint")})
        for number in range(20):
            producer.ask("put", f"k{number}")
            payload = rx.get(f"k{number}", source="thinker", timeout=10)
            assert payload.value["key"] == f"k{number}"
            assert torch.equal(payload.value["t"], BIG)
            payload.close()
        assert producer.ask("is_whole")
    finally:
        producer.end()


# --- order ---------------------------------------------------------------------------------


def lend(streams: HeldStreams) -> tuple[Any, list[bool]]:
    """A loan on a device with those streams, and whether it has ended."""
    held = space(streams)
    streams.done.set()
    pool = DevicePoolProvider(held).allocate(MIB)
    staged = DeviceSerializer(held).stage(torch.arange(1000))
    staged.write(pool.buffer[: staged.size])  # type: ignore[arg-type]
    streams.done.clear()
    streams.waited.clear()
    lent, token = pool.buffer.lend(staged.size)
    ended: list[bool] = []
    weakref.finalize(token, ended.append, True)
    return lent, ended


def test_a_loan_ends_only_once_the_streams_that_used_it_are_done() -> None:
    streams = HeldStreams()
    lent, ended = lend(streams)
    streams.stream = "second"
    tensor = DeviceSerializer(space(streams)).load(lent, len(lent))
    streams.stream = "third"
    del lent
    assert not streams.waited
    del tensor
    gc.collect()

    assert eventually(lambda: streams.waited == ["first"])
    assert not ended
    streams.done.set()
    assert eventually(lambda: ended)
    assert streams.waited == ["first", "second", "third"]


def test_another_thread_copies_in_the_order_of_the_callers_stream() -> None:
    streams = HeldStreams()
    streams.done.set()
    held = space(streams)
    pool = DevicePoolProvider(held).allocate(MIB)
    staged = DeviceSerializer(held).stage(torch.arange(1000))
    streams.stream = "the worker's"
    thread = threading.Thread(target=staged.write, args=(pool.buffer[: staged.size],))
    thread.start()
    thread.join(10)

    assert streams.waited == ["first"]
    assert streams.stream == "the worker's"


class OurDevice(NoStreams):
    """Our device is current within :meth:`after` alone; elsewhere a handle means another's."""

    ours = False

    @contextmanager
    def after(self, sources: Any) -> Iterator[None]:
        """Within it."""
        del sources
        self.ours = True
        yield
        self.ours = False

    def handle(self, stream: object) -> int:
        """1: a stream of ours."""
        del stream
        return int(self.ours)


class Copies(HostMemories):
    """Notes on which stream was copied, and where host bytes went."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[int] = []
        self.sent: list[int] = []
        self.copied: list[int] = []

    def fetch(self, address: int, nbytes: int, stream: int) -> bytearray:
        """At once."""
        self.streams.append(stream)
        return super().fetch(address, nbytes, stream)

    def send(self, address: int, data: bytes | bytearray, stream: int) -> None:
        """At once."""
        self.streams.append(stream)
        self.sent.append(address)
        super().send(address, data, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """At once."""
        self.copied.append(stream)
        super().copy(target, source, nbytes, stream)


def gpu(memories: Copies, kind: int) -> Space:
    """A device of that kind, whose tensors are the host's: there is no other here."""
    made = Space(memories, OurDevice(), kind)
    made.device = "cpu"
    return made


@pytest.mark.parametrize("size", [1, 5, 4097])
def test_host_bytes_are_uploaded_in_the_order_of_our_own_device(size: int) -> None:
    memories, data = Copies(), bytearray(range(7)) * size

    tensor = gpu(memories, dlpack.CUDA).upload(memoryview(data)[:size])
    sent = bytes(data[:size])
    data[:] = bytes(len(data))

    assert (tensor.dtype, tensor.shape) == (torch.uint8, (size,))
    assert tensor.numpy().tobytes() == sent
    assert (memories.streams, memories.sent) == ([1], [tensor.data_ptr()])


@pytest.mark.parametrize("kind", [dlpack.ROCM, dlpack.CPU])
def test_where_a_call_of_the_runtime_may_read_late_torch_uploads_a_copy(kind: int) -> None:
    memories, data = Copies(), bytearray(b"bytes")

    tensor = gpu(memories, kind).upload(memoryview(data))
    data[:] = b"other"

    assert tensor.numpy().tobytes() == b"bytes"
    assert memories.streams == []


@pytest.mark.parametrize("kind", [dlpack.CUDA, dlpack.ROCM, dlpack.CPU])
def test_no_bytes_are_uploaded_by_no_call(kind: int) -> None:
    memories = Copies()

    tensor = gpu(memories, kind).upload(memoryview(b""))

    assert (tensor.dtype, tensor.shape, memories.streams) == (torch.uint8, (0,), [])


@pytest.mark.parametrize("alone", [True, False])
def test_a_tensor_that_came_as_host_bytes_is_uploaded_as_its_own_device(alone: bool) -> None:
    tensor, memories = torch.arange(6, dtype=torch.int16).view(2, 3), Copies()
    staged = SERIALIZER.stage(tensor if alone else {"x": tensor, "y": 1})
    came = bytearray(staged.size)
    staged.write(memoryview(came))

    value = DeviceSerializer(gpu(memories, dlpack.CUDA)).load(memoryview(came), len(came))

    assert torch.equal(value if alone else value["x"], tensor)
    assert memories.streams == [1]


@pytest.mark.parametrize("how", ["plain", "strided", "negated", "empty"])
def test_a_plain_tensor_is_copied_by_one_call_of_the_runtime(how: str) -> None:
    memories, real = Copies(), torch.arange(60000).reshape(200, 300)
    tensor = {
        "plain": real, "strided": real.t(), "empty": real[:0],
        "negated": torch.complex(real.float(), real.float()).conj().imag,
    }[how]  # fmt: skip
    held = Space(memories, OurDevice(), dlpack.CPU)
    pool = DevicePoolProvider(held).allocate(2 * MIB)
    serializer = DeviceSerializer(held)
    staged = serializer.stage(tensor)
    staged.write(pool.buffer[: staged.size])  # type: ignore[arg-type]
    lent, _token = pool.buffer.lend(staged.size)

    assert torch.equal(serializer.load(lent, staged.size), tensor)
    assert memories.copied == ([1] if how == "plain" else [])


def test_a_tensor_is_read_in_the_order_of_its_own_device() -> None:
    memories, tensor = Copies(), torch.arange(5)

    read = Space(memories, OurDevice(), dlpack.CPU).read(tensor)

    assert bytes(read or b"") == tensor.numpy().tobytes()
    assert memories.streams == [1]


def test_a_put_is_published_only_once_it_is_copied() -> None:
    streams = HeldStreams()
    held = space(streams)
    pool = DevicePoolProvider(held).allocate(MIB)
    staged = DeviceSerializer(held).stage(torch.arange(1000))
    thread = threading.Thread(target=staged.write, args=(pool.buffer[: staged.size],))
    thread.start()

    assert eventually(lambda: streams.waited == ["first"])
    assert thread.is_alive()
    streams.done.set()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("disowned", [False, True])
def test_a_delivery_is_released_by_the_end_of_its_loan_alone(disowned: bool) -> None:
    streams = HeldStreams()
    pool = DevicePoolProvider(space(streams)).allocate(MIB)
    woken = threading.Event()
    views = Views(woken.set)
    lent = views.open(pool.buffer[:100], 100, 7)

    assert not views.release(7), "closing the payload must not release it yet"
    assert len(views) == 1
    if disowned:
        views.disown(7)
    del lent
    gc.collect()
    assert eventually(lambda: streams.waited)
    assert not views.gone
    streams.done.set()
    pool.space.close()

    assert list(views.gone) == ([] if disowned else [7])
    assert woken.is_set() is not disowned
    assert len(views) == 0


def test_a_loan_of_a_closed_pool_ends_with_its_last_tensor() -> None:
    streams = HeldStreams()
    lent, ended = lend(streams)
    lent._space.close()
    del lent
    gc.collect()
    assert ended
    assert not streams.waited


def test_what_a_tensor_keeps_goes_with_its_last_view() -> None:
    pool = DevicePoolProvider(space()).allocate(MIB)
    keep = pool.buffer[:0]
    ended = weakref.ref(keep)
    tensor = dlpack.tensor(pool.address, 100, dlpack.CPU, 0, keep)
    view = tensor.view(10, 10)[3:, 2]
    del keep, tensor
    gc.collect()
    assert ended() is not None
    del view
    assert ended() is None


def test_a_tensor_that_goes_with_an_error_on_its_way_does_not_hide_it() -> None:
    staged = SERIALIZER.stage([torch.arange(3), {"b": 1}])
    body = bytearray(staged.size)
    staged.write(memoryview(body))
    header = body.index(b"\x81\xa1b\x01")
    body[header] = 0xC1  # never used by MessagePack: met once the tensor has been made
    with pytest.raises(PayloadError, match="malformed"):
        SERIALIZER.load(body, len(body))
