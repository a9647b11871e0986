"""One stagelink connector per process and configuration, whoever builds how many for it.

The host builds a stage's connector twice (its runner, then its scheduler) with one configuration
and one port between them. Both then hold the same one, and it closes with the last of them.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import stagelink
from stagelink import ClosedError, ConfigError
from stagelink.adapters.hosts.vllm_omni.places import process
from stagelink.adapters.hosts.vllm_omni.telling import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink import Connector

ON_DEVICES = ("device_ipc", "mori-xgmi")
"""What ``auto`` tries, in this order, where the pool is to lie on a GPU.

The host shows each stage its own GPUs only. Mori finds no route to a GPU that it does not see, and
would say so at the first get; device_ipc needs to see none but its own.
"""


CLOSE_S = 30.0
"""How long the end of the process waits for connectors that are just being opened."""


class Shared:
    """A connector and how many hold it."""

    __slots__ = ("connector", "holders", "name")

    def __init__(self, name: str, connector: Connector, holders: int) -> None:
        self.name = name
        self.connector = connector
        self.holders = holders


class Pending:
    """A connector that one thread opens, and how many want it."""

    __slots__ = ("stands", "wanted")

    def __init__(self) -> None:
        self.wanted = 0
        self.stands: Future[Shared] = Future()


class Registry:
    """The connectors of this process, by their settings; any thread may ask."""

    def __init__(self, opened: Callable[[dict[str, Any]], Connector] | None = None) -> None:
        self._open = opened or open_best
        # Within it a garbage collection may close a connector that nobody has closed.
        self._lock = threading.RLock()
        self._known: dict[str, Shared] = {}
        self._under_way: dict[str, Pending] = {}
        self._over = False

    def take(self, settings: dict[str, Any]) -> Shared:
        """Hold the connector of exactly these *settings*; open it if nobody does.

        Waits while another thread opens the same one, and fails as that does.

        Raises:
            StagelinkError: as :func:`stagelink.open`.
        """
        name = json.dumps([process(), settings], sort_keys=True, default=str)
        with self._lock:
            if self._over:
                msg = "the process is about to end"
                raise ClosedError(msg)
            shared = self._known.get(name)
            if shared is not None:
                shared.holders += 1
                return shared
            pending = self._under_way.setdefault(name, Pending())
            pending.wanted += 1
            first = pending.wanted == 1
        if first:
            return self._opened(name, settings, pending)
        try:
            return pending.stands.result()
        except CancelledError:  # its thread was interrupted, ours was not
            return self.take(settings)

    def _opened(self, name: str, settings: dict[str, Any], pending: Pending) -> Shared:
        """Open it with no lock held, and tell all who wait for it what came of that."""
        try:
            connector = self._open(settings)
        except BaseException as error:
            with self._lock:
                self._under_way.pop(name, None)
            if isinstance(error, Exception):
                pending.stands.set_exception(error)
            else:
                pending.stands.cancel()
                pending.stands.set_running_or_notify_cancel()
            raise
        with self._lock:
            self._under_way.pop(name, None)
            shared = self._known[name] = Shared(name, connector, pending.wanted)
        pending.stands.set_result(shared)
        _tell(connector, settings)
        return shared

    def give_back(self, shared: Shared) -> None:
        """Let go; the last one closes it."""
        if self._over:
            return
        with self._lock:
            shared.holders -= 1
            if shared.holders:
                return
            self._known.pop(shared.name, None)
        shared.connector.close()

    def forget(self) -> None:
        """In a forked child: what was being opened is so by a thread that is not here."""
        self._lock = threading.RLock()
        self._under_way = {}

    def close(self) -> None:
        """Close what is open, before the interpreter stops the threads that it needs for that."""
        with self._lock:
            self._over = True
            under_way = [pending.stands for pending in self._under_way.values()]
        wait(under_way, CLOSE_S)
        with self._lock:
            known, self._known = list(self._known.values()), {}
        for shared in known:
            shared.connector.close()


def _tell(connector: Connector, settings: dict[str, Any]) -> None:
    """Say once what has been opened: who puts where, by which backends."""
    backends = ", ".join(connector.health()["backends"])
    bound = f"puts at {connector.endpoint}" if connector.endpoint else "gets"
    logger.info(
        "StagelinkConnector: stage %s %s by %s, with a pool of %d bytes",
        settings["stage"], bound, backends, settings["pool_bytes"],
    )  # fmt: skip


def open_best(settings: dict[str, Any]) -> Connector:
    """Open what *settings* describe; for ``auto`` on a GPU, the first that works there, or none.

    Raises:
        StagelinkError: as :func:`stagelink.open`.
    """
    if settings["backend"] == "auto" and settings["pool_device"] != "cpu":
        for name in ON_DEVICES:
            with suppress(ConfigError):  # it cannot work here; what can is told by the last one
                return stagelink.open(**{**settings, "backend": name})
    return stagelink.open(**settings)


REGISTRY = Registry()
"""This process's."""

atexit.register(REGISTRY.close)
os.register_at_fork(after_in_child=REGISTRY.forget)
