"""POSIX shared-memory segments, reserved and populated, gone with their owner."""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import finalize

from stagelink.adapters.shm.names import segment_name
from stagelink.adapters.shm.populate import populate
from stagelink.core.errors import CapacityError, ConfigError, Reason, TransportError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

DIRECTORY = "/dev/shm"  # noqa: S108 - the mount of POSIX shared memory
KIND = "host-shared"

_RAISE = "raise the mount's size (docker: --shm-size), lower the pool's size, or use another mount"
_NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.ENOMEM, errno.EDQUOT, errno.EFAULT})


class Segment:
    """One :class:`stagelink.ports.Memory`: a named file of the mount, mapped and resident.

    The name goes at :meth:`close`, with the object, or at the interpreter's end, whichever comes
    first; a killed process leaves it to :func:`stagelink.adapters.shm.sweep.sweep`.
    """

    kind = KIND

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.name = path.name
        self.size = len(mapping)
        self._view: memoryview | None = memoryview(mapping)
        self._unlink = finalize(self, _unlink_as, os.getpid(), path)

    @property
    def buffer(self) -> memoryview:
        """All bytes, writable.

        Raises:
            TransportError: the segment is closed.
        """
        if self._view is None:
            msg = f"segment {self.name} is closed"
            raise TransportError(msg, reason=Reason.CLOSED, remedy="allocate another")
        return self._view

    def close(self) -> None:
        """Unlink the name; the pages go with their last view. In a forked child: only forget."""
        self._view = None
        self._unlink()

    def __enter__(self) -> Self:
        """Close at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


class SharedMemoryProvider:
    """Allocates segments of one connector in *directory*.

    Make the connector's :class:`~stagelink.adapters.shm.liveness.LockLiveness` before the first
    segment and close it after the last: a segment whose owner has no lock counts as residue.
    """

    kind = KIND

    def __init__(self, instance: bytes, directory: str = DIRECTORY) -> None:
        self._instance = instance
        self._directory = Path(directory)
        self._numbers = itertools.count(1)

    def allocate(self, size: int) -> Segment:
        """Reserve and populate *size* bytes, so that no later touch can fail.

        Raises:
            CapacityError: the mount or the host has not that much; both numbers and the remedy.
            ConfigError: *size* is not positive.
            TransportError: the directory cannot be used at all.
        """
        if size <= 0:
            msg = f"a segment of {size} bytes"
            raise ConfigError(msg, remedy="give a positive number of bytes")
        path = self._directory / segment_name(self._instance, next(self._numbers))
        descriptor = self._create(path)
        try:
            return Segment(path, self._reserved(descriptor, size))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def _create(self, path: Path) -> int:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(self._directory, error) from error

    def _reserved(self, descriptor: int, size: int) -> mmap.mmap:
        """Map *size* bytes that are there; a want of pages shows here, never as a SIGBUS."""
        room = available(self._directory)
        try:
            if size > room:  # asking for too much may end in the kernel's killing us
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301
            os.posix_fallocate(descriptor, 0, size)
            mapping = mmap.mmap(descriptor, size)
            populate(mapping, writable=True)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise unusable(self._directory, error) from error
            msg = f"wanted {size} bytes of shared memory, {self._directory} has {room} available"
            numbers = {"requested": float(size), "free": float(room), "capacity": float(room)}
            raise CapacityError(msg, never_fits=True, numbers=numbers, remedy=_RAISE) from error
        return mapping


def unusable(directory: Path, error: OSError) -> TransportError:
    """The error for a directory in which nothing can be made."""
    msg = f"shared memory directory {directory} cannot be used: {error}"
    remedy = "mount a tmpfs there that this user may write to, or use another directory"
    return TransportError(msg, reason=Reason.FAILED, remedy=remedy)


def map_segment(directory: str, name: str, size: int, *, writable: bool) -> mmap.mmap:
    """Map (and populate) a peer's segment, whose *name* has been matched.

    Raises:
        TransportError: it is not there, may not be opened, or is smaller than *size*.
    """
    access = os.O_RDWR if writable else os.O_RDONLY
    try:
        descriptor = os.open(
            Path(directory) / name, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        try:
            return _mapped(descriptor, name, size, writable=writable)
        finally:
            os.close(descriptor)
    except OSError as error:
        msg = f"the peer's segment {name} cannot be mapped: {error}"
        remedy = "both sides must share the mount and the user, and the peer must live"
        raise TransportError(msg, reason=Reason.UNREACHABLE, remedy=remedy) from error


def _mapped(descriptor: int, name: str, size: int, *, writable: bool) -> mmap.mmap:
    found = os.fstat(descriptor)
    if found.st_size < size or size <= 0:
        msg = f"the peer's segment {name} has {found.st_size} bytes, it claims {size}"
        raise TransportError(msg, reason=Reason.MISMATCH, remedy="restart the peer")
    objection = _objection_to(found, size)
    if objection:
        msg = f"the peer's segment {name} is not one that a connector made: {objection}"
        raise TransportError(msg, reason=Reason.PROTOCOL, remedy="find out who made that file")
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED, access)
    populate(mapping, writable=writable)
    return mapping


def _objection_to(found: os.stat_result, size: int) -> str:
    """Why a file is no segment of a peer's; who owns it could cut it short under our feet."""
    if not stat.S_ISREG(found.st_mode):
        return "it is no file"
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}"
    if found.st_nlink > 1:
        return f"it has {found.st_nlink} names"
    if found.st_blocks * 512 < size:  # to map it would take the rest from us
        return f"{found.st_blocks * 512} of {size} bytes are reserved"
    return ""


def _unlink_as(owner: int, path: Path) -> None:
    """Remove the name, unless this is a forked child of the owner."""
    if os.getpid() == owner:
        path.unlink(missing_ok=True)


def available(directory: Path) -> int:
    """Bytes that can be had in *directory* now: of its mount, and of the host behind it."""
    mount = os.statvfs(directory)
    host = _host_room()
    return min(mount.f_bavail * mount.f_frsize, host) if mount.f_blocks else host


def _host_room() -> int:
    """Memory and swap that the kernel could give; boundless where it does not say."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith(("MemAvailable:", "SwapFree:")):
                found.append(int(line.split()[1]) << 10)  # noqa: PERF401 - two of some fifty
    return sum(found) or 1 << 62
