"""The calls of a connector that do not block: for asyncio, and puts that nobody waits for.

asyncio is imported when it is first used. Its event loop, or any that has ``call_soon_threadsafe``
(uvloop), is only ever woken from other threads: no call of ours is made on its behalf elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.adapters.msgspec.placing import check_place
from stagelink.payload import Draft
from stagelink.tickets import PutTicket, StagedPut, answered, published

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from stagelink.calls import Calls
    from stagelink.config import Config
    from stagelink.core.events import Await, Get, Result
    from stagelink.gets import Gets
    from stagelink.payload import Payload
    from stagelink.puts import Puts, Receipt


class Asynchronous:
    """What a connector does without making its caller's thread wait."""

    config: Config
    _calls: Calls
    _puts: Puts
    _gets: Gets

    if TYPE_CHECKING:

        def close(self) -> None:
            """The connector's own."""

    def put_async(
        self, key: str, value: Any, *, to: str, timeout: float | None = None,  # noqa: ANN401
        deadline: float | None = None, ttl: float | None = None,
        readers: int | Iterable[str] | str | None = "default", replace: bool | None = None,
    ) -> PutTicket:  # fmt: skip
        """Publish *value* as :meth:`Connector.put` does, but copy it on another thread.

        It returns as soon as *value* has been measured: milliseconds, whatever its size. Do not
        change *value* before the ticket is done. Those put so by one connector are published in
        the order of the calls. 64 may wait; one more waits here for its turn.

        The arguments are those of :meth:`Connector.put`; *timeout* or *deadline* bound the waits
        for a turn and for room in the pool. The ticket tells when *value* is published, or why it
        is not.

        Raises:
            CapacityError: 64 puts still wait after that time.
            PayloadError, ConfigError, ClosedError, ForkedError: at once, as for
                :meth:`Connector.put`; every other error comes by the ticket.
        """
        with self._puts.begin(key, to) as call:
            self._puts.admit(
                call, timeout=timeout, deadline=deadline, ttl=ttl, readers=readers, replace=replace
            )
            if isinstance(value, Draft):
                return published(self._calls, self._puts.put_draft(value, call), key)
            put = StagedPut(self._calls, self._puts, self._puts.stage(value), call)
            put.enqueue(wait=True)
            return put.ticket

    async def aput(
        self, key: str, value: Any, *, to: str, timeout: float | None = None,  # noqa: ANN401
        deadline: float | None = None, ttl: float | None = None,
        readers: int | Iterable[str] | str | None = "default", replace: bool | None = None,
    ) -> Receipt:  # fmt: skip
        """Publish *value* as :meth:`Connector.put` does, without blocking the event loop.

        What fits into its announcement is published before the first ``await``; anything larger
        is copied on another thread. Do not change *value* meanwhile. When the task is cancelled
        nothing reads *value* any more, and it is not published unless it was already.

        Raises:
            StagelinkError: the same as :meth:`Connector.put`.
        """
        with self._puts.begin(key, to) as call:
            self._puts.admit(
                call, timeout=timeout, deadline=deadline, ttl=ttl, readers=readers, replace=replace
            )
            if isinstance(value, Draft):
                return self._puts.put_draft(value, call)
            staged = self._puts.stage(value)
            if self._puts.goes_inline(staged.size):
                return self._puts.store(staged, call)
        return await StagedPut(self._calls, self._puts, staged, call).carried_out()

    async def aget(
        self, key: str, *, source: str | None = None, timeout: float | None = None,
        deadline: float | None = None, metadata: Mapping[str, Any] | None = None,
        into: Any = None, device: object = None,  # noqa: ANN401
    ) -> Payload:  # fmt: skip
        """Wait for the payload of *key* and take it, without blocking the event loop.

        The arguments are those of :meth:`Connector.get`. What *into* or *device* make it copy is
        copied on the loop's thread, once it is here.

        When the task is cancelled the get ends. A payload that was delivered in that very moment
        is not lost: the next get or poll of its key is given it. It is kept for as long as the
        policy's ``ttl_s``; a get that comes later is told that it expired.

        Raises:
            StagelinkError: the same as :meth:`Connector.get`.
        """
        self._calls.check_usable(receives=True)
        check_place(into, device)
        command = self._gets.wanted(key, source, timeout, deadline, metadata)
        with self._calls.accounted(key, command.source, self.config.stage) as call:
            payload = self._gets.payload(key, await self._answered(command), call)
            return payload.placed(into, device)

    async def await_keys(
        self, keys: Iterable[str], *, source: str | None = None, timeout: float | None = None,
        deadline: float | None = None,
    ) -> str:  # fmt: skip
        """The first of *keys* that a get would not wait for; see :meth:`Connector.wait`.

        Raises:
            StagelinkError: the same as :meth:`Connector.wait`.
        """
        self._calls.check_usable(receives=True)
        command = self._gets.first_wanted(keys, source, timeout, deadline)
        with self._calls.accounted("", command.source, self.config.stage) as call:
            return self._gets.first(await self._answered(command), call)

    async def _answered(self, command: Get | Await) -> Result:
        driver = self._calls.driver
        return await answered(driver, command, driver.tickets.new(command.ticket))

    async def __aenter__(self) -> Self:
        """Use the connector; leaving closes it."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connector on another thread: it may take the policy's ``close_s``."""
        await self.aclose()

    async def aclose(self) -> None:
        """As :meth:`Connector.close`, without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - only who awaits needs it

        await asyncio.get_running_loop().run_in_executor(None, self.close)
