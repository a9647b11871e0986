"""One tensor from one connector to another, as the chosen configuration would send it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from stagelink.compose import compose
from stagelink.core.errors import StagelinkError, TransportError
from stagelink.inspect.checks import Check, size
from stagelink.plugins.builtin import keyring_of

if TYPE_CHECKING:
    from stagelink.config import Config

NAME = "transfer to ourselves"
POOL = 16 << 20
"""A pool no larger than this: the real one's room is checked without taking it."""
PAYLOAD = 1 << 20
PATIENCE_S = 10.0
_NOT_OURS = (
    "stage",
    "role",
    "sender",
    "senders",
    "replica",
    "rank",
    "receive_share",
    "send_share",
    "server_key",
)


def transfer_to_ourselves(config: Config) -> Check:
    """Open a sender and a receiver, pass one array over the data plane, compare it, close both."""
    try:
        return Check(NAME, True, _transfer(config))
    except StagelinkError as error:
        return Check(NAME, False, error.message, error.remedy)
    except Exception as error:  # noqa: BLE001 - a backend may be anybody's code
        return Check(NAME, False, f"{type(error).__name__}: {error}", "report this to its author")


def _transfer(config: Config) -> str:
    settings = _settings(config)
    value = _value(min(PAYLOAD, settings["pool_bytes"] // 4))
    with ExitStack() as opened:
        start_s = time.perf_counter()
        # Each has all of its pool for its one direction: the shares divide a pool of two.
        ours = {**settings, "stage": "doctor-a", "role": "sender", "receive_share": 0.0}
        sender = opened.enter_context(compose(ours))
        theirs = {**settings, "stage": "doctor-b", "role": "receiver", "send_share": 0.0}
        receiver = opened.enter_context(
            compose({**theirs, "ipc": None, "sender": sender.endpoint})
        )
        open_ms = (time.perf_counter() - start_s) * 1000
        start_s = time.perf_counter()
        receipt = sender.put("doctor", value, to="doctor-b", timeout=PATIENCE_S)
        with receiver.get("doctor", source="doctor-a", timeout=PATIENCE_S) as payload:
            get_ms = (time.perf_counter() - start_s) * 1000
            same = bytes(memoryview(payload.value).cast("B")) == bytes(memoryview(value).cast("B"))
    if not same:
        msg = "the bytes that arrived are not those that were sent"
        raise TransportError(msg, remedy="choose another backend, and report this")
    kind = type(value).__name__
    took = f"opened in {open_ms:.0f} ms, connected and transferred in {get_ms:.0f} ms"
    return f"{kind} of {size(receipt.size)}: {took}"


def _settings(config: Config) -> dict[str, Any]:
    """Those of *config* that do not say who we are; everything goes over the data plane."""
    known = msgspec.structs.asdict(config)
    rest = {name: value for name, value in known.items() if name not in _NOT_OURS}
    keyring = keyring_of(config)
    return {
        **rest,
        "server_key": "" if keyring is None else keyring.name,
        "pool_bytes": min(config.pool_bytes, max(POOL, 4 * config.alignment)),
        "eager_limit": 0,
    }


def _value(count: int) -> Any:  # noqa: ANN401 - an array, or bytes without numpy
    """*count* bytes with a pattern."""
    pattern = bytes(range(251)) * (count // 251 + 1)
    if find_spec("numpy") is None:
        return bytearray(pattern[:count])
    import numpy as np  # noqa: PLC0415 - an extra

    return np.frombuffer(pattern[:count], dtype=np.uint8).copy()
