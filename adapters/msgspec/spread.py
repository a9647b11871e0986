"""Large copies by several threads: one processor alone does not use what the memory could give.

The caller copies too: first its own part, then each that nobody has begun by then, so where all
processors are busy it waits for no thread that has not got one. Which thread copies a part is
settled by one call, so a copy that is interrupted knows what it must wait for.
"""

from __future__ import annotations

import os
from contextlib import suppress
from ctypes import memmove
from queue import Empty, SimpleQueue
from threading import Thread, get_ident

PART_BYTES = 2 << 20
"""Less than this is not worth waking a thread for."""

MOST = 4
"""Threads for one copy, its caller included."""

LOOK_S = 0.05
"""How often a caller looks by itself, should an interruption have taken a word from it."""


class _Copy:
    """One copy in *parts* of equal length; the caller does the first."""

    __slots__ = ("_done", "_ended", "_owners", "_part", "_size", "_source", "_target", "parts")

    def __init__(self, target: int, source: int, size: int, parts: int) -> None:
        self._target, self._source, self._size = target, source, size
        self._part = -(-size // parts // 4096) * 4096
        self.parts = parts
        self._owners: dict[int, int] = {}
        self._done: set[int] = set()
        self._ended: SimpleQueue[None] = SimpleQueue()

    def take(self, number: int) -> None:
        """Copy part *number*, if nobody else has taken it."""
        me = get_ident()
        if self._owners.setdefault(number, me) != me:
            return
        start = number * self._part
        size = min(self._part, self._size - start)
        memmove(self._target + start, self._source + start, size)  # without the interpreter lock
        self._done.add(number)
        self._ended.put(None)

    def settle(self) -> None:
        """Return once no other thread copies, and none will. Twice is fine."""
        me = get_ident()
        for number in range(1, self.parts):
            while self._owners.setdefault(number, me) != me and number not in self._done:
                with suppress(Empty):
                    self._ended.get(timeout=LOOK_S)


class _Helpers:
    """The threads that help, started when first needed; a forked child has none of them."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Begin anew."""
        self._jobs: SimpleQueue[tuple[_Copy, int]] = SimpleQueue()
        self._count = 0

    def ask(self, copy: _Copy) -> None:
        """Have all parts but the first copied, by those who find the time."""
        for number in range(1, copy.parts):
            if self._count < number and not self._more():
                return
            self._jobs.put((copy, number))

    def _more(self) -> bool:
        """Start one more; False where the process may have no more threads."""
        thread = Thread(target=_help, args=(self._jobs,), name="stagelink-copy", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._count += 1
        return True


def _help(jobs: SimpleQueue[tuple[_Copy, int]]) -> None:
    while True:
        copy, number = jobs.get()
        copy.take(number)
        del copy


_HELPERS = _Helpers()


def spread(target: int, source: int, size: int) -> None:
    """Copy *size* bytes between two addresses; no byte is written after it has returned or raised.

    Both must stay mapped until then.
    """
    parts = min(MOST, _processors(), size // PART_BYTES)
    if parts <= 1:
        memmove(target, source, size)
        return
    copy = _Copy(target, source, size, parts)
    try:
        try:
            _HELPERS.ask(copy)
            for number in range(parts):
                copy.take(number)
        finally:
            copy.settle()
    finally:
        copy.settle()  # even if the first was interrupted, nothing may be written later


def _processors() -> int:
    """On how many this process may run now."""
    return len(os.sched_getaffinity(0))
