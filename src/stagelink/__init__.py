"""Move tensors between the stages of an inference pipeline, over the best path the two share.

```python
import stagelink

tx = stagelink.open(stage="thinker", role="sender")
tx.put("req-7", {"hidden": tensor, "step": 3}, to="talker")

rx = stagelink.open(stage="talker", role="receiver", sender=tx.endpoint)
with rx.get("req-7", source="thinker", timeout=5.0) as payload:
    use(payload.value)
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.core.errors import (
    CapacityError,
    ClosedError,
    ConfigError,
    DeadlineError,
    DuplicateKeyError,
    ForkedError,
    GoneError,
    IncompleteStreamError,
    LeaseError,
    PayloadError,
    PeerError,
    ProtocolViolationError,
    Reason,
    StagelinkError,
    TransportError,
)  # fmt: skip

if TYPE_CHECKING:
    from stagelink.connector import Connector
    from stagelink.payload import Draft, Payload
    from stagelink.puts import Receipt
    from stagelink.streams.reader import StreamReader
    from stagelink.streams.writer import StreamWriter
    from stagelink.tickets import PutTicket
    from stagelink.upstream import Upstream

__version__ = "0.1.0"

__all__ = [
    "CapacityError", "ClosedError", "ConfigError", "Connector", "DeadlineError", "Draft",
    "DuplicateKeyError", "ForkedError", "GoneError", "IncompleteStreamError", "LeaseError",
    "Payload", "PayloadError", "PeerError", "ProtocolViolationError", "PutTicket", "Reason",
    "Receipt", "StagelinkError", "StreamReader", "StreamWriter", "TransportError", "Upstream",
    "__version__", "check", "open",
]  # fmt: skip

_LAZY = {
    "Connector": "stagelink.connector",
    "Draft": "stagelink.payload",
    "Payload": "stagelink.payload",
    "PutTicket": "stagelink.tickets",
    "Receipt": "stagelink.puts",
    "StreamReader": "stagelink.streams.reader",
    "StreamWriter": "stagelink.streams.writer",
    "Upstream": "stagelink.upstream",
}


def open(**settings: Any) -> Connector:  # noqa: A001, ANN401 - reads as stagelink.open(...)
    """Open one stage's connector; close it, or use it in a ``with``.

    Args:
        **settings: the fields of :class:`stagelink.config.Config`: ``stage`` and ``role``
            ("sender", "receiver" or "peer") are required; ``host``, ``zmq_port``, ``backend``,
            ``pool_bytes``, ``sender``, ``senders``, ``readers``, ``on_duplicate``, ``timeouts``
            and the rest have defaults.

    Raises:
        ConfigError: a setting is misspelt, wrong or cannot work here; nothing was started.
        CapacityError: the pool does not fit into shared memory; both numbers and the remedy.
    """
    from stagelink.compose import compose  # noqa: PLC0415 - loads the chosen backend only

    return compose(settings)


def check(**settings: Any) -> tuple[str, ...]:  # noqa: ANN401 - as for open
    """The names of the backends that :func:`open` would use here, best first; opens nothing.

    Args:
        **settings: as for :func:`open`.

    Raises:
        ConfigError: a setting is misspelt or wrong, or no backend that it allows works here.
    """
    from stagelink.compose import check  # noqa: PLC0415 - loads every backend's probe

    return check(settings)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class of the face
    """Load the classes of the face when they are first named."""
    module = _LAZY.get(name)
    if module is None:
        msg = f"module 'stagelink' has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(module), name)
