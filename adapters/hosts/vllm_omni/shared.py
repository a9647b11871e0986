"""One stagelink connector per process and configuration, whoever builds how many for it.

The host builds a stage's connector twice (its runner, then its scheduler) with one configuration
and one port between them. Both then hold the same one, and it closes with the last of them.
"""

from __future__ import annotations

import atexit
import json
import threading
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


class Shared:
    """A connector and how many hold it."""

    __slots__ = ("connector", "holders", "name")

    def __init__(self, name: str, connector: Connector) -> None:
        self.name = name
        self.connector = connector
        self.holders = 1


class Registry:
    """The connectors of this process, by their settings; any thread may ask."""

    def __init__(self, opened: Callable[[dict[str, Any]], Connector] | None = None) -> None:
        self._open = opened or open_best
        # Within it a garbage collection may close a connector that nobody has closed.
        self._lock = threading.RLock()
        self._known: dict[str, Shared] = {}
        self._over = False

    def take(self, settings: dict[str, Any]) -> Shared:
        """Hold the connector of exactly these *settings*; open it if nobody does.

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
            shared = self._known[name] = Shared(name, self._open(settings))
        _tell(shared.connector, settings)
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

    def close(self) -> None:
        """Close what is open, before the interpreter stops the threads that it needs for that."""
        with self._lock:
            self._over = True
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
