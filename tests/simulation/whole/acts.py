"""What callers do with a connector, and how every answer is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from tests.simulation.whole.books import Written, same
from tests.simulation.whole.clockwork import Violation

from stagelink.core.errors import Reason, StagelinkError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.whole.books import Put
    from tests.simulation.whole.surroundings import Node, Surroundings

    from stagelink.payload import Payload

T = TypeVar("T")

UINT8 = np.dtype(np.uint8)

KEYS = tuple(f"k{number}" for number in range(6))
STREAMS = ("s0", "s1", "s2")
SIZES = (0, 4, 40, 200, 300, 700, 700, 1500, 2500, 5000, 20000)
NEVER = frozenset({Reason.PROTOCOL, Reason.OUT_OF_BOUNDS})
"""What honest peers never meet."""

MOST_HELD = 4
MOST_PUT_S = 1.0


class Act:
    """One act of one caller; ``chance`` is its own, so that leaving out another changes nothing."""

    def __init__(self, world: Surroundings, node: Node, chance: Random, name: str) -> None:
        self.world, self.node, self.chance, self.name = world, node, chance, name
        self.works, self.books, self.connector = world.works, world.books, node.connector
        # The node may be another instance before this act is over.
        self.instance, self.process = node.instance, node.process

    # --- sending -------------------------------------------------------------------------

    def put(self) -> None:
        """Put a value, or as a draft, or on the worker's thread."""
        chance = self.chance
        put = self._new_put(chance.choice(KEYS))
        how: Callable[[Put, float], Any]
        how = chance.choices((self._put, self._put_draft, self._put_async), (8, 2, 2))[0]
        wait_s = chance.choice((0.0, 0.05, 0.3, MOST_PUT_S))
        # One on the worker's thread comes after those that wait there, each for its own time.
        most_s = MOST_PUT_S if how == self._put_async else wait_s
        receipt = self._attempt("put", most_s, lambda: how(put, wait_s), put)
        if receipt is not None:
            self.books.is_published(put, receipt.generation)
            self.world.receipts.append((put, receipt.metadata))

    def _new_put(self, key: str) -> Put:
        chance = self.chance
        readers = chance.choice((1, 1, 1, 2, None))
        to = chance.choice(self.world.sends[self.node.stage])
        return self.books.put(self.node, to, key, chance.choice(SIZES), readers)

    def _terms(self, put: Put, wait_s: float) -> dict[str, Any]:
        chance = self.chance
        ttl_s, replace = chance.choice((0.3, 2.0, 8.0)), chance.random() < 0.2
        return {"to": put.to, "ttl": ttl_s, "readers": put.readers, "replace": replace,
                "timeout": wait_s}  # fmt: skip

    def _put(self, put: Put, wait_s: float) -> Any:  # noqa: ANN401
        value = {"n": put.serial, "data": put.data()}
        return self.connector.put(put.key, value, **self._terms(put, wait_s))

    def _put_draft(self, put: Put, wait_s: float) -> Any:  # noqa: ANN401
        put.size = max(put.size, 4)
        with self.connector.alloc((put.size,), UINT8, timeout=wait_s) as draft:
            self._pause(0.02)
            draft.tensor[:] = put.data()
            return self.connector.put(put.key, draft, **self._terms(put, 0.0))

    def _put_async(self, put: Put, wait_s: float) -> Any:  # noqa: ANN401
        value = {"n": put.serial, "data": put.data()}
        ticket = self.connector.put_async(put.key, value, **self._terms(put, wait_s))
        if self.chance.random() < 0.3 and ticket.cancel():
            self.works.seen["put: cancelled in time"] += 1
        return ticket.result()

    def fail(self) -> None:
        """Publish a failure."""
        chance, books = self.chance, self.books
        number, key = books.number(), chance.choice(KEYS)
        to = chance.choice(self.world.sends[self.node.stage])
        books.failed[number] = self.node.stage, to, key
        ttl_s = chance.choice((0.3, 2.0))
        told = self._attempt(
            "fail", 0.0, lambda: self.connector.fail(key, f"boom {number}.", to=to, ttl=ttl_s)
        )
        if told is not None:
            books.published[self.instance] += 1

    def take_back(self) -> None:
        """Withdraw, clean up, or wait until all has been taken."""
        chance, connector = self.chance, self.connector
        key, to = chance.choice(KEYS), chance.choice(self.world.sends[self.node.stage])
        kind = chance.random()
        if kind < 0.6:
            self._attempt("withdraw", 0.0, lambda: connector.withdraw(key, to=to))
        elif kind < 0.8:
            self._attempt("cleanup", 0.0, lambda: connector.cleanup(key))
        else:
            wait_s = chance.choice((0.0, 0.5))
            self._attempt("drain", wait_s, lambda: connector.drain(wait_s))

    def write_stream(self) -> None:
        """Put the chunks of a stream, and end it or give up."""
        chance, books = self.chance, self.books
        serial, key = books.number(), chance.choice(STREAMS)
        to = chance.choice(self.world.sends[self.node.stage])
        count, ended = chance.randint(0, 6), chance.random() < 0.8
        terms: dict[str, Any] = {"timeout": chance.choice((0.1, 0.5)), "ttl": 2.0}

        def write() -> None:
            done = 0
            with self.connector.stream(key, to=to, **terms) as writer:
                for place in range(count):
                    put = books.put(self.node, to, key, chance.choice((0, 40, 700, 1500)))
                    put.stream = serial, place
                    try:
                        writer.put({"n": put.serial, "data": put.data()})
                    except StagelinkError:
                        books.is_refused(put)
                        raise
                    put.state, done = "published", place + 1
                    books.published[self.instance] += 1
                    self._pause(0.05)
                # Before it is said: a reader may come to the end before we go on.
                books.streams[serial] = Written(done, ended)
                if not ended:
                    writer.abort("boom")

        self._attempt("stream out", None, write)

    # --- receiving -----------------------------------------------------------------------

    def get(self) -> None:
        """Get a key, or what a receipt names, perhaps misquoted."""
        chance = self.chance
        source, key = self._source(), chance.choice(KEYS)
        wait_s = chance.choice((0.0, 0.1, 0.5, 2.0))
        kind = chance.random()
        if kind < 0.1 and self.world.receipts:
            put, metadata = chance.choice(self.world.receipts)
            if kind < 0.03:
                metadata = {**metadata, "size": metadata["size"] + 1}
            if put.to == self.node.stage:
                self._get("get named", put.by, put.key, wait_s, metadata=metadata)
        elif kind < 0.13:
            self._get("get astray", "nobody", key, wait_s)
        else:
            self._get("get", source, key, wait_s)

    def _get(self, what: str, source: str, key: str, wait_s: float, **named: Any) -> None:  # noqa: ANN401
        def take() -> Payload:
            return self.connector.get(key, source=source, timeout=wait_s, **named)

        self._taken(source, key, self._attempt(what, wait_s, take, about=(source, key)))

    def get_many(self) -> None:
        """Get some keys together."""
        source, keys = self._source(), self.chance.sample(KEYS, self.chance.randint(1, 3))
        wait_s = self.chance.choice((0.1, 0.5))

        def take() -> list[Payload]:
            return self.connector.get_many(keys, source=source, timeout=wait_s)

        payloads = self._attempt("get many", wait_s, take)
        for key, payload in zip(keys, payloads or [], strict=False):
            self._taken(source, key, payload)

    def wait(self) -> None:
        """Wait for the first of some keys, and take it if it still is there."""
        source, keys = self._source(), self.chance.sample(KEYS, self.chance.randint(1, 4))
        wait_s = self.chance.choice((0.1, 0.5, 2.0))

        def first() -> str:
            return self.connector.wait(keys, source=source, timeout=wait_s)

        key = self._attempt("wait", wait_s, first)
        if key is not None:
            if key not in keys:
                msg = f"{self.node.name} waits for {keys} and is told {key}"
                raise Violation(msg)
            self._get("get", source, key, 0.1)

    def poll(self) -> None:
        """Look for a key a few times."""
        source, key = self._source(), self.chance.choice(KEYS)
        for _ in range(self.chance.randint(1, 3)):
            payload = self._attempt(
                "poll", 0.0, lambda: self.connector.poll(key, source=source), about=(source, key)
            )
            if payload is not None:
                self._taken(source, key, payload)
                return
            self._pause(0.05)

    def refuse(self) -> None:
        """Cancel or reject a key."""
        source, key = self._source(), self.chance.choice(KEYS)
        call = self.connector.reject if self.chance.random() < 0.5 else self.connector.cancel
        self._attempt(call.__name__, 0.0, lambda: call(key, source=source))

    def read_stream(self) -> None:
        """Read a stream to its end, or for a while."""
        chance = self.chance
        source, key, most = self._source(), chance.choice(STREAMS), chance.choice((1, 3, 99))
        terms: dict[str, Any] = {"timeout": chance.choice((0.1, 0.5, 1.0))}

        def read() -> None:
            chunks: list[Put] = []
            with self.connector.stream(key, source=source, **terms) as reader:
                for payload in reader:
                    value = payload.value
                    chunks.append(
                        self.books.delivered(self.node, self.process.name, source, key, value)
                    )
                    self._in_order(chunks)
                    self._pause(0.05)
                    same(self.node, chunks[-1], value["data"], "sees change in a stream what")
                    del value, payload
                    if len(chunks) >= most:
                        return
            self._complete(chunks)

        self._attempt("stream in", None, read)

    def _in_order(self, chunks: list[Put]) -> None:
        first, last = chunks[0].stream, chunks[-1].stream
        if first is None or last != (first[0], len(chunks) - 1):
            msg = f"{self.node.name} was given the chunks {[one.stream for one in chunks]}"
            raise Violation(msg)

    def _complete(self, chunks: list[Put]) -> None:
        self.works.seen["stream in: complete"] += 1
        if not chunks:
            return
        assert chunks[0].stream is not None
        written = self.books.streams.get(chunks[0].stream[0])
        if written != (len(chunks), True):
            msg = f"{self.node.name} has read {chunks} to the end, which is {written}"
            raise Violation(msg)

    def _source(self) -> str:
        return self.chance.choice(self.world.receives[self.node.stage])

    def _taken(self, source: str, key: str, payload: Payload | None) -> None:
        """Look at what was given now, and again when it is let go."""
        if payload is None:
            return
        value = payload.value
        if not isinstance(value, dict):
            value = {"n": int.from_bytes(bytes(value[:4]), "big"), "data": value}
        put, data, node = (
            self.books.delivered(self.node, self.process.name, source, key, value),
            value["data"],
            self.node,
        )
        if put.generation not in {0, payload.generation}:
            msg = f"{node.name} was given {put} as generation {payload.generation}"
            raise Violation(msg)
        del value

        def let_go() -> None:
            same(node, put, data, "sees change while it looks at it what")

        if self.chance.random() < self.world.keeps:
            node.held.append(let_go)
            if len(node.held) > MOST_HELD:
                node.held.popleft()()
        else:
            self._pause(self.world.linger_s)
            let_go()
            if self.chance.random() < 0.5:
                del data, let_go
                payload.close()

    # --- any call ------------------------------------------------------------------------

    def _pause(self, most_s: float) -> None:
        self.works.block(self.chance.uniform(0, most_s))

    def _attempt(
        self, what: str, wait_s: float | None, call: Callable[[], T], put: Put | None = None,
        about: tuple[str, str] | None = None,
    ) -> T | None:  # fmt: skip
        """Make one call: it ends in time, with an answer or with an error that may be."""
        works, start_s = self.works, self.works.now_s
        works.note(self.name, f"{what} {put or about or ''} within {wait_s} s")
        self.world.operations += 1
        result, cause = None, "ok"
        try:
            result = call()
        except StagelinkError as error:
            cause = error.cause
            works.note(self.name, f"{what} raises {error}")
            self._failed(what, error, put, about)
            error.__traceback__ = None  # whose frames hold views
        works.seen[f"{what}: {cause}"] += 1
        late_s = works.now_s - start_s - (wait_s or 0.0)
        slept = self.process.woke_s >= start_s
        if wait_s is not None and late_s > self.world.slack_s and not slept:
            msg = f"{self.name}: {what} was to end within {wait_s} s, and ends {late_s} s later"
            raise Violation(msg)
        return result

    def _failed(
        self, what: str, error: StagelinkError, put: Put | None, about: tuple[str, str] | None
    ) -> None:
        if error.reason in NEVER or (error.reason is Reason.CORRUPT and not self.world.flips):
            msg = f"{self.name}: {what} ends with {error!r}"
            raise Violation(msg) from error
        self.books.error(self.instance, error)
        if put is not None:
            self.books.is_refused(put)
        if error.reason is Reason.FAILED and about is not None:
            number = int(error.message.rpartition("boom ")[2].rstrip(".") or 0)
            if self.books.failed.get(number) != (about[0], self.node.stage, about[1]):
                msg = f"{self.name} asked for {about} and was told {error}"
                raise Violation(msg)
