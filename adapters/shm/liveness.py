"""Proof of death: a lock that the kernel takes from a process when it ends.

POSIX record locks belong to the process: a forked child does not hold them, and they fall when
the process dies, after its last thread can no longer write anywhere. Their one trap: closing any
descriptor of the file in the owning process drops them, so a process never opens a lock file that
it owns; it knows those by a table of device and inode, whatever path leads to them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import NamedTuple

from stagelink.adapters.shm.names import lock_name, owner_of_lock
from stagelink.adapters.shm.segment import DIRECTORY, unusable

_FLOCK = struct.Struct("hhqqi4x")
"""struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid."""

_WOULD_I_GET_IT = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class _FileId(NamedTuple):
    device: int
    inode: int


class _Owned(NamedTuple):
    pid: int
    descriptor: int


_OWNED: dict[_FileId, _Owned] = {}
"""Lock files that this process has locked. One table a process, as the locks are."""


def _forget_in_child() -> None:
    """A forked child owns nothing; closing its copy of a descriptor leaves the parent's lock."""
    for owned in list(_OWNED.values()):
        with contextlib.suppress(OSError):
            os.close(owned.descriptor)
    _OWNED.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class LockLiveness:
    """:class:`stagelink.ports.Liveness` by one lock file per connector.

    ``host`` names the running kernel, the directory (device and inode: elsewhere a proof is
    absent, which would read as death) and the user, who alone may open the files.

    Raises:
        TransportError: no lock file can be made in *directory*.
    """

    def __init__(self, instance: bytes, directory: str = DIRECTORY) -> None:
        self._directory = Path(directory)
        self._path = self._directory / lock_name(instance)
        self._pid = os.getpid()
        self.proof = self._path.name
        try:
            self.host = _host(self._directory)
            self._file = _create_locked(self._path)
        except OSError as error:
            raise unusable(self._directory, error) from error

    def is_dead(self, proof: str) -> bool:
        """Whether the owner of lock file *proof* is dead: the file has gone, or is not locked."""
        return owner_of_lock(proof) is not None and not is_locked(self._directory / proof)

    def close(self) -> None:
        """Give the proof up; a forked child does nothing. Close what may still write first."""
        owned = _OWNED.get(self._file)
        if owned is not None and os.getpid() == self._pid:
            # First the name, so that nobody opens what the table no longer protects.
            self._path.unlink(missing_ok=True)
            if _OWNED.pop(self._file, None) is not None:
                os.close(owned.descriptor)


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock of *path*; asks the kernel, never takes it."""
    try:
        found = os.stat(path, follow_symlinks=False)
        owned = _OWNED.get(_FileId(found.st_dev, found.st_ino))
        if owned is not None and owned.pid == os.getpid():
            return True
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # not ours to judge, so not proved dead
    try:
        answer = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, _WOULD_I_GET_IT))
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return bool(answer[0] != fcntl.F_UNLCK)


def _host(directory: Path) -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    found = directory.stat()
    return f"{boot}:{found.st_dev}:{found.st_ino}:{os.geteuid()}"


def _create_locked(path: Path) -> _FileId:
    """A new lock file that nobody ever sees unlocked: locked without a name, then linked."""
    descriptor = os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    found = os.fstat(descriptor)
    file = _FileId(found.st_dev, found.st_ino)
    # In the table before it has a name, so that no thread of ours can open it.
    _OWNED[file] = _Owned(os.getpid(), descriptor)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _give_name(descriptor, path)
    except BaseException:
        del _OWNED[file]
        os.close(descriptor)
        raise
    return file


def _give_name(descriptor: int, path: Path) -> None:
    """Link an unnamed file. Only with a directory's descriptor does Python follow the link."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
