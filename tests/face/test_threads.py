"""Many threads on one connector, interrupted and closed under their hands."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import stagelink
from stagelink import ClosedError, StagelinkError
from stagelink.adapters.structlog import Log
from stagelink.adapters.threads import narrator
from stagelink.adapters.threads.standby import Standby
from stagelink.core.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stagelink.connector import Connector
    from stagelink.core.endpoint import Endpoint

POOL = 4 << 20
LARGE = bytes(100_000)
PATIENCE_S = 10.0
AT_ONCE_S = 4.0

BACKENDS = ["shm", "shm-write", "memory"]


def crowd(calls: list[Callable[[int], object]], rounds: Callable[[], bool]) -> list[BaseException]:
    """Run every call on a thread of its own while *rounds*; what escaped from them."""
    escaped: list[BaseException] = []

    def run(number: int, call: Callable[[int], object]) -> None:
        done = 0
        while rounds():
            try:
                call(number * 1_000_000 + done)
            except ClosedError:
                return
            except BaseException as error:
                escaped.append(error)
                return
            done += 1

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "a call hangs"
    return escaped


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_that_put_and_get_at_once_lose_nothing(backend: str) -> None:
    tx = stagelink.open(stage="a", role="sender", backend=backend, pool_bytes=POOL)
    rx = stagelink.open(
        stage="b", role="receiver", backend=backend, pool_bytes=POOL, sender=tx.endpoint
    )
    until_s = time.monotonic() + 0.6

    def exchange(number: int) -> None:
        body = LARGE if number % 2 else b"small"
        tx.put(str(number), body, to="b", timeout=PATIENCE_S)
        with rx.get(str(number), source="a", timeout=PATIENCE_S) as payload:
            assert len(payload.value) == len(body)

    with tx, rx:
        assert not crowd([exchange] * 6, lambda: time.monotonic() < until_s)
        assert tx.drain(PATIENCE_S)
        for connector in (tx, rx):
            driver = connector._driver
            assert not driver.tickets.all()
            end_s = time.monotonic() + PATIENCE_S
            while connector.health()["pool"]["free"] != POOL and time.monotonic() < end_s:
                time.sleep(0.002)
            assert connector.health()["pool"]["free"] == POOL


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("again", range(3))
def test_calls_that_meet_a_close_end_with_closed_error(backend: str, again: int) -> None:
    del again
    tx = stagelink.open(stage="a", role="sender", backend=backend, pool_bytes=POOL)
    rx = stagelink.open(
        stage="b", role="receiver", backend=backend, pool_bytes=POOL, sender=tx.endpoint,
        timeouts={"close_s": 0.3},
    )  # fmt: skip

    def put(number: int) -> None:
        tx.put(str(number), LARGE, to="b", ttl=0.2, timeout=PATIENCE_S)

    def get(number: int) -> None:
        try:
            rx.get(str(number), source="a", timeout=PATIENCE_S).close()
        except StagelinkError as error:
            if not isinstance(error, (stagelink.PeerError, stagelink.GoneError)):
                raise

    timers = [threading.Timer(0.1, c.close) for c in (rx, rx, tx, tx)]
    for timer in timers:
        timer.start()
    escaped = crowd([put, put, get, get, lambda n: rx.poll(str(n), source="a")], lambda: True)
    for timer in timers:
        timer.join(PATIENCE_S)
    unexpected = [e for e in escaped if not isinstance(e, stagelink.CapacityError)]
    assert not unexpected
    assert not {t.name for t in threading.enumerate()} & {"stagelink-standby"}


def test_an_interrupted_get_gives_everything_back() -> None:
    with (
        stagelink.open(stage="a", role="sender", pool_bytes=POOL) as tx,
        stagelink.open(stage="b", role="receiver", pool_bytes=POOL, sender=tx.endpoint) as rx,
    ):
        driver = rx._driver

        def interrupted(timeout_s: float) -> None:
            raise KeyboardInterrupt

        wait, driver.wakeup.wait = driver.wakeup.wait, interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            rx.get("k", source="a", timeout=PATIENCE_S)
        driver.wakeup.wait = wait  # type: ignore[method-assign]
        assert not driver.tickets.all()
        assert rx.health()["inbox"]["gets"] == 0
        tx.put("k", LARGE, to="b")
        rx.get("k", source="a", timeout=PATIENCE_S).close()


def test_the_thread_that_stands_by_survives_what_it_meets() -> None:
    with (
        stagelink.open(stage="a", role="sender", pool_bytes=POOL) as tx,
        stagelink.open(stage="b", role="receiver", pool_bytes=POOL, sender=tx.endpoint) as rx,
    ):
        driver = tx._driver
        fail, failed = driver.poll_until, threading.Event()

        def failing() -> float:
            failed.set()
            driver.poll_until = fail  # type: ignore[method-assign]
            msg = "broken"
            raise TransportError(msg)

        driver.poll_until = failing  # type: ignore[method-assign]
        driver._kick()
        assert failed.wait(PATIENCE_S)
        tx.put("k", LARGE, to="b")
        rx.get("k", source="a", timeout=PATIENCE_S).close()


@contextmanager
def linked() -> Iterator[tuple[Connector, Connector]]:
    """A pair that has met and said all, with a publication whose end is the next time-out."""
    settings: dict[str, Any] = {"backend": "memory", "pool_bytes": POOL}
    with (
        stagelink.open(stage="a", role="sender", **settings) as tx,
        stagelink.open(stage="b", role="receiver", sender=tx.endpoint, **settings) as rx,
    ):
        tx.put("stays", b"x", to="b")
        assert rx.wait(["stays"], source="a", timeout=PATIENCE_S) == "stays"
        assert rx._driver.wait_until(_owes_nothing, PATIENCE_S)
        assert tx._driver.wait_until(lambda _: tx._driver.quiet, PATIENCE_S)
        yield tx, rx


def _owes_nothing(endpoint: Endpoint) -> bool:
    return not any(source.owed for source in endpoint.incoming.sources.values())


class Once:
    """A channel of which this thread's first send fails."""

    def __init__(self, tx: Connector, fail: Callable[[], bool]) -> None:
        self._channel = tx._driver.parts.channel
        self._fail: Callable[[], bool] | None = fail
        self._thread = threading.get_ident()
        tx._driver.exchange._channel = self

    def send(self, link: str, frames: Sequence[bytes]) -> bool:
        if self._fail is None or threading.get_ident() != self._thread:
            return self._channel.send(link, frames)
        fail, self._fail = self._fail, None
        return fail()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


@pytest.fixture
def unlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread wakes to look around: what nobody is woken for stays."""
    for name in ("GLANCE_S", "IDLE_GLANCE_S"):
        monkeypatch.setattr(narrator, name, 60.0)


@pytest.mark.usefixtures("unlooked")
def test_what_a_full_queue_kept_from_a_put_is_sent_soon() -> None:
    with linked() as (tx, rx):
        Once(tx, lambda: False)
        tx.put("k", b"x", to="b")
        rx.get("k", source="a", timeout=AT_ONCE_S).close()


@pytest.mark.usefixtures("unlooked")
def test_what_an_interrupted_put_has_published_is_announced_soon() -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    with linked() as (tx, rx):
        Once(tx, interrupt)
        key = ""
        with pytest.raises(KeyboardInterrupt):
            for number in range(100):  # the thread that stands by may send some of them
                key = f"k{number}"
                tx.put(key, b"x", to="b")
        rx.get(key, source="a", timeout=AT_ONCE_S).close()


def test_the_thread_that_stands_by_looks_again_after_a_caller_that_came_between() -> None:
    """That caller held the channel, took its own answer and left the rest unread."""

    class Driver:
        has_driver, turns, pumps = False, 0, 0
        clock = staticmethod(time.monotonic)

        def pump(self) -> None:
            self.pumps += 1
            if self.pumps == 1:
                self.turns += 2
            else:
                looked_again.set()

        def pass_time(self) -> None:
            pass

        def poll_until(self) -> float:
            return time.monotonic() + PATIENCE_S

        def idle(self) -> bool:
            return True

    looked_again, quiet = threading.Event(), os.eventfd(0)
    standby = Standby(Driver(), quiet, Log())
    standby.start()
    try:
        assert looked_again.wait(AT_ONCE_S)
    finally:
        standby.stop()
        os.close(quiet)


def test_an_errand_that_fails_does_not_stop_the_next() -> None:
    with stagelink.open(stage="a", role="sender", pool_bytes=POOL) as tx:
        errands, done = tx._driver.work.errands, threading.Event()
        errands.run(lambda: 1 // 0)  # type: ignore[arg-type]
        errands.run(done.set)
        assert done.wait(PATIENCE_S)


@pytest.mark.parametrize("backend", ["shm", "memory"])
def test_an_unclosed_connector_ends_with_the_interpreter(backend: str) -> None:
    script = f"""
import threading, stagelink
tx = stagelink.open(stage="a", role="sender", backend={backend!r}, pool_bytes={POOL})
rx = stagelink.open(stage="b", role="receiver", backend={backend!r}, pool_bytes={POOL},
                    sender=tx.endpoint)
tx.put("k", bytes(100000), to="b")
kept = rx.get("k", source="a", timeout=5.0).value
threading.Thread(target=rx.get, args=("n",), kwargs={{"source": "a"}}, daemon=True).start()
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=20, check=False, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")
