"""An exception that a signal's handler raises, wherever in a call the interpreter lets it in.

That is after a call has returned, at the begin of a function and at the end of a loop's round: the
tests visit these points one by one. ``STAGELINK_INTERRUPTIONS=1`` visits all, else every ninth.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

import stagelink
from stagelink import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import CodeType, FrameType

    from stagelink import Connector

STEP = 1 if os.environ.get("STAGELINK_INTERRUPTIONS") else 9
LETS_IN = frozenset(
    {
    "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME",
})  # fmt: skip
SMALL, LARGE = b"s" * 300, b"l" * 3000
_KNOWN: dict[CodeType, tuple[dict[int, str], dict[int, int]]] = {}

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="older ones have no table of what catches what"
)


class Interrupter:
    """Raises KeyboardInterrupt at point *number* of what is run under it."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._before: dict[FrameType, int] = {}
        self.where = ""

    def run(self, call: Callable[[], object]) -> bool:
        """Whether *call* was interrupted; else there are no more points."""
        before = sys.gettrace()
        # Python 3.12 looks at the moment of settrace whether any frame wants its opcodes told.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._enter)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        return bool(self.where)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        del event, argument
        if f"{os.sep}stagelink{os.sep}" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        del argument
        if event == "opcode":
            last = self._before.get(frame, -1)
            self._before[frame] = frame.f_lasti
            names, caught_by = _known(frame.f_code)
            # It is raised where the call was: here would be elsewhere if others catch it here.
            alike = caught_by.get(last) == caught_by.get(frame.f_lasti)
            if names.get(last) in LETS_IN and alike:
                self._left -= 1
                if self._left == 0:
                    self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                    raise KeyboardInterrupt
        return self._step


def _known(code: CodeType) -> tuple[dict[int, str], dict[int, int]]:
    """Of each instruction its name, and where what it raises is caught."""
    if code not in _KNOWN:
        names = {one.offset: one.opname for one in dis.get_instructions(code)}
        parse: Any = dis._parse_exception_table  # type: ignore[attr-defined]
        caught_by = {
            offset: entry.target
            for entry in parse(code)
            for offset in range(entry.start, entry.end, 2)
        }
        _KNOWN[code] = names, caught_by
    return _KNOWN[code]


class Pair:
    """A sender and a receiver that have met."""

    def __init__(self, backend: str) -> None:
        common: dict[str, Any] = {
            "backend": backend, "pool_bytes": "64KiB", "alignment": 64, "eager_limit": 500,
            "timeouts": {"close_s": 0.05, "ttl_s": 20.0, "transfer_base_s": 10.0},
        }  # fmt: skip
        self.sender = stagelink.open(stage="a", role="sender", **common)
        self.reader = stagelink.open(
            stage="b", role="receiver", sender=self.sender.endpoint, **common
        )
        self.put("met", SMALL)
        self.get("met", SMALL)

    @property
    def torn(self) -> bool:
        """Whether either was interrupted where nothing can be mended."""
        return self.sender._driver.torn or self.reader._driver.torn

    def put(self, key: str, value: bytes) -> None:
        self.sender.put(key, value, to="b")

    def get(self, key: str, value: bytes) -> None:
        with self.reader.get(key, source="a", timeout=10.0) as payload:
            assert bytes(payload.value) == value

    def close(self) -> None:
        for connector in (self.reader, self.sender):
            closer = threading.Thread(target=connector.close, daemon=True)
            closer.start()
            closer.join(10.0)
            assert not closer.is_alive()


def interrupted_pairs(backend: str, *, reads: bool) -> Iterator[tuple[Pair, str]]:
    """A pair for every point at which a put, or a get, was interrupted."""
    for number in range(1, 10_000, STEP):
        pair, interrupter = Pair(backend), Interrupter(number)
        if reads:
            pair.put("small", SMALL)
            pair.put("large", LARGE)
        call = pair.get if reads else pair.put

        def both(call: Callable[[str, bytes], None] = call) -> None:
            call("small", SMALL)
            call("large", LARGE)

        interrupted = interrupter.run(both)
        if interrupted:
            yield pair, interrupter.where
        pair.close()
        if not interrupted:
            return


@pytest.mark.parametrize("backend", ["memory", "memory-write", "shm"])
@pytest.mark.parametrize("reads", [False, True], ids=["put", "get"])
def test_an_interrupted_call_leaves_a_connector_that_works_or_says_that_it_does_not(
    backend: str, reads: bool
) -> None:
    visited = torn = 0
    for pair, where in interrupted_pairs(backend, reads=reads):
        visited += 1
        assert no_lock_is_held(pair.sender), where
        assert no_lock_is_held(pair.reader), where
        assert not pair.sender._driver.has_driver, where  # or its standby thread would not serve
        assert not pair.reader._driver.has_driver, where
        torn += pair.torn
        with torn_is_told(pair):
            pair.put("next", LARGE)
            pair.get("next", LARGE)

    assert visited * STEP > 100  # how many points there are depends on the Python
    assert torn < visited


def torn_is_told(pair: Pair) -> AbstractContextManager[object]:
    """Of a connector that cannot go on, that its calls say so."""
    if not pair.torn:
        return nullcontext()
    return pytest.raises(ClosedError, match="in the middle of a step")


def no_lock_is_held(connector: Connector) -> bool:
    """Whether each lock of the driver can be had soon."""
    driver = connector._driver
    free = []
    for lock in (driver.state, driver.io, driver._driving):
        free.append(lock.acquire(timeout=10.0))
        if free[-1]:
            lock.release()
    return all(free)
