"""The dialect with a pool on a device: plain payloads stay there, packed ones pass the host."""

from __future__ import annotations

import ctypes
import gc
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.devices import host
from tests.dialect.theirs import TheirReceiver, TheirSender

from stagelink.adapters.device_ipc import DeviceIpcPlane
from stagelink.adapters.memory import Engine
from stagelink.compose import compose
from stagelink.core.regions import Region
from stagelink.plugins import Manager
from stagelink.plugins.hookspecs import Backend, BackendContext, hookimpl

if TYPE_CHECKING:
    from stagelink.connector import Connector

torch = pytest.importorskip("torch")
PATIENCE_S = 10.0


class ForeignDevicePlane(DeviceIpcPlane):
    """That of the device that is host memory, and an engine which reaches its bytes."""

    def __init__(self, instance: bytes) -> None:
        super().__init__(instance, host.ipc)
        self._known: dict[int, Region] = {}
        self.foreign = Engine(instance, self._known)

    def register(self, region: int, memory: Any) -> None:
        super().register(region, memory)
        whole = (ctypes.c_char * memory.size).from_address(memory.buffer.address)
        self._known[region] = Region(memoryview(whole).cast("B"), memory.buffer.address)

    def close(self) -> None:
        self.foreign.close()
        super().close()


def plane(context: BackendContext) -> ForeignDevicePlane:
    return ForeignDevicePlane(context.instance)


class Plugin:
    @hookimpl
    def stagelink_backends(self) -> list[Backend]:
        there, here = "tests.devices.host:", "tests.dialect.test_device:"
        ours = "stagelink.plugins.builtin:shm_liveness"
        return [Backend("host_device", "a test", "zmq", there + "provider", here + "plane", ours)]


def open_ours(stage: str, role: str, **settings: Any) -> Connector:
    known = {
        "stage": stage, "role": role, "backend": "host_device", "pool_bytes": 1 << 20,
        "dialect": "vllm-omni-mori", **settings,
    }  # fmt: skip
    return compose(known, Manager(plugins=[Plugin()]))


def is_free(connector: Connector) -> bool:
    """Whether all memory comes back, a moment after its last view."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        gc.collect()
        pool = connector.health()["pool"]
        if pool["free"] == pool["capacity"]:
            return True
        time.sleep(0.001)
    return False


@pytest.mark.parametrize("count", [10, 50_000], ids=["inline", "in the pool"])
def test_a_tensor_on_the_device_is_written_from_where_it_lies(count: int) -> None:
    value = torch.arange(count, dtype=torch.int32)
    with (
        open_ours("0", "sender", dialect_readers=("1",)) as tx,
        TheirReceiver(tx.dialect_endpoint) as theirs,
    ):
        tx.put("k", value, to="1")
        assert theirs.get("k@0_1") == (value.numpy().tobytes(), True)
        assert is_free(tx)


def test_a_structure_with_tensors_on_the_device_is_packed_on_the_host() -> None:
    value = {"hidden": torch.ones(50_000), "meta": {"finished": True}}
    with (
        open_ours("0", "sender", dialect_readers=("1",)) as tx,
        TheirReceiver(tx.dialect_endpoint) as theirs,
    ):
        tx.put("k", value, to="1")
        found = theirs.get("k@0_1")
        assert found is not None
        packed = msgspec.msgpack.decode(found[0])
        assert packed["meta"] == {"finished": True}
        assert packed["hidden"]["data"] == value["hidden"].numpy().tobytes()
        assert is_free(tx)


def test_what_theirs_puts_is_a_tensor_on_the_device_or_a_value_on_the_host() -> None:
    data = bytes(range(256)) * 300
    with (
        TheirSender() as sender,
        open_ours("1", "receiver", dialect_senders={"0": sender.address}) as rx,
    ):
        sender.put("plain", data, plain=True)
        sender.put("packed", msgspec.msgpack.encode({"a": [1, b"x"]}), plain=False)

        with rx.get("plain", source="0", timeout=PATIENCE_S) as payload:
            assert payload.value.dtype == torch.uint8
            assert payload.value.numpy().tobytes() == data
        with rx.get("packed", source="0", timeout=PATIENCE_S) as payload:
            assert payload.value == {"a": [1, b"x"]}
        del payload
        assert is_free(rx)
