"""Large copies by several threads: every byte, and none once the copy is over."""

from __future__ import annotations

import os
import threading
from ctypes import addressof, c_char, memmove
from queue import SimpleQueue
from typing import Any

import pytest

from stagelink.adapters.msgspec import spread as it
from stagelink.adapters.msgspec.spread import MOST, PART_BYTES, spread

PATIENCE_S = 20.0
SIZE = MOST * PART_BYTES


@pytest.fixture(autouse=True)
def processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a copy can use, whatever machine this is."""
    monkeypatch.setattr(it, "_processors", lambda: MOST)


class Place:
    """Bytes, and where they are."""

    def __init__(self, content: bytes) -> None:
        self.content = bytearray(content)
        self.address = addressof(c_char.from_buffer(self.content))


def noise(size: int) -> bytes:
    """Bytes of which no two parts are alike."""
    return os.urandom(size)


@pytest.mark.parametrize(
    "size",
    [0, 1, PART_BYTES, 2 * PART_BYTES - 1, 2 * PART_BYTES, 2 * PART_BYTES + 1, 3 * PART_BYTES + 7,
     SIZE, SIZE + 4097],
)  # fmt: skip
def test_every_byte_arrives_and_none_beside(size: int) -> None:
    source, target = Place(noise(size + 2)), Place(bytes(size + 2))
    spread(target.address + 1, source.address + 1, size)
    assert target.content == bytes(1) + source.content[1:-1] + bytes(1)


def test_other_threads_help(monkeypatch: pytest.MonkeyPatch) -> None:
    copying: set[int] = set()
    all_at_once = threading.Barrier(MOST)

    def together(target: int, source: int, size: int) -> None:
        copying.add(threading.get_ident())
        all_at_once.wait(PATIENCE_S)
        memmove(target, source, size)

    monkeypatch.setattr(it, "memmove", together)
    source, target = Place(noise(SIZE)), Place(bytes(SIZE))
    spread(target.address, source.address, SIZE)
    assert target.content == source.content
    assert len(copying) == MOST


def test_who_gets_no_help_copies_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(_thread: threading.Thread) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    monkeypatch.setattr(it, "_HELPERS", it._Helpers())
    monkeypatch.setattr(threading.Thread, "start", no_more)
    source, target = Place(noise(SIZE)), Place(bytes(SIZE))
    spread(target.address, source.address, SIZE)
    assert target.content == source.content


class Interrupted(BaseException):
    """As Ctrl-C, but ours."""


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupted_copy_ends_before_it_raises(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A helper is in the middle of its part; nothing it writes may come later.

    The second interruption meets the caller while it waits for the helper.
    """
    caller = threading.get_ident()
    begun, go_on = threading.Event(), threading.Event()
    ended = []

    def slow(target: int, source: int, size: int) -> None:
        if threading.get_ident() == caller:
            assert begun.wait(PATIENCE_S)
            raise Interrupted
        begun.set()
        assert go_on.wait(PATIENCE_S)
        memmove(target, source, size)
        ended.append(size)

    waited: list[float] = []

    class Ended(SimpleQueue[Any]):
        """Interrupts the wait, too, then lets the helper go on."""

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            if timeout is None:
                return super().get()
            waited.append(timeout)
            if len(waited) < times:
                raise Interrupted
            go_on.set()
            return super().get(block, timeout)

    monkeypatch.setattr(it, "_HELPERS", it._Helpers())
    monkeypatch.setattr(it, "memmove", slow)
    monkeypatch.setattr(it, "SimpleQueue", Ended)
    source, target = Place(noise(2 * PART_BYTES)), Place(bytes(2 * PART_BYTES))
    with pytest.raises(Interrupted):
        spread(target.address, source.address, 2 * PART_BYTES)
    assert len(ended) == 1  # it had begun, so it was waited for
    assert len(waited) >= times


def test_a_word_lost_to_an_interruption_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a part is known even if nobody hears of it."""

    class Deaf(SimpleQueue[Any]):
        """Loses every word of an end."""

        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            if item is not None:
                super().put(item, block, timeout)

    monkeypatch.setattr(it, "SimpleQueue", Deaf)
    monkeypatch.setattr(it, "_HELPERS", it._Helpers())
    source, target = Place(noise(SIZE)), Place(bytes(SIZE))
    spread(target.address, source.address, SIZE)
    assert target.content == source.content


def test_copies_of_many_threads_do_not_mix() -> None:
    sources = [Place(noise(2 * PART_BYTES)) for _ in range(6)]
    targets = [Place(bytes(2 * PART_BYTES)) for _ in sources]

    def run(number: int) -> None:
        for _ in range(3):
            spread(targets[number].address, sources[number].address, 2 * PART_BYTES)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert all(t.content == s.content for t, s in zip(targets, sources, strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_copies_with_helpers_of_its_own() -> None:
    """The threads that helped its parent are not there."""
    source, target = Place(noise(SIZE)), Place(bytes(SIZE))
    spread(target.address, source.address, SIZE)
    child = os.fork()
    if not child:
        target = Place(bytes(SIZE))
        spread(target.address, source.address, SIZE)
        helped = sum(thread.name == "stagelink-copy" for thread in threading.enumerate())
        os._exit(0 if target.content == source.content and helped == MOST - 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
