"""Pages that are there before anybody touches them.

Reserving pages (fallocate) is not enough: the first touch of each still faults, and a copy into
fresh pages was measured at eleven times a copy into warm ones.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmap import mmap

_POPULATE_READ = 22  # MADV_POPULATE_READ, Linux 5.14
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE
_PAGE = 4096
_PIECE = 4 << 20

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def populate(mapping: mmap, *, writable: bool) -> None:
    """Fault in every page of *mapping*; its content does not change.

    Raises:
        OSError: a page cannot be had (touching it would have been a SIGBUS).
    """
    try:
        if writable:
            _advise_unlocked(mapping)
        else:
            _advise_in_pieces(mapping)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: a kernel before 5.14
            raise
        touch(mapping)


def _advise_unlocked(mapping: mmap) -> None:
    """By way of ctypes: ``mmap.madvise`` keeps the interpreter's lock, for seconds at a GiB."""
    address = address_of(mapping)
    if _LIBC.madvise(address, len(mapping), _POPULATE_WRITE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _advise_in_pieces(mapping: mmap) -> None:
    """Ctypes gives no address of a read-only buffer; pieces let other threads run in between."""
    for start in range(0, len(mapping), _PIECE):
        mapping.madvise(_POPULATE_READ, start, min(_PIECE, len(mapping) - start))


def touch(mapping: mmap) -> None:
    """The slow way. Reading is enough on shared memory, and cannot undo a peer's write."""
    for start in range(0, len(mapping), _PIECE):
        mapping[start : start + _PIECE : _PAGE]


def address_of(buffer: mmap | memoryview) -> int:
    """Where the bytes of a writable buffer lie; valid while *buffer* lives."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
