"""The real engine runs over the simulators."""

from __future__ import annotations

from mori.io import (
    BackendType,
    IOEngine,
    IOEngineConfig,
    MemoryLocationType,
    RdmaBackendConfig,
    XgmiBackendConfig,
)
from tests.sims import hipsim, verbsim

SIZE = 65536


def engine(key: str, backend: BackendType, config: object) -> IOEngine:
    made = IOEngine(key, IOEngineConfig(host="127.0.0.1", port=0))
    made.create_backend(backend, config)
    return made


def test_xgmi_moves_bytes_between_two_devices() -> None:
    before = hipsim.stats()["bytes"]
    ours, theirs = (engine(key, BackendType.XGMI, XgmiBackendConfig()) for key in "AB")
    ours.register_remote_engine(theirs.get_engine_desc())
    source, target = hipsim.malloc(SIZE, 0), hipsim.malloc(SIZE, 1)
    hipsim.put(source, b"a" * SIZE)
    here = ours.register_memory(source, SIZE, 0, MemoryLocationType.GPU)
    there = theirs.register_memory(target, SIZE, 1, MemoryLocationType.GPU)

    status = ours.write(here, 0, there, 16, 1000, 1)
    status.Wait()

    assert status.Succeeded()
    assert hipsim.get(target, 2000) == b"\0" * 16 + b"a" * 1000 + b"\0" * 984
    assert hipsim.stats()["bytes"] == before + SIZE + 1000 + 2000


def test_rdma_moves_bytes_between_two_cards() -> None:
    ours, theirs = (engine(key, BackendType.RDMA, RdmaBackendConfig()) for key in "CD")
    ours.register_remote_engine(theirs.get_engine_desc())
    theirs.register_remote_engine(ours.get_engine_desc())
    source, target = (hipsim.malloc(SIZE, 0) for _ in range(2))
    hipsim.put(source, b"a" * SIZE)
    here = ours.register_memory(source, SIZE, -1, MemoryLocationType.CPU)
    there = theirs.register_memory(target, SIZE, -1, MemoryLocationType.CPU)

    status = ours.write(here, 0, there, 16, 1000, 1)
    status.Wait()

    assert status.Succeeded(), status.Message()
    assert hipsim.get(target, 2000) == b"\0" * 16 + b"a" * 1000 + b"\0" * 984
    assert {pair.state for pair in verbsim.pairs()} == {"RTS"}
