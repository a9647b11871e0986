"""Looks at a running connector from outside, over its control channel. Reads, changes nothing."""

from __future__ import annotations

import json
import select
import time
from typing import TYPE_CHECKING, Any

from stagelink.adapters.msgspec.wire import WireCodec
from stagelink.adapters.zmq.channel import ZmqChannel
from stagelink.core.errors import (
    Context,
    PeerError,
    ProtocolViolationError,
    Reason,
    StagelinkError,
)  # fmt: skip
from stagelink.core.messages import Figures, Inspect
from stagelink.ports.channel import LinkDown, LinkUp, Mail

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from stagelink.adapters.zmq.keyring import Keyring
    from stagelink.ports.channel import Arrival

ASK_AGAIN_S = 0.3
"""A question may be refused because others ask too; it is repeated until the time is over."""


class Onlooker:
    """One connection to one connector; not for use by several threads.

    Args:
        endpoint: its endpoint, ``tcp://host:port`` or ``ipc:///path``.
        clock: seconds of a monotonic clock.
        keyring: our keys, where the connector has ``security="curve"``.

    Raises:
        ConfigError: *endpoint* cannot be dialled.
    """

    def __init__(
        self,
        endpoint: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        keyring: Keyring | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._clock = clock
        self._number = 0
        self._up = False
        self._detail = ""
        self._codec = WireCodec()
        self._channel = ZmqChannel(None, keyring=keyring)
        try:
            self._channel.dial(endpoint)
            self._poll = select.poll()
            self._poll.register(self._channel.fileno(), select.POLLIN)
        except BaseException:
            self._channel.close()
            raise

    def look(self, timeout_s: float) -> dict[str, Any]:
        """The connector's ``health()`` of now, as it told it.

        Raises:
            PeerError: nobody was reached, or nobody answered, within *timeout_s*.
            ProtocolViolationError: what answered is no stagelink connector.
        """
        until_s = self._clock() + timeout_s
        self._number += 1
        ask_at_s = 0.0
        while (now_s := self._clock()) < until_s:
            if self._up and now_s >= ask_at_s:
                self._channel.send(self.endpoint, self._codec.encode(Inspect(self._number)))
                ask_at_s = now_s + ASK_AGAIN_S
            was_up = self._up
            found = self._hear()
            if found is not None:
                return found
            if self._up == was_up:
                wake_s = min(until_s, ask_at_s) if self._up else until_s
                self._poll.poll(max(0.0, wake_s - now_s) * 1000)
        raise self._silence(timeout_s)

    def close(self) -> None:
        """Hang up. Twice is fine."""
        self._channel.close()

    def __enter__(self) -> Onlooker:  # noqa: PYI034 - typing has no Self in 3.10
        """Close at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _hear(self) -> dict[str, Any] | None:
        """Take all that has arrived; the answer, if it is among it."""
        answer = None
        while (arrival := self._channel.receive()) is not None:
            answer = self._heard(arrival) or answer
        return answer

    def _heard(self, arrival: Arrival) -> dict[str, Any] | None:
        if isinstance(arrival, Mail):
            message = self._codec.decode(arrival.frames)
            if isinstance(message, Figures) and message.number == self._number:
                return _read(message.body)
            return None
        self._up = isinstance(arrival, LinkUp)
        if isinstance(arrival, LinkDown):
            self._detail = arrival.detail
        return None

    def _silence(self, timeout_s: float) -> StagelinkError:
        where = Context(peer=self.endpoint, elapsed_s=timeout_s)
        if self._up:
            msg = f"{self.endpoint} is connected, but does not answer"
            remedy = "check that it is a stagelink connector, of this version, and not stopped"
            return PeerError(msg, reason=Reason.DECLINED, context=where, remedy=remedy)
        why = f" ({self._detail})" if self._detail else ""
        msg = f"nothing answers at {self.endpoint}{why}"
        remedy = "check that the connector runs, listens (a receiver does not), and its endpoint"
        return PeerError(msg, reason=Reason.UNREACHABLE, context=where, remedy=remedy)


def _read(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        found = error
    if isinstance(found, dict):
        return found
    msg = f"the figures of {len(body)} bytes are no JSON object: {body[:40]!r}"
    raise ProtocolViolationError(msg, reason=Reason.PROTOCOL, remedy="check what listens there")
