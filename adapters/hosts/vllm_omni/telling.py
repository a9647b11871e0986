"""What the host's log hears of us: each thing once in a while, however often it happens."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from vllm_omni.distributed.omni_connectors.utils.logging import get_connector_logger

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_S = 10.0
"""How often the same thing is told at most."""

_MOST = 256

logger = get_connector_logger("vllm_omni.distributed.omni_connectors.connectors.stagelink")


class Teller:
    """Says things, each at most once in :data:`EVERY_S`, the next time with how many it was."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: dict[str, tuple[float, int]] = {}

    def say(self, about: str, text: str, *, error: bool = False) -> None:
        """Log *text*, unless something *about* the same was told a moment ago."""
        with self._lock:
            now_s = self._clock()
            due_s, kept = self._told.get(about, (now_s, 0))
            if now_s < due_s:
                self._told[about] = (due_s, kept + 1)
                return
            if len(self._told) >= _MOST:
                self._told.clear()
            self._told[about] = (now_s + EVERY_S, 0)
        again = f" (and {kept} times more since it was last told)" if kept else ""
        (logger.error if error else logger.warning)("StagelinkConnector: %s%s", text, again)
