"""Where a connector gets from: the addresses of its senders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.arguments import bracketed
from stagelink.config import check_port
from stagelink.core.errors import ConfigError
from stagelink.core.keys import check_stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.config import Config

_MOST_FOUND = 64
"""Stages whose address is remembered as checked and found; any name may be asked for."""


class Senders:
    """Addresses by stage, and one for every other stage; each well-formed before it is used.

    ``check_dial`` raises ConfigError for an address that the control channel cannot dial.
    """

    __slots__ = ("_by_stage", "_check_dial", "_default", "_found")

    def __init__(self, config: Config, check_dial: Callable[[str], object]) -> None:
        self._by_stage = dict(config.senders)
        self._default = config.sender
        self._check_dial = check_dial
        self._found: dict[str | None, tuple[str, str]] = {}

    def dialled(self, address: str) -> str:
        """*address*, if it is well-formed: else ConfigError, before anything was dialled."""
        self._check_dial(address)
        return address

    def endpoint(self, host: str, port: int) -> str:
        """The address that *host* and *port* make: else ConfigError."""
        if not isinstance(host, str):
            msg = f"host {host!r} is no name or address"
            raise ConfigError(msg, remedy="pass the sender's host as a string")
        return self.dialled(f"tcp://{bracketed(host)}:{check_port(port)}")

    def update(self, host: str, port: int, source: str | None) -> None:
        """Get from this address from now on (of stage *source*, or by default)."""
        address = self.endpoint(host, port)
        if source is None:
            self._default = address
        else:
            self._by_stage[check_stage(source)] = address
        self._found = {}  # last, and a new one: what others find meanwhile goes to the old one

    def where(self, source: str | None) -> tuple[str, str]:
        """Address and stage to get from.

        Raises:
            ConfigError: no sender is known for *source*, or None says too little.
        """
        found = self._found
        try:
            return found[source]
        except (KeyError, TypeError):  # the latter is told below as the ConfigError that it is
            place = self._search(source)
        if len(found) < _MOST_FOUND:
            found[source] = place
        return place

    def _search(self, source: str | None) -> tuple[str, str]:
        if source is None and self._default is None and len(self._by_stage) == 1:
            source = next(iter(self._by_stage))
        if source is not None:
            address = self._by_stage.get(check_stage(source), self._default)
            if address is not None:
                return address, source
        known = ", ".join(sorted(self._by_stage)) or "none"
        if source is None:
            msg = f"source= is needed to get; stages with a known sender: {known}"
            raise ConfigError(msg, remedy="pass source='stage name'")
        msg = f"no sender is known for stage {source!r}; known: {known}"
        raise ConfigError(msg, remedy="open with sender=, senders=, or call update_sender_info()")
