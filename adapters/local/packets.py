"""Messages of one to four frames as packets of a socket, sent and received without waiting.

A packet is the number of frames (u8), the length of each but the last (u32, little-endian), and
the frames. The calls keep the interpreter: they never wait, and beside a thread that computes in
Python each giving away costs a switch interval (5 ms).
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from errno import EAGAIN, EINTR, ENOBUFS, ENOMEM
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_FRAMES = 4

_LENGTHS = tuple(struct.Struct(f"<B{max(0, count - 1)}I") for count in range(MAX_FRAMES + 1))
_ONE = _LENGTHS[1].pack(1)
_SEND = int(socket.MSG_DONTWAIT) | int(socket.MSG_NOSIGNAL)
_RECEIVE = int(socket.MSG_DONTWAIT) | int(socket.MSG_TRUNC)
_NOT_NOW = frozenset((EAGAIN, ENOBUFS, ENOMEM))


# Called with plain numbers and bytes, and first without a look at errno: the types that ctypes
# checks for, and the errno that it keeps, take longer than the system call where all of that is in
# no cache. The numbers fit a C int.
_bare, _libc = ctypes.PyDLL(None), ctypes.PyDLL(None, use_errno=True)
_send, _recv = _bare.send, _bare.recv


class Malformed(Exception):  # noqa: N818 - never seen outside
    """A packet that is none of ours."""


class Packets:
    """Sends and receives on any socket, one call at a time; *longest* in bytes."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._buffer = bytearray(longest)
        self._view = memoryview(self._buffer)
        self._buffer_at = ctypes.c_void_p(
            ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        )

    def send(self, descriptor: int, frames: Sequence[bytes]) -> bool:
        """Send one message, copied; False when there is no room now.

        Raises:
            OSError: the connection has ended, or the message is too long for it.
        """
        if len(frames) == 1:
            packet = _ONE + frames[0]
        else:
            count = len(frames)
            packet = b"".join((_LENGTHS[count].pack(count, *map(len, frames[:-1])), *frames))
        return (
            _send(descriptor, packet, len(packet), _SEND) >= 0
            or _again(_libc.send, descriptor, packet, len(packet), _SEND) is not None
        )

    def receive(self, descriptor: int) -> list[bytes] | None:
        """The frames of the next message; None when there is none now, [] after the last one.

        Raises:
            OSError: the connection broke; there may be more to read.
            Malformed: what came is no message of ours.
        """
        size = _recv(descriptor, self._buffer_at, self.longest, _RECEIVE)
        if size < 0:
            size = _again(_libc.recv, descriptor, self._buffer_at, self.longest, _RECEIVE)
            if size is None:
                return None
        if size == 0:
            return []
        if self._buffer[0] == 1 and size <= self.longest:
            return [bytes(self._view[1:size])]
        return self._split(size)

    def _split(self, size: int) -> list[bytes]:
        count = self._buffer[0]
        if size > self.longest or not 0 < count <= MAX_FRAMES or size < _LENGTHS[count].size:
            raise Malformed
        at = _LENGTHS[count].size
        frames = []
        for length in _LENGTHS[count].unpack_from(self._buffer)[1:]:
            frames.append(bytes(self._view[at : at + length]))
            at += length
        if at > size:
            raise Malformed
        return [*frames, bytes(self._view[at:size])]


def _again(
    call: Callable[..., int], descriptor: int, data: bytes | ctypes.c_void_p, size: int, flags: int
) -> int | None:
    """What a call that has failed once returns now, and if it fails again why; None: not now.

    Raises:
        OSError: it failed for good.
    """
    while (done := call(descriptor, data, size, flags)) < 0:
        number = ctypes.get_errno()
        if number in _NOT_NOW:
            return None
        if number != EINTR:
            raise OSError(number, os.strerror(number))
    return done
