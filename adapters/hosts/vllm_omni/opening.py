"""Connectors that open while gets go on: memory takes a second a GiB, and no get waits for it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from stagelink import ClosedError, ConfigError, StagelinkError

if TYPE_CHECKING:
    from stagelink.adapters.hosts.vllm_omni.shared import Registry, Shared

JOIN_S = 5.0
"""How long a close waits for a connector that is just being opened."""


class Opening:
    """One connector, opened by a thread of its own."""

    __slots__ = ("error", "over", "thread")

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.over = threading.Event()
        self.thread: threading.Thread | None = None


class Openings:
    """A connector for each stage that is asked for, as soon as it stands; any thread may ask."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._under_way: dict[str, Opening] = {}
        self._closed = False
        self.held: dict[str, Shared] = {}

    def want(self, stage: str, settings: dict[str, Any], until_s: float | None) -> Shared | None:
        """The connector of *stage*, opened with *settings*; None while that goes on.

        *until_s*, of ``time.monotonic()``, is how long to wait for it; None: not at all.

        Raises:
            StagelinkError: it could not be opened; the next call tries again.
        """
        opening = self._opening(stage, settings)
        if until_s is not None:
            opening.over.wait(max(0.0, until_s - time.monotonic()))
        if not opening.over.is_set():
            return None
        with self._lock:
            if self._under_way.get(stage) is opening:
                del self._under_way[stage]
        error = opening.error
        if error is None:
            return self.held.get(stage)
        if isinstance(error, StagelinkError):
            raise error
        msg = f"the connector of stage {stage!r} cannot be opened: {error!r}"
        raise ConfigError(msg) from error

    def _opening(self, stage: str, settings: dict[str, Any]) -> Opening:
        with self._lock:
            if self._closed:
                msg = "the connector is closed"
                raise ClosedError(msg)
            opening = self._under_way.get(stage)
            if opening is None:
                opening = self._under_way[stage] = Opening()
                work = threading.Thread(
                    target=self._open, args=(stage, settings, opening), daemon=True,
                    name="stagelink-opening",
                )  # fmt: skip
                opening.thread = work
                work.start()
            return opening

    def _open(self, stage: str, settings: dict[str, Any], opening: Opening) -> None:
        try:
            held = self._registry.take(settings)
            with self._lock:
                late = self._closed or stage in self.held
                if not late:
                    self.held[stage] = held
            if late:
                self._registry.give_back(held)
        except Exception as error:  # noqa: BLE001 - whatever the backend's library may raise
            opening.error = error
        finally:
            opening.over.set()

    def forget(self) -> None:
        """Open everything anew: what is held belongs to the process that we were forked from."""
        self._lock = threading.Lock()
        self._under_way, self.held = {}, {}

    def close(self) -> None:
        """Let go of all that is held. Twice is fine."""
        with self._lock:
            self._closed = True
            under_way, self._under_way = list(self._under_way.values()), {}
            held, self.held = list(self.held.values()), {}
        for opening in under_way:
            if opening.thread not in {None, threading.current_thread()}:  # collected as garbage
                opening.thread.join(JOIN_S)
        for shared in held:
            self._registry.give_back(shared)
