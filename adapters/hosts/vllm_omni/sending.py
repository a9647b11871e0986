"""The sending half: bound at the first put, for a stage that only gets never is."""

from __future__ import annotations

import threading
from errno import EADDRINUSE
from typing import TYPE_CHECKING, Any

from stagelink import ClosedError, ConfigError, ForkedError, PayloadError
from stagelink.adapters.hosts.vllm_omni import places
from stagelink.adapters.hosts.vllm_omni.shared import REGISTRY, Shared
from stagelink.adapters.hosts.vllm_omni.values import outward, wholly

if TYPE_CHECKING:
    from stagelink import Receipt
    from stagelink.adapters.hosts.vllm_omni.options import Options
    from stagelink.adapters.hosts.vllm_omni.shared import Registry


class Sending:
    """Puts, each by the connector of the stage that it comes from."""

    def __init__(self, options: Options, registry: Registry = REGISTRY) -> None:
        self._options = options
        self._registry = registry
        self._lock = threading.Lock()
        self._held: dict[str, Shared] = {}
        self._closed = False

    def put(
        self,
        from_stage: str,
        to_stage: str,
        key: str,
        data: Any,  # noqa: ANN401
    ) -> tuple[int, dict[str, Any]]:
        """Publish *data*; how many bytes it makes, and where it is.

        Raises:
            StagelinkError: as :meth:`stagelink.Connector.put`, or the connector cannot be opened.
            TypeError, ValueError: the host's serializer takes no such thing.
        """
        held = self._held.get(from_stage) or self._opened(from_stage)
        try:
            receipt = held.connector.put(key, outward(data), to=to_stage)
        except ForkedError:  # what our parent holds is its own
            self._held = {}
            return self.put(from_stage, to_stage, key, data)
        except PayloadError:  # it knows more kinds of tensors than we
            receipt = held.connector.put(key, wholly(data), to=to_stage)
        return receipt.size, _where(receipt)

    def _opened(self, from_stage: str) -> Shared:
        taken = self._bound(from_stage)  # no lock meanwhile: a close would wait for it
        with self._lock:
            held = self._held.get(from_stage)
            if held is None and not self._closed:
                self._held[from_stage] = taken
                return taken
        self._registry.give_back(taken)
        if held is None:
            msg = "the connector is closed"
            raise ClosedError(msg)
        return held

    def _bound(self, from_stage: str) -> Shared:
        settings = settings_of(self._options, from_stage)
        try:
            return self._registry.take(settings)
        except ConfigError as error:
            if getattr(error.__cause__, "errno", None) != EADDRINUSE:
                raise
            where = (
                f"port {settings['zmq_port']} of {settings['host']}, that of stage {from_stage}"
            )
            msg = f"{where} by the host's rule, is taken by another program"
            remedy = (
                f"give this deployment another extra.zmq_port (it is {self._options.base_port}), "
                "the same for all its stages, or stop that program"
            )
            raise ConfigError(msg, remedy=remedy) from error

    def withdraw(self, key: str) -> int:
        """Take back what is published under *key*, whoever it is for; how many payloads."""
        held = list(self._held.values())
        return sum(shared.connector.cleanup(key) for shared in held)

    @property
    def endpoint(self) -> str:
        """Where we are bound; empty if we are not."""
        return next((held.connector.endpoint for held in self._held.values()), "")

    def health(self) -> list[dict[str, Any]]:
        """That of each of our connectors."""
        return [held.connector.health() for held in list(self._held.values())]

    def close(self) -> None:
        """Let go of our connectors. Twice is fine."""
        with self._lock:
            self._closed = True
            held, self._held = list(self._held.values()), {}
        for shared in held:
            self._registry.give_back(shared)


def settings_of(options: Options, from_stage: str) -> dict[str, Any]:
    """What the connector of stage *from_stage* is opened with.

    Raises:
        ConfigError: there is no port for it.
    """
    host = options.host
    everywhere: dict[str, Any] = {}
    if host in places.EVERYWHERE:
        bound = "::" if host == "::" else "0.0.0.0"  # noqa: S104 - who writes it means it
        shown = places.own_address()
        everywhere = {"host": bound, "allow_wildcard": True, "advertise_host": shown}
    ours = {"stage": from_stage, "role": "sender", "host": places.shown(host), **everywhere}
    ours["zmq_port"] = places.port_of(options, from_stage)
    # Replicas and ranks of the next stage come when they like, and each asks for its own keys.
    ours["readers"] = 0
    ours["receive_share"] = 0.0  # all of the pool: nothing comes into it
    return options.opened_with(**ours, on_duplicate="replace", **places.identity())


def _where(receipt: Receipt) -> dict[str, Any]:
    metadata = receipt.metadata
    metadata["data_size"] = receipt.size
    return metadata
