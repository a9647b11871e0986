"""Streams over real connectors: chunks in order, an end that counts, and every way to break."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import stagelink
from stagelink import (
    ClosedError,
    ConfigError,
    DeadlineError,
    DuplicateKeyError,
    IncompleteStreamError,
    PayloadError,
    Reason,
)
from stagelink.core.events import TimePassed
from stagelink.core.streams import End
from stagelink.plugins.conformance.connector import eventually, is_linked, is_whole, waits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.connector import Connector
    from stagelink.streams.writer import StreamWriter

POOL = 8 << 20
SMALL, LARGE = 3_000, 150_000
PATIENCE_S = 10.0
AT_ONCE_S = 4.0
BACKENDS = ["memory-write", "shm"]
"""One that copies and one that maps; what moves bytes in bulk is tested over all of them."""

Open = Callable[..., "Connector"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(backend: str) -> Iterator[Open]:
    """Opens connectors, and closes those that are left, receivers first."""
    made: list[Connector] = []

    def open_(**settings: Any) -> Connector:
        timeouts = {"close_s": 1.0, **settings.pop("timeouts", {})}
        settings = {"backend": backend, "pool_bytes": POOL, "timeouts": timeouts, **settings}
        made.append(stagelink.open(**settings))
        return made[-1]

    yield open_
    for connector in sorted(made, key=lambda one: one.config.role != "receiver"):
        connector.close()


@pytest.fixture
def tx(opened: Open) -> Connector:
    return opened(stage="talker", role="sender")


@pytest.fixture
def receive(opened: Open, tx: Connector) -> Open:
    senders = {"talker": tx.endpoint}
    base = {"stage": "code2wav", "role": "receiver", "senders": senders}
    return lambda **settings: opened(**{**base, **settings})


@pytest.fixture
def rx(receive: Open) -> Connector:
    return receive()


def chunk(number: int, size: int = SMALL) -> bytes:
    """Bytes that no other chunk has."""
    return (b"%08d" % number * (size // 8 + 1))[:size]


def put(tx: Connector, key: str, chunks: int, size: int = SMALL, **settings: Any) -> Any:
    """A writer that has put so many chunks."""
    writer = tx.stream(key, to="code2wav", **settings)
    for number in range(chunks):
        assert writer.put(chunk(number, size)) == number
    return writer


def read(rx: Connector, key: str) -> list[Any]:
    """Everything of a stream."""
    return list(rx.stream(key, timeout=PATIENCE_S).values())


def breaks(call: Callable[[], Any]) -> IncompleteStreamError:
    """How *call* fails, without a wait for any deadline."""
    start_s = time.monotonic()
    with pytest.raises(IncompleteStreamError) as caught:
        call()
    assert time.monotonic() - start_s < AT_ONCE_S
    return caught.value


class Beside:
    """A call on a thread of its own, and when it ended how."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended_s = 0.0
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error
        self.ended_s = time.monotonic()

    def join(self) -> Beside:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the call never ended"
        return self


def is_clean(connector: Connector) -> bool:
    """Whether no stream has left anything behind in *connector*."""
    health = connector.health()

    def tables(endpoint: Any) -> int:
        sources = endpoint.incoming.sources.values()
        entries = sum(len(one.entries) for one in endpoint.outgoing.ledgers.values())
        known = sum(len(one.recent) + len(one.rejected) + len(one.stalled) for one in sources)
        return entries + known

    return is_whole(connector) and not (
        health["inbox"]["entries"]
        or health["inbox"]["unacknowledged"]
        or health["ledger"]["inline_bytes"]
        or connector._driver.look(tables)
    )


def both_clean(*connectors: Connector) -> bool:
    gc.collect()
    return eventually(lambda: all(is_clean(one) for one in connectors), AT_ONCE_S)


# --- whole streams -------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", "memory-write", "shm", "shm-write"], indirect=True)
@pytest.mark.parametrize("sizes", [(SMALL,), (LARGE,), (0, SMALL, LARGE, 1)], ids=str)
def test_every_chunk_comes_in_order_and_then_the_end(
    tx: Connector, rx: Connector, backend: str, sizes: tuple[int, ...]
) -> None:
    chunks = [chunk(number, sizes[number % len(sizes)]) for number in range(500)]
    if backend.startswith("shm") and len(sizes) == 1:
        chunks = chunks[:50]  # a few of each size are enough where all are mixed
    sent = b"".join(chunks)

    def produce() -> Any:
        with tx.stream("k", to="code2wav", timeout=PATIENCE_S) as writer:
            for value in chunks:
                writer.put(value)
        return writer

    producer = Beside(produce)
    with rx.stream("k", timeout=PATIENCE_S) as reader:
        came = b"".join(reader.values())
    writer = producer.join().result

    assert came == sent
    assert (
        (writer.chunks, writer.bytes)
        == (reader.chunks, reader.bytes)
        == (len(chunks), writer.bytes)
    )
    assert both_clean(tx, rx)


def test_a_stream_that_was_put_before_it_is_read_comes_whole(tx: Connector, rx: Connector) -> None:
    put(tx, "k", 12, LARGE).end()

    assert list(rx.stream("k").values()) == [chunk(number, LARGE) for number in range(12)]
    assert both_clean(tx, rx)


def test_an_empty_stream_is_just_its_end(tx: Connector, rx: Connector) -> None:
    with tx.stream("k", to="code2wav") as writer:
        pass

    assert list(rx.stream("k")) == []
    assert (writer.chunks, writer.bytes, writer.closed) == (0, 0, True)
    assert both_clean(tx, rx)


def test_a_chunk_names_its_stream_and_number_and_is_closed_when_the_next_is_asked_for(
    tx: Connector, rx: Connector
) -> None:
    put(tx, "k", 2, LARGE).end()
    reader = rx.stream("k")

    first = next(reader)
    kept = first.value
    second = next(reader)

    assert (first.key, second.key) == ("k[0]", "k[1]")
    assert kept == chunk(0, LARGE)
    with pytest.raises(stagelink.LeaseError):
        _ = first.value
    assert list(reader) == []


def test_views_of_chunks_outlive_the_reader(tx: Connector, rx: Connector) -> None:
    with tx.stream("k", to="code2wav") as writer:
        for number in range(3):
            writer.put(memoryview(chunk(number, LARGE)))

    views = list(rx.stream("k").values())

    assert [bytes(view) for view in views] == [chunk(number, LARGE) for number in range(3)]
    views.clear()
    assert both_clean(tx, rx)


@pytest.mark.parametrize("backend", ["shm"], indirect=True)  # the first one loads torch
def test_drafts_are_chunks_too(tx: Connector, rx: Connector) -> None:
    with tx.stream("k", to="code2wav") as writer:
        for number in range(3):
            draft = tx.alloc((40_000,), "float32")
            draft.tensor[:] = number
            writer.put(draft)

    means = [float(value.mean()) for value in rx.stream("k").values()]

    assert means == [0.0, 1.0, 2.0]


def test_two_readers_both_get_all(tx: Connector, receive: Open) -> None:
    receivers = [receive(replica=replica) for replica in range(2)]
    readings = [Beside(partial(read, one, "k")) for one in receivers]
    chunks = [chunk(number, (SMALL, LARGE)[number % 2]) for number in range(30)]

    with tx.stream("k", to="code2wav", readers=2, timeout=PATIENCE_S) as writer:
        for value in chunks:
            writer.put(value)

    assert [reading.join().result for reading in readings] == [chunks, chunks]
    assert both_clean(tx, *receivers)


def test_a_key_can_be_used_again_at_once(tx: Connector, rx: Connector) -> None:
    for round_ in range(5):
        with tx.stream("k", to="code2wav") as writer:
            for number in range(round_):
                writer.put([round_, number])

        assert list(rx.stream("k").values()) == [[round_, number] for number in range(round_)]


def test_a_slow_reader_of_the_last_stream_gets_nothing_of_the_next(
    tx: Connector, rx: Connector, receive: Open
) -> None:
    put(tx, "k", 4).end()
    slow = rx.stream("k")
    assert next(slow).value == chunk(0)

    with tx.stream("k", to="code2wav") as writer:
        for number in range(6):
            writer.put(number)

    assert list(slow.values()) == [chunk(1), chunk(2), chunk(3)]
    assert list(rx.stream("k").values()) == list(range(6))
    assert both_clean(tx, rx)


def test_a_stream_and_a_payload_of_one_key_do_not_meet(tx: Connector, rx: Connector) -> None:
    tx.put("k", "whole", to="code2wav")
    put(tx, "k", 2).end()

    assert list(rx.stream("k").values()) == [chunk(0), chunk(1)]
    assert rx.get("k").value == "whole"


def test_the_longest_key_can_be_streamed(tx: Connector, rx: Connector) -> None:
    key = "é" * 1024
    put(tx, key, 3).end()

    assert len(list(rx.stream(key))) == 3


@pytest.mark.parametrize(
    ("backend", "streams"), [("memory", 1000), ("shm-write", 100)], indirect=["backend"]
)
def test_many_streams_leave_every_table_as_it_was(
    tx: Connector, rx: Connector, streams: int
) -> None:
    assert both_clean(tx, rx)
    for number in range(streams):
        writer = put(tx, f"k{number}", number % 4)
        reader = rx.stream(f"k{number}", timeout=PATIENCE_S)
        if number % 5 == 0:
            reader.close()
        if number % 7 == 0:
            writer.abort("enough")
        else:
            writer.end()
        if number % 5 and number % 7:
            assert sum(1 for _ in reader) == number % 4
        elif number % 5:
            with pytest.raises(IncompleteStreamError, match="enough"):
                list(reader)

    assert both_clean(tx, rx)


# --- without blocking ----------------------------------------------------------------------


def test_a_stream_under_asyncio_comes_whole(tx: Connector, rx: Connector) -> None:
    chunks = [chunk(number, (SMALL, LARGE)[number % 2]) for number in range(30)]

    async def produce() -> None:
        async with tx.stream("k", to="code2wav", timeout=PATIENCE_S) as writer:
            for number, value in enumerate(chunks):
                assert await writer.aput(value) == number

    async def consume() -> list[Any]:
        async with rx.stream("k", timeout=PATIENCE_S) as reader:
            return [payload.value async for payload in reader]

    async def both() -> list[Any]:
        came: list[Any]
        came, _ = await asyncio.gather(consume(), produce())
        return came

    assert asyncio.run(both()) == chunks
    assert both_clean(tx, rx)


def test_a_cancelled_wait_for_a_chunk_loses_nothing(tx: Connector, rx: Connector) -> None:
    async def story() -> list[Any]:
        writer, reader = tx.stream("k", to="code2wav"), rx.stream("k", timeout=PATIENCE_S)
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(reader.__anext__(), 0.02)
        for number in range(3):
            await writer.aput(number)
        await writer.aend()
        return [payload.value async for payload in reader]

    assert asyncio.run(story()) == [0, 1, 2]
    assert both_clean(tx, rx)


@pytest.mark.parametrize("how", ["end", "abort"])
def test_a_last_word_that_comes_in_the_moment_of_cancelling_is_not_lost(
    tx: Connector, rx: Connector, how: str
) -> None:
    async def story() -> None:
        writer, reader = tx.stream("k", to="code2wav"), rx.stream("k", timeout=PATIENCE_S)
        writer.put(0)
        assert (await reader.__anext__()).value == 0
        waiting = asyncio.ensure_future(reader.__anext__())
        while not rx._driver.tickets.all():
            await asyncio.sleep(0)
        answered = threading.Event()
        [ticket] = rx._driver.tickets.all()
        ticket.then(answered.set)
        getattr(writer, how)()
        assert answered.wait(PATIENCE_S)  # blocks this loop: the task cannot see its answer
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        reader.deadline = time.monotonic() + AT_ONCE_S
        with pytest.raises(StopAsyncIteration if how == "end" else IncompleteStreamError):
            await reader.__anext__()

    asyncio.run(story())
    assert both_clean(tx, rx)


def test_an_exception_under_asyncio_aborts(tx: Connector, rx: Connector) -> None:
    async def story() -> None:
        async with tx.stream("k", to="code2wav") as writer:
            await writer.aput(LARGE)
            raise KeyError("boom")

    with pytest.raises(KeyError):
        asyncio.run(story())

    assert "boom" in str(breaks(lambda: list(rx.stream("k"))))


def test_a_writer_that_is_cancelled_while_it_ends_is_closed(tx: Connector, rx: Connector) -> None:
    async def story() -> StreamWriter:
        tx.stream("k", to="code2wav").end()  # unread: the next one has to wait for its turn
        writer = tx.stream("k", to="code2wav", timeout=PATIENCE_S)

        async def end_at_once() -> None:
            async with writer:
                pass

        ending = asyncio.ensure_future(end_at_once())
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        return writer

    writer = asyncio.run(story())

    assert writer.closed
    tx.stream("k", to="code2wav").abort()  # no writer of the key is open
    assert list(rx.stream("k", timeout=PATIENCE_S)) == []
    assert both_clean(tx, rx)


def test_a_writer_that_cannot_end_is_closed(tx: Connector, rx: Connector) -> None:
    tx.stream("k", to="code2wav").end()
    writer = tx.stream("k", to="code2wav", timeout=0.01)

    with pytest.raises(DuplicateKeyError), writer:
        pass

    assert writer.closed
    assert list(rx.stream("k", timeout=PATIENCE_S)) == []
    assert both_clean(tx, rx)


# --- streams that break off ----------------------------------------------------------------


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_an_abort_comes_after_the_chunks_with_its_reason(
    tx: Connector, rx: Connector, chunks: int
) -> None:
    put(tx, "k", chunks, LARGE).abort("the model diverged")
    reader = rx.stream("k")

    assert [next(reader).value for _ in range(chunks)] == [
        chunk(number, LARGE) for number in range(chunks)
    ]
    error = breaks(lambda: next(reader))

    assert (error.reason, error.chunks_expected) == (Reason.FAILED, None)
    assert (error.chunks, error.bytes) == (chunks, reader.bytes)
    assert "the model diverged" in str(error)
    assert isinstance(error.__cause__, stagelink.GoneError)
    assert both_clean(tx, rx)


def test_an_exception_aborts_with_its_words(tx: Connector, rx: Connector) -> None:
    with pytest.raises(ZeroDivisionError), tx.stream("k", to="code2wav") as writer:
        writer.put(1 / 0)

    assert "ZeroDivisionError: division by zero" in str(breaks(lambda: list(rx.stream("k"))))


def test_a_reason_cannot_be_taken_for_an_end(tx: Connector, rx: Connector) -> None:
    put(tx, "k", 0).abort(End(0, 0).text)

    assert breaks(lambda: list(rx.stream("k"))).reason is Reason.FAILED


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_a_close_of_the_producer_ends_a_waiting_reader_at_once(
    tx: Connector, rx: Connector, chunks: int
) -> None:
    writer = put(tx, "k", chunks)
    reading = Beside(lambda: list(rx.stream("k", timeout=PATIENCE_S)))
    assert waits(rx)
    assert is_linked(rx)  # a producer that was never met may yet come
    assert eventually(lambda: not tx.health()["ledger"]["entries"])

    closed_s = time.monotonic()
    tx.close()

    error = reading.join().error
    assert isinstance(error, IncompleteStreamError)
    assert error.chunks == chunks
    assert reading.ended_s - closed_s < AT_ONCE_S
    assert both_clean(rx) or rx.health()["inbox"]["gets"] == 0
    with pytest.raises(ClosedError):
        writer.put(1)
    with pytest.raises(ClosedError):
        writer.end()


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_close_of_the_producer_ends_a_reader_that_comes_back_later(
    tx: Connector, rx: Connector, chunks: int
) -> None:
    writer = put(tx, "k", chunks)
    reader = rx.stream("k", timeout=PATIENCE_S)
    for _ in range(chunks):
        next(reader)
    tx.close()
    assert eventually(lambda: rx.health()["sessions"][0]["watch"] == "gone")

    assert breaks(lambda: next(reader)).chunks == chunks
    assert writer.closed


def test_a_producer_that_closes_takes_back_what_was_not_read(tx: Connector, rx: Connector) -> None:
    put(tx, "k", 5, LARGE).end()
    reader = rx.stream("k", timeout=PATIENCE_S)
    next(reader)
    tx.close()
    assert eventually(lambda: not rx.health()["inbox"]["entries"])

    error = breaks(lambda: list(reader))

    assert error.reason in {Reason.WITHDRAWN, Reason.PEER_GONE}
    assert error.chunks in {1, 2}  # the second may have been fetched ahead


PRODUCER = """
    import sys, time, stagelink
    tx = stagelink.open(stage="talker", role="sender", backend=sys.argv[1], pool_bytes=8 << 20)
    print(tx.endpoint, flush=True)
    writer = tx.stream("k", to="code2wav")
    for number in range(int(sys.argv[2])):
        writer.put((b"%08d" % number) * 20_000)
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("backend", ["shm", "shm-write"], indirect=True)
@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_a_killed_producer_ends_its_readers_at_once(
    opened: Open, backend: str, chunks: int
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PRODUCER), backend, str(chunks)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        assert process.stdout.readline() == "ready\n"
        rx = opened(stage="code2wav", role="receiver", sender=endpoint)
        reader = rx.stream("k", source="talker", timeout=PATIENCE_S)
        came = [len(next(reader).value) for _ in range(chunks)]
        reading = Beside(lambda: next(reader))
        assert waits(rx)
        assert is_linked(rx)
        process.kill()
        killed_s = time.monotonic()

    reading.join()

    assert came == [160_000] * chunks
    assert isinstance(reading.error, IncompleteStreamError)
    assert reading.ended_s - killed_s < AT_ONCE_S
    assert eventually(lambda: is_whole(rx))


@pytest.mark.parametrize("backend", ["shm", "shm-write"], indirect=True)
def test_a_restarted_producer_does_not_mix_two_streams(opened: Open) -> None:
    old = opened(stage="talker", role="sender")
    rx = opened(stage="code2wav", role="receiver", senders={"talker": old.endpoint})
    where: dict[str, Any] = {"zmq_port": int(old.endpoint.rpartition(":")[2])}
    broken = put(old, "k", 2, LARGE)
    reader = rx.stream("k", timeout=PATIENCE_S)
    assert [next(reader).value for _ in range(2)] == [chunk(0, LARGE), chunk(1, LARGE)]
    old.close()
    new = opened(stage="talker", role="sender", **where)
    writer = new.stream("k", to="code2wav")
    for number in range(6):
        writer.put(["new", number])
    writer.end()

    assert breaks(lambda: next(reader)).chunks == broken.chunks == 2
    # A get that waits while its sender's death is noticed hears of that death.
    assert eventually(lambda: new.health()["sessions"])
    assert list(rx.stream("k", timeout=PATIENCE_S).values()) == [["new", n] for n in range(6)]
    assert both_clean(new, rx)


def test_an_expired_chunk_ends_the_stream_at_once(tx: Connector, rx: Connector) -> None:
    writer = put(tx, "k", 2, LARGE)
    reader = rx.stream("k", timeout=PATIENCE_S)
    assert next(reader).value == chunk(0, LARGE)
    short = tx.stream("short", to="code2wav", ttl=0.05)
    for number in range(40):
        short.put(number)
    assert eventually(lambda: tx.health()["ledger"]["entries"] <= 2)
    writer.end()

    assert breaks(lambda: list(rx.stream("short", timeout=PATIENCE_S))).reason is Reason.EXPIRED
    assert next(reader).value == chunk(1, LARGE)
    assert list(reader) == []


def test_a_chunk_that_expires_ends_the_stream_after_those_that_did_not(
    tx: Connector, rx: Connector
) -> None:
    writer = put(tx, "k", 2)
    reader = rx.stream("k", timeout=PATIENCE_S)
    next(reader)
    writer._terms = writer._terms._replace(ttl_s=0.01)
    for number in range(3):
        writer.put(number)
    assert eventually(lambda: tx.health()["ledger"]["entries"] <= 1)
    writer._terms = writer._terms._replace(ttl_s=60.0)
    writer.put("later")
    assert eventually(lambda: rx.health()["inbox"]["entries"] == 2)

    assert next(reader).value == chunk(1)
    error = breaks(lambda: next(reader))

    assert (error.reason, error.chunks) == (Reason.EXPIRED, 2)
    writer.end()
    assert eventually(lambda: is_whole(tx) and not tx.health()["ledger"]["entries"], AT_ONCE_S)


def test_expired_chunks_of_a_slow_second_reader_do_not_end_the_first(
    tx: Connector, rx: Connector
) -> None:
    writer = tx.stream("k", to="code2wav", readers=None, ttl=60.0)
    reader = rx.stream("k", timeout=PATIENCE_S)
    for number in range(5):
        writer.put(number)
        assert next(reader).value == number
    assert tx.health()["ledger"]["entries"] == 5
    tx._driver.clock = lambda: time.monotonic() + 60.0
    tx._driver.submit(TimePassed())
    assert eventually(lambda: not tx.health()["ledger"]["entries"])

    writer.put(5)

    assert next(reader).value == 5
    writer.end()
    assert list(reader) == []


def test_a_missing_chunk_is_an_error_at_the_end_too(tx: Connector, rx: Connector) -> None:
    writer = put(tx, "k", 2)
    with writer._accounted() as call:
        writer._say(End(3, 4).text, call)
    writer._state = "ended"

    error = breaks(lambda: list(rx.stream("k")))

    assert (error.chunks_expected, error.chunks) == (3, 2)


def test_a_deadline_names_the_chunk_and_the_last_one(tx: Connector, rx: Connector) -> None:
    put_two = put(tx, "k", 2)
    reader = rx.stream("k", timeout=PATIENCE_S)
    assert sum(1 for _ in (next(reader), next(reader))) == 2

    reader.deadline = time.monotonic() + 0.05
    with pytest.raises(DeadlineError, match=r"chunk 2 of stream 'k'.*the last that came is 1"):
        next(reader)

    assert reader.closed
    put_two.put(LARGE)  # after the reader has given up
    put_two.put("more")
    put_two.end()
    assert both_clean(tx, rx)


def test_a_deadline_before_the_first_chunk_gives_nothing_up(tx: Connector, rx: Connector) -> None:
    with pytest.raises(DeadlineError, match=r"chunk 0 of stream 'k'.*none has come"):
        list(rx.stream("k", timeout=0.05))

    put(tx, "k", 2).end()

    assert len(list(rx.stream("k"))) == 2


def test_a_whole_stream_can_have_a_deadline(tx: Connector, rx: Connector) -> None:
    put_two = put(tx, "k", 2)
    reader = rx.stream("k", timeout=PATIENCE_S, total=0.1)
    start_s = time.monotonic()

    with pytest.raises(DeadlineError):
        list(reader)

    assert time.monotonic() - start_s < AT_ONCE_S
    assert put_two.chunks == 2
    put_two.end()


def test_a_reader_that_has_failed_never_looks_complete(tx: Connector, rx: Connector) -> None:
    put(tx, "k", 1).abort("no")
    reader = rx.stream("k")
    breaks(lambda: list(reader))

    with pytest.raises(ClosedError, match="broken off"):
        list(reader)


# --- ends by the reader --------------------------------------------------------------------


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("read", [0, 1, 3])
def test_a_reader_that_closes_early_frees_the_producer_now_and_later(
    tx: Connector, rx: Connector, read: int, size: int
) -> None:
    writer = put(tx, "k", 6, size)
    with rx.stream("k", timeout=PATIENCE_S) as reader:
        for _ in range(read):
            next(reader)

    assert eventually(lambda: is_whole(tx) and not tx.health()["ledger"]["entries"], AT_ONCE_S)
    for number in range(6, 12):
        writer.put(chunk(number, size))
    assert eventually(lambda: is_whole(tx) and not tx.health()["ledger"]["entries"], AT_ONCE_S)
    writer.end()
    assert both_clean(tx, rx)


def test_a_reader_that_closes_before_the_stream_begins_frees_all_of_it(
    tx: Connector, rx: Connector
) -> None:
    rx.stream("k").close()
    assert is_linked(rx)

    writer = put(tx, "k", 6, LARGE)

    assert eventually(lambda: is_whole(tx) and not tx.health()["ledger"]["entries"], AT_ONCE_S)
    writer.end()
    assert both_clean(tx, rx)


def test_leaving_a_loop_closes_the_reader(tx: Connector, rx: Connector) -> None:
    writer = put(tx, "k", 6, LARGE)

    for value in rx.stream("k").values():
        assert value == chunk(0, LARGE)
        break

    assert eventually(lambda: is_whole(tx) and not tx.health()["ledger"]["entries"], AT_ONCE_S)
    writer.end()


def test_who_asks_again_wants_it_again(tx: Connector, rx: Connector) -> None:
    rx.stream("k").close()
    reading = Beside(lambda: list(rx.stream("k", timeout=PATIENCE_S).values()))
    assert waits(rx)

    put(tx, "k", 2).end()

    assert reading.join().result == [chunk(0), chunk(1)]


def test_one_of_two_readers_may_close_early(tx: Connector, receive: Open) -> None:
    patient, hasty = (receive(replica=replica) for replica in range(2))
    hasty_reader = hasty.stream("k", timeout=PATIENCE_S)
    reading = Beside(lambda: list(patient.stream("k", timeout=PATIENCE_S).values()))
    writer = put(tx, "k", 2, LARGE, readers=2)
    next(hasty_reader)

    hasty_reader.close()
    for number in range(2, 9):
        writer.put(chunk(number, LARGE))
    writer.end()

    assert reading.join().result == [chunk(number, LARGE) for number in range(9)]
    assert both_clean(tx, patient, hasty)


def test_a_closed_reader_says_so(tx: Connector, rx: Connector) -> None:
    reader = rx.stream("k")
    reader.close()
    reader.close()

    with pytest.raises(ClosedError, match="is closed"):
        next(reader)


def test_cleaning_up_a_key_ends_its_streams_on_both_sides(tx: Connector, rx: Connector) -> None:
    writer = put(tx, "k", 3, LARGE)
    put(tx, "kk", 1).end()
    reading = Beside(lambda: list(rx.stream("other", timeout=PATIENCE_S)))
    assert waits(rx)
    assert eventually(lambda: rx.health()["inbox"]["entries"] == 5)

    assert tx.cleanup("k") == 4  # the chunks, and the abort
    assert rx.cleanup("other") == 1

    assert writer.closed
    assert isinstance(reading.join().error, stagelink.GoneError)
    breaks(lambda: list(rx.stream("k", timeout=PATIENCE_S)))
    assert list(rx.stream("kk").values()) == [chunk(0)]


# --- misuse --------------------------------------------------------------------------------


def test_a_stream_that_is_over_takes_no_more(tx: Connector) -> None:
    ended, aborted = put(tx, "ended", 1), put(tx, "aborted", 1)
    ended.end()
    ended.end()
    aborted.abort("no")
    aborted.abort("no")

    with pytest.raises(ClosedError, match="'ended' is ended, after 1 chunks"):
        ended.put(1)
    with pytest.raises(ClosedError, match="'aborted' is aborted"):
        aborted.end()


def test_a_key_has_one_writer_and_one_reader_at_a_time(tx: Connector, rx: Connector) -> None:
    with tx.stream("k", to="code2wav"), rx.stream("k"):
        with pytest.raises(DuplicateKeyError):
            tx.stream("k", to="code2wav")
        with pytest.raises(DuplicateKeyError):
            rx.stream("k")
        tx.stream("k", to="other").end()

    tx.stream("k", to="third").end()


def test_a_stream_whose_predecessor_was_not_read_at_all_is_refused(
    tx: Connector, rx: Connector
) -> None:
    put(tx, "k", 1).end()
    writer = tx.stream("k", to="code2wav", timeout=0.01)

    with pytest.raises(DuplicateKeyError, match="has not been read from at all"):
        writer.put(1)
    with pytest.raises(DuplicateKeyError):
        writer.end()
    writer.abort("then not")

    assert list(rx.stream("k").values()) == [chunk(0)]


def test_a_value_that_cannot_be_put_leaves_no_gap(tx: Connector, rx: Connector) -> None:
    writer = put(tx, "k", 1)
    with pytest.raises(PayloadError):
        writer.put(object())
    with pytest.raises(stagelink.CapacityError):
        writer.put(bytes(2 * POOL))
    writer.put("second")
    writer.end()

    assert list(rx.stream("k").values()) == [chunk(0), "second"]


def test_a_dropped_writer_warns_and_aborts(tx: Connector, rx: Connector) -> None:
    writer = put(tx, "k", 1)

    with pytest.warns(ResourceWarning, match="unended <StreamWriter 'k' open, 1 chunks>"):
        del writer

    reader = rx.stream("k")
    next(reader)
    assert "dropped without an end" in str(breaks(lambda: next(reader)))


def test_arguments_of_the_other_end_are_refused(tx: Connector, rx: Connector) -> None:
    stream: Any = rx.stream
    for wrong in (
        lambda: tx.stream("k"),
        lambda: rx.stream("k", to="code2wav"),
        lambda: stream("k", ttl=1.0),
        lambda: stream("k", readers=2),
        lambda: rx.stream("k\x1f0"),
        lambda: tx.stream("k\x1f0", to="code2wav"),
        lambda: rx.stream("k", timeout=float("inf")),
        lambda: rx.stream("k", total=-1.0),
        lambda: rx.stream("k", source="nobody"),
        lambda: getattr(tx, "stream")("k", to="code2wav", source="talker"),  # noqa: B009
    ):
        with pytest.raises(ConfigError):
            wrong()


def test_a_closed_receiver_ends_its_reader(rx: Connector) -> None:
    reading = Beside(lambda: list(rx.stream("k", timeout=PATIENCE_S)))
    assert waits(rx)

    rx.close()

    assert isinstance(reading.join().error, ClosedError)
