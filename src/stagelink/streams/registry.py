"""The streams of one connector: opening them, one writer and one reader of a key at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union
from weakref import WeakValueDictionary

from stagelink.core.errors import DuplicateKeyError, Reason
from stagelink.core.keys import check_key, check_stage
from stagelink.streams.reader import Origin, StreamReader
from stagelink.streams.writer import StreamWriter

if TYPE_CHECKING:
    from stagelink.calls import Calls
    from stagelink.gets import Gets
    from stagelink.puts import Puts
    from stagelink.senders import Senders

Name = tuple[str, str, str]
"""Which end, with whom, the key."""


class Streams:
    """Every open stream of a connector, held weakly: one that is dropped closes itself."""

    __slots__ = ("_calls", "_gets", "_open", "_puts", "_senders")

    def __init__(self, calls: Calls, puts: Puts, gets: Gets, senders: Senders) -> None:
        self._calls = calls
        self._puts = puts
        self._gets = gets
        self._senders = senders
        self._open: WeakValueDictionary[Name, Union[StreamWriter, StreamReader]]
        self._open = WeakValueDictionary()

    def writer(
        self, key: str, to: str, *, timeout: float | None, ttl: float | None, readers: object
    ) -> StreamWriter:
        """A new writer, every argument checked."""
        template = self._puts.command(check_key(key), check_stage(to), ttl, readers, replace=False)
        wait_s = self._calls.seconds(timeout, self._calls.policy.put_s)
        name = ("writer", to, key)
        self._check_free(name)
        writer = self._open[name] = StreamWriter(self._puts, self._calls, template, wait_s)
        return writer

    def reader(
        self, key: str, source: str | None, *, timeout: float | None, total: float | None
    ) -> StreamReader:
        """A new reader, every argument checked."""
        check_key(key)
        origin = Origin(*self._senders.where(source))
        wait_s = self._calls.seconds(timeout, self._calls.policy.transfer_s(0))
        whole_s = None if total is None else self._calls.seconds(total, 0.0)
        name = ("reader", origin.address, key)
        self._check_free(name)
        reader = self._open[name] = StreamReader(self._gets, self._calls, key, origin, wait_s)
        if whole_s is not None:
            reader.deadline = self._calls.driver.clock() + whole_s
        return reader

    def cut(self) -> None:
        """The connector is about to be closed: abort every stream that has no end."""
        for stream in list(self._open.values()):
            if isinstance(stream, StreamWriter):
                stream.cut("the connector was closed")

    def _check_free(self, name: Name) -> None:
        other = self._open.get(name)
        if other is not None and not other.closed:
            end, peer, key = name
            msg = f"a {end} of the stream of key {key!r} is open already, with {peer!r}"
            remedy = "end or close it first, or use a fresh key"
            raise DuplicateKeyError(msg, reason=Reason.DUPLICATE, remedy=remedy)
