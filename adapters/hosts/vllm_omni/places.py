"""Who we are among the host's processes, and the port that follows from it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from vllm_omni.distributed.omni_connectors.utils.initialization import compute_connector_zmq_port
from vllm_omni.distributed.omni_connectors.utils.kv_utils import (
    get_local_tp_rank,
    get_omni_replica_id,
)

from stagelink import ConfigError

if TYPE_CHECKING:
    from stagelink.adapters.hosts.vllm_omni.options import Options

EVERYWHERE = frozenset({"*", "0.0.0.0", "::"})  # noqa: S104 - told apart, not bound
UNSAID = frozenset({"", "auto"})


def rank() -> int:
    """Ours within our stage's tensor-parallel group; 0 where there is none."""
    return int(get_local_tp_rank())


def replica() -> int:
    """Our stage's number among its replicas."""
    return int(get_omni_replica_id())


def port_of(options: Options, from_stage: str) -> int:
    """The port of stage *from_stage*, of a process of our rank and replica.

    It is the host's own formula, so that what the host advertises is where we are.

    Raises:
        ConfigError: *from_stage* is no number, or the port is beyond 65535.
    """
    try:
        port: int = compute_connector_zmq_port(
            options.base_port,
            purpose=options.purpose,
            from_stage=int(from_stage),
            local_rank=rank(),
            replica_id=replica(),
        )
        return port  # noqa: TRY300
    except ValueError as error:
        msg = f"StagelinkConnector: no port for stage {from_stage!r}: {error}"
        remedy = f"lower extra.zmq_port (it is {options.base_port}), or number stages from 0 to 15"
        raise ConfigError(msg, remedy=remedy) from error


def shown(host: str) -> str:
    """The address behind *host*: of ``auto`` and of every interface, the one others know us by."""
    return own_address() if host.lower() in UNSAID | EVERYWHERE else host


def own_address() -> str:
    """The address that our way to other networks leaves from, as the host finds it. No packet."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("8.8.8.8", 80))
            return str(probe.getsockname()[0])
    except OSError:
        pass
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def identity() -> dict[str, int]:
    """Settings of :func:`stagelink.open` that tell us from our stage's other processes."""
    return {"replica": replica(), "rank": rank()}


def process() -> int:
    """This process: what another one has opened is not ours, even if we inherited it."""
    return os.getpid()
