"""The copier: every write ends once, and after a stop nothing lands."""

from __future__ import annotations

import ctypes
import threading

import pytest

from stagelink.adapters.shm import copier
from stagelink.adapters.shm.copier import CLOSED, INLINE_BYTES, PIECE_BYTES, STOPPED, Copier, Ends
from stagelink.core.errors import TransportError
from stagelink.core.values import RegionRef
from stagelink.ports.plane import WriteOrder

PATIENCE_S = 10.0
A, B = b"a" * 16, b"b" * 16


def order(size: int, peer: bytes = A, transfer: int = 1) -> WriteOrder:
    """A write of *size* bytes."""
    where = RegionRef(1, 0, size)
    return WriteOrder(peer, transfer, where, where)


class Desk:
    """Two buffers, a copier between them, and what it said."""

    def __init__(self, size: int) -> None:
        self.source = ctypes.create_string_buffer(b"\x11" * size, size)
        self.target = ctypes.create_string_buffer(size)
        self.refused: set[bytes] = set()
        self.ended: list[tuple[int, str]] = []
        self.threads: set[str] = set()
        self.heard = threading.Condition()
        self.copier = Copier(self.ends)

    def ends(self, order: WriteOrder) -> Ends:
        """Both buffers from their start, unless the peer is refused."""
        if order.peer in self.refused:
            msg = "gone"
            raise TransportError(msg)
        return Ends(ctypes.addressof(self.source), ctypes.addressof(self.target), self)

    def post(self, order: WriteOrder) -> None:
        """Post, and note how it ends."""
        self.copier.post(order, self.done)

    def done(self, order: WriteOrder, error: str) -> None:
        """Note an end."""
        with self.heard:
            self.ended.append((order.transfer, error))
            self.threads.add(threading.current_thread().name)
            self.heard.notify_all()

    def wait(self, count: int) -> list[tuple[int, str]]:
        """The ends, in order, once there are *count*."""
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.ended) >= count, PATIENCE_S)
            return list(self.ended)


class Gate:
    """Stands for memmove: each piece says that it began, and waits to be let through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.copied: list[int] = []
        monkeypatch.setattr(copier, "copy_holding", self)
        monkeypatch.setattr(copier, "copy_yielding", self)

    def __call__(self, target: int, source: int, size: int) -> None:
        """Copy nothing."""
        del target, source
        self.began.release()
        assert self.go.acquire(timeout=PATIENCE_S)
        self.copied.append(size)


def test_a_small_write_is_done_before_post_returns_and_needs_no_thread() -> None:
    desk = Desk(INLINE_BYTES)

    desk.post(order(INLINE_BYTES))

    assert desk.ended == [(1, "")]
    assert desk.target.raw == desk.source.raw
    assert desk.threads == {threading.current_thread().name}
    desk.copier.close()


def test_large_writes_end_in_order_on_the_copiers_thread() -> None:
    desk = Desk(INLINE_BYTES + 1)

    for transfer in range(5):
        desk.post(order(INLINE_BYTES + 1, transfer=transfer))

    assert desk.wait(5) == [(transfer, "") for transfer in range(5)]
    assert desk.threads == {"stagelink-copier"}
    assert desk.target.raw == desk.source.raw
    desk.copier.close()


def test_a_stop_waits_for_the_piece_under_way_and_no_other_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, gate = Desk(1), Gate(monkeypatch)
    desk.post(order(3 * PIECE_BYTES))
    assert gate.began.acquire(timeout=PATIENCE_S)
    stopper = threading.Thread(target=desk.copier.stop, args=(A,))

    stopper.start()

    stopper.join(0.05)
    assert stopper.is_alive()  # a piece is being copied
    gate.go.release()
    stopper.join(PATIENCE_S)
    assert not stopper.is_alive()
    assert gate.copied == [PIECE_BYTES]
    assert desk.wait(1) == [(1, STOPPED)]
    desk.copier.close()


def test_a_stop_of_one_peer_leaves_the_others_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, gate = Desk(1), Gate(monkeypatch)
    desk.post(order(PIECE_BYTES, B, 1))
    assert gate.began.acquire(timeout=PATIENCE_S)
    desk.post(order(PIECE_BYTES, A, 2))
    desk.post(order(PIECE_BYTES, B, 3))

    desk.copier.stop(A)  # does not wait for B's piece

    assert desk.ended == [(2, STOPPED)]
    gate.go.release(2)
    assert desk.wait(3) == [(2, STOPPED), (1, ""), (3, "")]
    desk.copier.close()


def test_a_small_write_begun_before_a_stop_is_over_when_the_stop_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, gate = Desk(1), Gate(monkeypatch)
    writer = threading.Thread(target=desk.post, args=(order(1),))
    writer.start()
    assert gate.began.acquire(timeout=PATIENCE_S)
    desk.refused.add(A)
    stopper = threading.Thread(target=desk.copier.stop, args=(A,))

    stopper.start()

    stopper.join(0.05)
    assert stopper.is_alive()
    gate.go.release()
    stopper.join(PATIENCE_S)
    assert gate.copied == [1]
    writer.join(PATIENCE_S)
    desk.post(order(1, transfer=2))
    assert desk.ended == [(1, ""), (2, "gone")]


def test_done_may_stop_and_close_the_copier_that_calls_it() -> None:
    desk = Desk(INLINE_BYTES + 1)
    ended = threading.Event()

    def done(order: WriteOrder, error: str) -> None:
        del order, error
        desk.copier.stop(None)
        desk.copier.close()
        ended.set()

    desk.copier.post(order(INLINE_BYTES + 1), done)

    assert ended.wait(PATIENCE_S)
    desk.copier.close()


@pytest.mark.parametrize("size", [1, INLINE_BYTES + 1])
def test_a_closed_copier_refuses_and_its_thread_is_gone(size: int) -> None:
    before = set(threading.enumerate())
    desk = Desk(INLINE_BYTES + 1)
    desk.post(order(INLINE_BYTES + 1))
    desk.wait(1)

    desk.copier.close()
    desk.copier.close()

    assert set(threading.enumerate()) == before
    desk.post(order(size, transfer=2))
    assert desk.ended == [(1, ""), (2, CLOSED)]
