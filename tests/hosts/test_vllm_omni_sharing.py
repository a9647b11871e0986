"""One connector for all who ask with the same settings, and nobody waits for another's opening."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.hosts.conftest import is_free

from stagelink import ConfigError

pytest.importorskip("torch", reason="vLLM-Omni is made of torch, and it is an extra")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 10.0


class Opened:
    """A connector as far as the registry knows one."""

    endpoint = ""

    def __init__(self) -> None:
        self.closed = 0

    def health(self) -> dict[str, Any]:
        return {"backends": ["memory"]}

    def close(self) -> None:
        self.closed += 1


class Opener:
    """Opens connectors; the first of stage *slow* only when it may, and then *error* is raised."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.asked: list[str] = []
        self.made: list[Opened] = []

    def __call__(self, settings: dict[str, Any]) -> Any:
        self.asked.append(settings["stage"])
        if settings["stage"] == "slow":
            self.begun.set()
            assert self.may_end.wait(PATIENCE_S)
            error, self.error = self.error, None
            if error is not None:
                raise error
        self.made.append(Opened())
        return self.made[-1]


def settings(stage: str) -> dict[str, Any]:
    return {"stage": stage, "pool_bytes": 1 << 20}


def registry(opener: Opener) -> Any:
    from stagelink.adapters.hosts.vllm_omni.shared import Registry

    return Registry(opener)


def until(happened: Callable[[], bool]) -> None:
    """Wait for what no event tells of."""
    until_s = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < until_s
        time.sleep(0.001)


def is_awaited(known: Any, many: int) -> bool:
    """Whether that many want a connector which is being opened."""
    return any(opening.wanted == many for opening in list(known._under_way.values()))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def test_a_stage_is_opened_while_another_is_still_being_opened(pool: ThreadPoolExecutor) -> None:
    opener = Opener()
    known = registry(opener)
    slow = pool.submit(known.take, settings("slow"))
    assert opener.begun.wait(PATIENCE_S)

    quick = pool.submit(known.take, settings("quick"))
    try:
        held = quick.result(PATIENCE_S / 4)
        known.give_back(held)
        assert (held.connector.closed, slow.done()) == (1, False)
    finally:
        opener.may_end.set()

    assert slow.result(PATIENCE_S).connector.closed == 0


def test_who_asks_for_what_is_being_opened_gets_that_one(pool: ThreadPoolExecutor) -> None:
    opener = Opener()
    known = registry(opener)
    asked = [pool.submit(known.take, settings("slow")) for _ in range(3)]
    until(lambda: is_awaited(known, 3))

    opener.may_end.set()
    held = [one.result(PATIENCE_S) for one in asked]

    assert (opener.asked, {id(one) for one in held}) == (["slow"], {id(held[0])})
    for one, closed in zip(held, (0, 0, 1), strict=True):
        known.give_back(one)
        assert opener.made[0].closed == closed


def test_a_failed_opening_is_told_to_all_who_wait_and_to_nobody_later(
    pool: ThreadPoolExecutor,
) -> None:
    error = ConfigError("no room")
    opener = Opener(error)
    known = registry(opener)
    asked = [pool.submit(known.take, settings("slow")) for _ in range(3)]
    until(lambda: is_awaited(known, 3))

    opener.may_end.set()

    assert [one.exception(PATIENCE_S) for one in asked] == [error] * 3
    assert opener.asked == ["slow"]
    assert known.take(settings("slow")).connector is opener.made[0]


def test_an_interrupted_opening_is_taken_over_by_who_waits_for_it(
    pool: ThreadPoolExecutor,
) -> None:
    opener = Opener(KeyboardInterrupt())
    known = registry(opener)
    asked = [pool.submit(known.take, settings("slow")) for _ in range(2)]
    until(lambda: is_awaited(known, 2))

    opener.may_end.set()

    errors = [one.exception(PATIENCE_S) for one in asked]
    assert sorted(map(repr, errors)) == ["KeyboardInterrupt()", "None"]
    assert opener.asked == ["slow", "slow"]


def test_the_end_of_the_process_closes_what_is_still_being_opened(
    pool: ThreadPoolExecutor,
) -> None:
    opener = Opener()
    known = registry(opener)
    pool.submit(known.take, settings("slow"))
    assert opener.begun.wait(PATIENCE_S)
    over = pool.submit(known.close)
    until(lambda: bool(known._over))

    opener.may_end.set()
    over.result(PATIENCE_S)

    assert [made.closed for made in opener.made] == [1]


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_a_child_that_is_forked_during_an_opening_opens_its_own(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stagelink.adapters.hosts.vllm_omni import shared

    opener = Opener()
    monkeypatch.setattr(shared.REGISTRY, "_open", opener)
    asked = pool.submit(shared.REGISTRY.take, settings("slow"))
    assert opener.begun.wait(PATIENCE_S)

    child = os.fork()
    if not child:
        signal.alarm(int(PATIENCE_S / 2))  # dead rather than waiting for a thread it has not
        opener.may_end.set()
        shared.REGISTRY.take(settings("slow"))
        shared.REGISTRY.close()
        os._exit(0 if [made.closed for made in opener.made] == [1] else 1)
    _, status = os.waitpid(child, 0)
    opener.may_end.set()
    shared.REGISTRY.give_back(asked.result(PATIENCE_S))

    assert status == 0
    assert [made.closed for made in opener.made] == [1]


def test_a_connector_that_is_closed_while_it_binds_lets_go_of_its_port(
    build: Any, base: int, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stagelink.adapters.hosts.vllm_omni import shared

    begun, may_open = threading.Event(), threading.Event()

    def slowly(settings: dict[str, Any]) -> Any:
        begun.set()
        assert may_open.wait(PATIENCE_S)
        return shared.open_best(settings)

    monkeypatch.setattr(shared.REGISTRY, "_open", slowly)
    sender = build(stage_id=0)
    put = pool.submit(sender.put, "0", "1", "r_0_0", {"x": 1})
    assert begun.wait(PATIENCE_S)

    try:
        pool.submit(sender.close).result(PATIENCE_S / 4)
    finally:
        may_open.set()

    assert put.result(PATIENCE_S) == (False, 0, None)
    assert is_free(base)
