"""One sender, found once: so that looking there for a key costs a few look-ups and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.events import CancelKey, Failure, Get
from stagelink.core.keys import check_key
from stagelink.failures import error_of

if TYPE_CHECKING:
    from stagelink.calls import Calls
    from stagelink.gets import Gets
    from stagelink.payload import Payload


class Upstream:
    """A sender at a known address; made by :meth:`stagelink.Connector.upstream`.

    For hosts that learn where a payload is together with its key, and ask for it again and again.
    Any thread may use it, as long as its connector is open.

    Attributes:
        source: the sender's stage.
        endpoint: its address, for example ``tcp://127.0.0.1:41873``.
    """

    __slots__ = ("_absent", "_calls", "_driver", "_gets", "endpoint", "source")

    def __init__(self, calls: Calls, gets: Gets, endpoint: str, source: str) -> None:
        self._calls = calls
        self._gets = gets
        self._driver = calls.driver
        self._absent = calls.driver.parts.endpoint.incoming.absent
        self.endpoint = endpoint
        self.source = source

    def poll(self, key: str) -> Payload | None:
        """Take the payload of *key* if it is here; None at once if not. No network call.

        Raises:
            StagelinkError: as :meth:`stagelink.Connector.poll`.
        """
        driver = self._driver
        if driver.closed or driver.forked or driver.torn:
            self._calls.check_usable(receives=True)
        if self._absent(self.endpoint, self.source, key) and driver.quiet:
            return None
        command = self._wanted(key, None)
        with self._calls.accounted(key, self.source, self._calls.stage) as call:
            return self._gets.poll(command, call)

    @property
    def connected(self) -> bool:
        """Whether we are in conversation with it now."""
        source = self._driver.parts.endpoint.incoming.sources.get(self.endpoint)
        return source is not None and source.open

    def get(self, key: str, *, deadline: float) -> Payload:
        """Wait for the payload of *key* until *deadline*, of ``time.monotonic()``; and take it.

        Raises:
            StagelinkError: as :meth:`stagelink.Connector.get`.
        """
        self._calls.check_usable(receives=True)
        command = self._wanted(key, deadline)
        with self._calls.accounted(key, self.source, self._calls.stage) as call:
            return self._gets.get(command, call)

    def cancel(self, key: str) -> int:
        """End every get of *key* from here, as :meth:`stagelink.Connector.cancel`; how many.

        Raises:
            ClosedError, ForkedError: the connector is not usable (here).
        """
        self._calls.check_usable(receives=True)
        with self._calls.accounted(key, self.source, self._calls.stage) as call:
            command = CancelKey(0, self.endpoint, self.source, check_key(key), False)
            result = self._calls.tell(command)
            if isinstance(result, Failure):
                raise error_of(result, call.context)
        assert isinstance(result, int)
        return result

    def _wanted(self, key: str, deadline: float | None) -> Get:
        return self._gets.wanted_at(key, self.endpoint, self.source, deadline)

    def __repr__(self) -> str:
        """Stage and address."""
        return f"<Upstream {self.source!r} at {self.endpoint}>"
