"""``zmq_send`` without letting go of the interpreter.

pyzmq releases the GIL around every send. Ours never wait, so that buys nothing, and beside a
thread that computes in Python it costs a switch interval (5 ms) for every frame. The library's
own function, called through its C interface, keeps the GIL; where it cannot be found, pyzmq's
send does the same, only later.
"""

from __future__ import annotations

import ctypes
from errno import EAGAIN, EINTR
from importlib import import_module
from typing import TYPE_CHECKING, Any

import zmq

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagelink.adapters.zmq.sockets import Socket

NOBLOCK = int(zmq.NOBLOCK)
MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)


def put(target: Socket, frames: Sequence[bytes]) -> None:
    """Queue *frames* as one message, copied.

    A connection that ends between two frames takes the rest of the message with it.

    Raises:
        zmq.Again: the queue is full or not there; nothing is queued.
        zmq.ZMQError: a ROUTER has no such peer (EHOSTUNREACH); nothing is queued.
    """
    last = len(frames) - 1
    handle = target.underlying
    for place, frame in enumerate(frames):
        flags = NOBLOCK if place == last else MORE
        if type(frame) is not bytes:
            frame = bytes(frame)  # noqa: PLW2901
        while _send(handle, frame, len(frame), flags) < 0:
            number = _errno()
            if number == EINTR:
                continue
            if place:
                break
            raise zmq.Again(number) if number == EAGAIN else zmq.ZMQError(number)


def _functions() -> tuple[Callable[..., int], Callable[[], int]]:
    """zmq_send and zmq_errno of the library that pyzmq has loaded."""
    library: Any = ctypes.PyDLL(import_module("zmq.backend.cython._zmq").__file__)
    send, errno = library.zmq_send, library.zmq_errno
    send.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
    send.restype = errno.restype = ctypes.c_int
    return send, errno


def put_by_pyzmq(target: Socket, frames: Sequence[bytes]) -> None:
    """The same by pyzmq's own calls."""
    last = len(frames) - 1
    for place, frame in enumerate(frames):
        try:
            target.send(frame, NOBLOCK if place == last else MORE)
        except zmq.Again:  # noqa: PERF203 - the rest must follow
            if not place:
                raise


try:
    _send, _errno = _functions()
except (ImportError, OSError, AttributeError):  # another build of pyzmq
    put = put_by_pyzmq
