"""The streams of one connector: opening them, one writer and one reader of a key at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Union
from weakref import WeakValueDictionary

from stagelink.core.errors import DuplicateKeyError, Reason
from stagelink.core.events import Withdraw
from stagelink.core.keys import check_key, check_stage
from stagelink.core.streams import is_entry
from stagelink.streams.reader import Origin, StreamReader
from stagelink.streams.writer import StreamWriter

if TYPE_CHECKING:
    from stagelink.calls import Calls
    from stagelink.core.endpoint import Endpoint
    from stagelink.gets import Gets
    from stagelink.puts import Puts
    from stagelink.senders import Senders

Name = tuple[str, str, str]
"""Which end, with whom, the key."""


class Streams:
    """Every open stream of a connector, held weakly: one that is dropped closes itself."""

    __slots__ = ("_calls", "_gets", "_open", "_puts", "_senders", "_wrote")

    def __init__(self, calls: Calls, puts: Puts, gets: Gets, senders: Senders) -> None:
        self._calls = calls
        self._puts = puts
        self._gets = gets
        self._senders = senders
        self._wrote = False
        self._open: WeakValueDictionary[Name, Union[StreamWriter, StreamReader]]
        self._open = WeakValueDictionary()

    def writer(
        self, key: str, to: str, *, timeout: float | None, ttl: float | None, readers: object
    ) -> StreamWriter:
        """A new writer, every argument checked."""
        check_key(key)
        edge = self._puts.edge(check_stage(to))
        terms = self._puts.terms(ttl, readers, replace=False)
        wait_s = self._calls.seconds(timeout, self._calls.policy.put_s)
        name = ("writer", to, key)
        self._check_free(name)
        self._wrote = True
        writer = self._open[name] = StreamWriter(
            self._puts, self._calls, key, edge, terms=terms, timeout_s=wait_s
        )
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

    def forget(self, key: str, to: str | None, source: str | None) -> int:
        """End every stream of *key*, open or not; how many streams and unread entries there were.

        Readers of ours are closed, writers aborted and what they have put is taken back.
        """
        ended = 0
        for stream in list(self._open.values()):
            if stream.key != key or stream.closed:
                continue
            if isinstance(stream, StreamReader):
                if source in {None, stream.source}:
                    stream.close()
                    ended += 1
            elif to in {None, stream.to}:
                stream.abort("cleaned up")
        unread = self._calls.driver.look(partial(_unread, key, to)) if self._wrote else []
        for stage, derived in unread:
            ended += bool(self._calls.ask(Withdraw(0, stage, derived)))
        return ended

    def _check_free(self, name: Name) -> None:
        other = self._open.get(name)
        if other is not None and not other.closed:
            end, peer, key = name
            msg = f"a {end} of the stream of key {key!r} is open already, with {peer!r}"
            remedy = "end or close it first, or use a fresh key"
            raise DuplicateKeyError(msg, reason=Reason.DUPLICATE, remedy=remedy)


def _unread(key: str, to: str | None, endpoint: Endpoint) -> list[tuple[str, str]]:
    """The stages and derived keys of what is still to be read of every stream of *key*."""
    return [
        (stage, entry.key)
        for stage, ledger in endpoint.outgoing.ledgers.items()
        for entry in ledger.entries.values()
        if to in {None, stage} and not entry.leaving and is_entry(entry.key, key)
    ]
