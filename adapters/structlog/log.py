"""Implements :class:`stagelink.ports.EventLog`.

A library leaves the configuration of structlog to the application: our processors are our own, and
end at ``logging.getLogger("stagelink")``, which alone decides what is seen. It has a NullHandler,
so that nothing reaches anybody who did not ask for it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import structlog

from stagelink.adapters.structlog.limiter import Limiter

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

LOGGER = "stagelink"

_stdlib = logging.getLogger(LOGGER)
_stdlib.addHandler(logging.NullHandler())
_pairs = structlog.processors.LogfmtRenderer(bool_as_flag=False)


class Log:
    """Events with the fields given here and at each call; warnings and errors rate limited.

    A warning or error about the same ``peer`` (or ``link``) is told at most once in 5 s, the next
    one with the field ``repeated``, how many were kept back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, **fields: object) -> None:
        self._clock = clock
        self._limiter = Limiter()
        self._bound: structlog.stdlib.BoundLogger = structlog.wrap_logger(
            _stdlib,
            processors=[structlog.stdlib.filter_by_level, to_stdlib],
            wrapper_class=structlog.stdlib.BoundLogger,
            context_class=dict,
        ).bind(**fields)

    def debug(self, event: str, /, **fields: object) -> None:
        """Of interest to somebody who looks for a mistake."""
        if _stdlib.isEnabledFor(logging.DEBUG):
            self._bound.debug(event, **fields)

    def info(self, event: str, /, **fields: object) -> None:
        """A change that needs nobody to act."""
        if _stdlib.isEnabledFor(logging.INFO):
            self._bound.info(event, **fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Something was lost, or will be if it goes on."""
        if _stdlib.isEnabledFor(logging.WARNING) and self._admitted(event, fields):
            self._bound.warning(event, **fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Something of ours, or a plugin's, is broken."""
        if _stdlib.isEnabledFor(logging.ERROR) and self._admitted(event, fields):
            self._bound.error(event, **fields)

    def _admitted(self, event: str, fields: dict[str, object]) -> bool:
        """Whether to say it now; then *fields* say how often it was not said."""
        subject = (event, str(fields.get("peer") or fields.get("link") or ""))
        repeated = self._limiter.admit(subject, self._clock())
        if repeated:
            fields["repeated"] = repeated
        return repeated is not None


def to_stdlib(
    _logger: object, _method: str, fields: MutableMapping[str, Any]
) -> tuple[tuple[str], dict[str, Any]]:
    """The last processor: ``event name=value …`` as the message, and all of it in ``extra``.

    A field without a value (None, or empty) is left out.
    """
    trace = fields.pop("exc_info", None)
    known = {name: value for name, value in fields.items() if value not in (None, "")}
    event = known["event"]
    pairs = {name: _plain(value) for name, value in known.items() if name != "event"}
    line = _pairs(None, "", pairs)
    return (f"{event} {line}" if line else event,), {"extra": known, "exc_info": trace}


def _plain(value: object) -> object:
    """What a peer wrote must not move the cursor or begin another line."""
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    return text if text.isprintable() else ascii(text)[1:-1]
