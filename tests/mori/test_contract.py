"""Every name and signature of AMD's engine that stagelink uses, as the real one has it.

The engine is compiled, so what it takes is read from the first line of each docstring, where its
binding writes the signature.
"""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from typing import Any

import mori.cpp
import mori.io
import pytest

NAMES = [
    "BackendType",
    "EngineDesc",
    "IOEngine",
    "IOEngineConfig",
    "MemoryDesc",
    "MemoryLocationType",
    "PeerFailureEvent",
    "PeerFailureReason",
    "PollCqMode",
    "RdmaBackendConfig",
    "StatusCode",
    "XgmiBackendConfig",
]

ENUMS: dict[str, dict[str, int]] = {
    "BackendType": {"Unknown": 0, "XGMI": 1, "RDMA": 2, "TCP": 3, "FABRIC": 4},
    "MemoryLocationType": {"Unknown": 0, "CPU": 1, "GPU": 2},
    "PollCqMode": {"POLLING": 0, "EVENT": 1},
    "StatusCode": {
        "SUCCESS": 0,
        "INIT": 1,
        "IN_PROGRESS": 2,
        "ERR_INVALID_ARGS": 11,
        "ERR_NOT_FOUND": 12,
        "ERR_RDMA_OP": 13,
        "ERR_BAD_STATE": 14,
        "ERR_GPU_OP": 15,
    },
    "PeerFailureReason": {
        "UNKNOWN": 0,
        "PEER_UNREACHABLE": 1,
        "LOCAL_QP_ERROR": 2,
        "LOCAL_PORT_DOWN": 3,
        "LOCAL_DEVICE_FATAL": 4,
        "LOCAL_CQ_ERROR": 5,
    },
}

PYTHON = {
    "IOEngine.__init__": ["self", "key", "config"],
    "IOEngine.get_engine_desc": ["self"],
    "IOEngine.create_backend": ["self", "type", "config"],
    "IOEngine.remove_backend": ["self", "type"],
    "IOEngine.register_remote_engine": ["self", "engine_desc"],
    "IOEngine.deregister_remote_engine": ["self", "engine_desc"],
    "IOEngine.register_memory": ["self", "ptr", "size", "device_id", "mem_loc"],
    "IOEngine.deregister_memory": ["self", "mem_desc"],
    "IOEngine.allocate_transfer_uid": ["self"],
    "IOEngine.create_session": ["self", "local_mem", "remote_mem"],
    "IOEngine.pop_inbound_transfer_status": ["self", "remote_key", "transfer_uid"],
    "IOEngine.pop_peer_failure": ["self"],
    "IOEngine.wait_all": ["self", "statuses", "timeout_ms"],
    "IOEngine.write": ["self", "args"],
    "IOEngine.read": ["self", "args"],
    "IOEngine.batch_write": ["self", "args"],
    "IOEngine.batch_read": ["self", "args"],
    "IOEngineSession.allocate_transfer_uid": ["self"],
    "IOEngineSession.write": ["self", "args"],
    "IOEngineSession.read": ["self", "args"],
    "IOEngineSession.batch_write": ["self", "args"],
    "IOEngineSession.batch_read": ["self", "args"],
    "IOEngineSession.alive": ["self"],
}

INT = "int"
INTS = "Sequence[int]"
ONE = [INT, INT, INT, "TransferStatus", INT]
MANY = [INTS, INTS, INTS, "TransferStatus", INT]
FROM_TO = ["MemoryDesc", INT, "MemoryDesc", INT, INT, "TransferStatus", INT]
LISTS = [
    "Sequence[MemoryDesc]", "Sequence[Sequence[int]]", "Sequence[MemoryDesc]",
    "Sequence[Sequence[int]]", "Sequence[Sequence[int]]", "Sequence[TransferStatus]", INTS,
]  # fmt: skip

COMPILED = {
    "IOEngine.__init__": (["str", "IOEngineConfig"], "None"),
    "IOEngine.CreateBackend": (["BackendType", "BackendConfig"], "None"),
    "IOEngine.RemoveBackend": (["BackendType"], "None"),
    "IOEngine.GetEngineDesc": ([], "EngineDesc"),
    "IOEngine.RegisterRemoteEngine": (["EngineDesc"], "None"),
    "IOEngine.DeregisterRemoteEngine": (["EngineDesc"], "None"),
    "IOEngine.RegisterMemory": (["CapsuleType", INT, INT, "MemoryLocationType"], "MemoryDesc"),
    "IOEngine.DeregisterMemory": (["MemoryDesc"], "None"),
    "IOEngine.CreateSession": (["MemoryDesc", "MemoryDesc"], "IOEngineSession | None"),
    "IOEngine.Write": (FROM_TO, "None"),
    "IOEngine.Read": (FROM_TO, "None"),
    "IOEngine.BatchWrite": (LISTS, "None"),
    "IOEngine.BatchRead": (LISTS, "None"),
    "IOEngine.AllocateTransferUniqueId": ([], INT),
    "IOEngine.PopInboundTransferStatus": (["str", INT, "TransferStatus"], "bool"),
    "IOEngine.PopPeerFailure": ([], "PeerFailureEvent | None"),
    "IOEngine.WaitAll": (["Sequence[TransferStatus]", INT], "StatusCode"),
    "IOEngineSession.Write": (ONE, "None"),
    "IOEngineSession.Read": (ONE, "None"),
    "IOEngineSession.BatchWrite": (MANY, "None"),
    "IOEngineSession.BatchRead": (MANY, "None"),
    "IOEngineSession.AllocateTransferUniqueId": ([], INT),
    "IOEngineSession.Alive": ([], "bool"),
    "TransferStatus.Wait": ([], "None"),
    "TransferStatus.WaitFor": ([INT], "StatusCode"),
    "TransferStatus.Init": ([], "bool"),
    "TransferStatus.InProgress": ([], "bool"),
    "TransferStatus.Succeeded": ([], "bool"),
    "TransferStatus.Failed": ([], "bool"),
    "TransferStatus.Code": ([], "StatusCode"),
    "TransferStatus.Message": ([], "str"),
    "EngineDesc.pack": ([], "bytes"),
    "EngineDesc.unpack": (["bytes"], "EngineDesc"),
    "MemoryDesc.pack": ([], "bytes"),
    "MemoryDesc.unpack": (["bytes"], "MemoryDesc"),
}

FIELDS = {
    "EngineDesc": {"host", "hostname", "key", "node_id", "pid", "port"},
    "MemoryDesc": {
        "data", "device_bus_id", "device_id", "engine_key", "id", "ipc_handle", "loc",
        "numa_node", "size",
    },
    "PeerFailureEvent": {
        "detail", "device_name", "port_num", "qp_num", "reason", "remote_engine_key",
    },
}  # fmt: skip

DEFAULTS: dict[str, dict[str, Any]] = {
    "IOEngineConfig": {"host": "", "port": 0},
    "XgmiBackendConfig": {"num_streams": 64, "num_events": 64},
    "RdmaBackendConfig": {
        "qp_per_transfer": 1,
        "post_batch_size": -1,
        "num_worker_threads": -1,
        "poll_cq_mode": mori.io.PollCqMode.POLLING,
        "enable_notification": True,
        "notif_per_qp": 1024,
        "enable_transfer_chunking": False,
        "chunk_bytes": 65536,
        "max_chunks_per_transfer": 64,
        "num_nics_per_transfer": 1,
    },
}


def found(path: str, root: Any) -> Any:
    """What a dotted path leads to."""
    for name in path.split("."):
        root = getattr(root, name)
    return root


def signature(path: str) -> tuple[list[str], str]:
    """Types of the parameters without ``self``, and of what is returned."""
    line = (found(path, mori.cpp).__doc__ or "").strip().splitlines()[0]
    plain = line.replace("typing.SupportsInt | typing.SupportsIndex", INT)
    plain = re.sub(r"[\w.]+\.(?=\w)", "", plain)  # no modules
    arguments, returned = plain[plain.index("(") + 1 :].rsplit(") -> ", 1)
    types = re.findall(r"\w+: (.*?)(?: = [^,]*)?(?:, (?=\w+: )|$)", arguments)
    is_method = arguments.startswith("self: ")
    return types[1:] if is_method else types, returned


def test_the_version_is_the_one_that_was_looked_at() -> None:
    """A new one is welcome: when all tests here pass with it, write its number down."""
    assert version("amd-mori") == "1.2.4"


@pytest.mark.parametrize("name", NAMES)
def test_the_name_is_there(name: str) -> None:
    assert hasattr(mori.io, name)


@pytest.mark.parametrize("name", ENUMS)
def test_the_members_have_their_numbers(name: str) -> None:
    kind = getattr(mori.io, name)

    assert {member: int(value) for member, value in kind.__members__.items()} == ENUMS[name]


@pytest.mark.parametrize("path", PYTHON)
def test_the_parameters_have_their_names(path: str) -> None:
    assert list(inspect.signature(found(path, mori.io.engine)).parameters) == PYTHON[path]


@pytest.mark.parametrize("path", COMPILED)
def test_the_compiled_signature_is_the_same(path: str) -> None:
    assert signature(path) == COMPILED[path]


@pytest.mark.parametrize("name", FIELDS)
def test_the_fields_are_there(name: str) -> None:
    assert vars(getattr(mori.io, name)).keys() >= FIELDS[name]


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_settings_have_their_defaults(name: str) -> None:
    made = getattr(mori.io, name)()

    assert {field: getattr(made, field) for field in DEFAULTS[name]} == DEFAULTS[name]


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_settings_are_taken_in_their_order(name: str) -> None:
    """We give them by position or by name."""
    names = re.findall(r"(\w+): (?!\d)", found(f"{name}.__init__.__doc__", mori.io))

    assert names == ["self", *DEFAULTS[name]]


def test_nothing_can_be_cancelled() -> None:
    """Or there would be a better answer to a time-out than to wait."""
    kinds = (mori.io.IOEngine, mori.io.engine.IOEngineSession, mori.cpp.TransferStatus)

    assert not [
        name for kind in kinds for name in dir(kind) if re.search("cancel|abort", name, re.I)
    ]
