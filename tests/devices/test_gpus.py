"""The same promises on real GPUs; skipped where torch sees fewer than two."""

from __future__ import annotations

import gc
import itertools
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import stagelink
from stagelink.adapters.device import (
    DevicePoolProvider,
    Runtime,
    RuntimeIpc,
    Space,
    TorchStreams,
    kind_of,
)
from stagelink.adapters.device_ipc import DeviceIpcPlane
from stagelink.core.errors import CapacityError
from stagelink.plugins.conformance.connector import ConnectorContract
from stagelink.plugins.conformance.elsewhere import Elsewhere
from stagelink.plugins.conformance.kit import eventually, is_whole
from stagelink.plugins.conformance.plane import DataPlaneContract, MakeParty, Party

pytest.importorskip("torch", reason="these values are tensors, and torch is an extra")

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.connector import Connector

if torch.cuda.device_count() < 2:
    pytest.skip("two GPUs are needed", allow_module_level=True)

CUDA: Any = torch.cuda
MIB = 1 << 20
SLOW = 50_000_000
"""Cycles for which a stream is kept busy: some 25 ms."""

turns = itertools.count()


def space(index: int) -> Space:
    """A real device."""
    runtime = Runtime.of_torch()
    return Space(runtime, TorchStreams(index), kind_of(runtime.name), index)


def party(size: int) -> Party:
    """A party with a pool on one GPU, the next one on the other."""
    instance = secrets.token_bytes(16)
    memory = DevicePoolProvider(space(next(turns) % 2)).allocate(size)

    def ipc(memory: Any) -> RuntimeIpc:
        return RuntimeIpc(memory.space)

    return Party(instance, DeviceIpcPlane(instance, ipc), memory)


class TestDeviceIpcPlaneOnGpus(DataPlaneContract):
    """Readers map."""

    @pytest.fixture
    def make_party(self) -> MakeParty:
        """On both GPUs in turn."""
        return party


class TestDeviceIpcConnectorOnGpus(ConnectorContract):
    """The whole connector."""

    @pytest.fixture
    def backend(self) -> str:
        """Ours."""
        return "device_ipc"

    def viewed(self) -> torch.Tensor:
        """Tensors of a GPU stay where they are."""
        return torch.arange(300_000, device="cuda")


# --- two processes, a GPU each ---------------------------------------------------------------


class Producer:
    """Puts from GPU 1."""

    def __init__(self) -> None:
        torch.cuda.set_device(1)
        self._link = stagelink.open(
            stage="thinker", role="sender", backend="device_ipc", pool_device="cuda:1",
            pool_bytes=64 * MIB,
        )  # fmt: skip

    def endpoint(self) -> str:
        """Where to dial."""
        return self._link.endpoint

    def put(self, key: str, seed: int) -> None:
        """A tensor that is still being computed, on a stream of its own."""
        stream = CUDA.Stream()
        with torch.cuda.stream(stream):
            late = torch.zeros(MIB, dtype=torch.int32, device="cuda:1")
            CUDA._sleep(SLOW)
            late += seed
            self._link.put(key, {"late": late, "seed": seed}, to="talker")

    def put_from_the_other_gpu(self, key: str, seed: int) -> None:
        """A tensor of GPU 0, which computes it late; GPU 1's own stream is not held up."""
        with torch.cuda.device(0):
            late = torch.zeros(MIB, dtype=torch.int32, device="cuda:0")
            CUDA._sleep(SLOW)
            late += seed
        self._link.put(key, late, to="talker")

    def is_whole(self) -> bool:
        """Whether every byte is free again."""
        return eventually(lambda: is_whole(self._link))


@pytest.fixture
def producer() -> Iterator[Elsewhere]:
    """One that lives as long as the test."""
    made = Elsewhere(Producer)
    yield made
    made.end()


@pytest.fixture
def reader(producer: Elsewhere) -> Iterator[Connector]:
    """On GPU 0."""
    with stagelink.open(
        stage="talker", role="receiver", backend="device_ipc", pool_device="cuda:0",
        pool_bytes=64 * MIB, sender=producer.ask("endpoint"),
    ) as made:  # fmt: skip
        yield made


def test_what_is_computed_late_arrives_whole_and_on_the_readers_gpu(
    producer: Elsewhere, reader: Connector
) -> None:
    for seed in range(1, 6):
        producer.ask("put", f"k{seed}", seed)
        payload = reader.get(f"k{seed}", source="thinker", timeout=20)
        late = payload.value["late"]
        assert str(late.device) == "cuda:0"
        assert int((late != seed).sum()) == 0
        del late
        payload.close()
    assert producer.ask("is_whole")


def test_a_tensor_of_another_gpu_is_put_in_order(producer: Elsewhere, reader: Connector) -> None:
    producer.ask("put_from_the_other_gpu", "k", 7)
    payload = reader.get("k", source="thinker", timeout=20)
    assert int((payload.value != 7).sum()) == 0
    payload.close()


def test_a_lease_outlasts_the_kernels_that_read(producer: Elsewhere, reader: Connector) -> None:
    """The payload is closed while its readers are queued; the next puts want its memory."""
    sums = []
    for seed in range(1, 41):
        producer.ask("put", f"k{seed}", seed)
        payload = reader.get(f"k{seed}", source="thinker", timeout=20)
        late = payload.value["late"]
        CUDA._sleep(SLOW)
        sums.append((late.to(torch.int64)).sum())
        del late
        payload.close()
    assert [int(total) for total in sums] == [seed * MIB for seed in range(1, 41)]
    assert producer.ask("is_whole")


def test_a_put_of_another_thread_waits_for_the_callers_stream(reader_of_ours: Any) -> None:
    """put_async copies on a thread that has streams of its own."""
    tx, rx = reader_of_ours
    stream = CUDA.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros(MIB, dtype=torch.int32, device="cuda")
        CUDA._sleep(SLOW)
        late += 5
        ticket = tx.put_async("k", late, to="b")
    ticket.result(20)
    payload = rx.get("k", source="a", timeout=20)
    assert int((payload.value != 5).sum()) == 0
    payload.close()


@pytest.fixture
def reader_of_ours() -> Iterator[tuple[Connector, Connector]]:
    """A sender and its reader in this process."""
    terms: dict[str, Any] = {"backend": "device_ipc", "pool_bytes": 64 * MIB}
    with (
        stagelink.open(stage="a", role="sender", **terms) as tx,
        stagelink.open(stage="b", role="receiver", sender=tx.endpoint, **terms) as rx,
    ):
        yield tx, rx


# --- one process -----------------------------------------------------------------------------


def test_a_put_does_not_wait_for_streams_that_it_has_nothing_to_do_with() -> None:
    with stagelink.open(
        stage="a", role="sender", backend="device_ipc", pool_bytes=64 * MIB
    ) as link:
        tensor = torch.ones(MIB, device="cuda")
        link.put("warm", tensor, to="b")
        torch.cuda.synchronize()
        other = CUDA.Stream()
        with torch.cuda.stream(other):
            CUDA._sleep(40 * SLOW)
        start_s = time.perf_counter()
        link.put("k", tensor, to="b")
        took_s = time.perf_counter() - start_s
        busy = not other.query()
        torch.cuda.synchronize()
        assert busy, "the other stream was done before the put"
        assert took_s < 0.2


def test_the_current_device_and_stream_stay_as_they_were() -> None:
    torch.cuda.set_device(1)
    try:
        before = torch.cuda.current_stream()
        with stagelink.open(
            stage="a", role="sender", backend="device_ipc", pool_device="cuda:0",
            pool_bytes=8 * MIB,
        ) as link:  # fmt: skip
            link.put("k", torch.ones(MIB // 8, device="cuda:1"), to="b")
            thread = threading.Thread(target=gc.collect)
            thread.start()
            thread.join()
        assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream() == before
    finally:
        torch.cuda.set_device(0)


def test_memory_of_closed_pools_is_given_back() -> None:
    torch.cuda.synchronize()
    stagelink.open(stage="a", role="sender", backend="device_ipc", pool_bytes=8 * MIB).close()
    gc.collect()
    before = torch.cuda.mem_get_info(0)[0]
    for _ in range(5):
        stagelink.open(
            stage="a", role="sender", backend="device_ipc", pool_bytes=256 * MIB
        ).close()
    gc.collect()
    assert before - torch.cuda.mem_get_info(0)[0] < 64 * MIB


def test_a_pool_beyond_the_device_is_refused() -> None:
    with pytest.raises(CapacityError, match="cuda:0, it has"):
        stagelink.open(stage="a", role="sender", backend="device_ipc", pool_bytes="4TiB")
