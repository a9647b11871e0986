"""The mount of shared memory: its kind, its room, its locks, and what was left there."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import subprocess
import sys
from pathlib import Path

from stagelink.adapters.shm import LockLiveness, available, residue
from stagelink.adapters.shm.names import lock_name
from stagelink.core.errors import TransportError
from stagelink.inspect.checks import Check, size

ASK_S = 30.0
_MOUNT = "mount a tmpfs there (docker: --shm-size), or set shm_dir"
_IS_LOCKED = """
import sys
from pathlib import Path
from stagelink.adapters.shm.liveness import is_locked
print(is_locked(Path(sys.argv[1])))
"""


def shared_memory(directory: str, pool_bytes: int) -> list[Check]:
    """All checks of *directory* for a connector whose pool has *pool_bytes*."""
    mount = _mount(directory)
    if mount.ok is False:
        return [mount]
    return [mount, _pool(directory, pool_bytes), _locks(directory), _leftovers(directory)]


def _mount(directory: str) -> Check:
    name = f"shared memory {directory}"
    if not os.path.isdir(directory):
        return Check(name, False, "there is no such directory", _MOUNT)
    if not os.access(directory, os.W_OK | os.X_OK):
        return Check(name, False, "it is not writable", _MOUNT)
    mode = stat.S_IMODE(os.stat(directory).st_mode)
    kind = _file_system(directory)
    found = f"{kind}, mode {mode:04o}"
    if kind not in {"tmpfs", "ramfs", "hugetlbfs"}:
        return Check(name, None, found, "use a tmpfs: here pages may be written to a disk")
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return Check(name, None, found, f"chmod +t {directory}: anybody may delete our files")
    return Check(name, True, found)


def _pool(directory: str, pool_bytes: int) -> Check:
    room = available(Path(directory))
    found = f"{size(pool_bytes)} wanted, {size(room)} available"
    if pool_bytes <= room:
        return Check("room for the pool", True, found)
    remedy = "raise the mount's size (docker: --shm-size), lower pool_bytes, or set shm_dir"
    return Check("room for the pool", False, found, remedy)


def _locks(directory: str) -> Check:
    """Whether another process sees our record lock while we live, and not afterwards."""
    name = "locks that prove life"
    instance = secrets.token_bytes(16)
    path = Path(directory) / lock_name(instance)
    try:
        liveness = LockLiveness(instance, directory)
    except TransportError as error:
        return Check(name, False, error.message, error.remedy)
    try:
        seen = _seen_from_outside(path)
    finally:
        liveness.close()
    if seen == "True":
        return Check(name, True, "another process sees ours")
    remedy = "record locks do not work on this file system; set shm_dir to a local tmpfs"
    return Check(name, False, f"another process does not see ours ({seen})", remedy)


def _seen_from_outside(path: Path) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - our own code in our own interpreter
            [sys.executable, "-c", _IS_LOCKED, str(path)],
            capture_output=True, check=True, text=True, timeout=ASK_S,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return done.stdout.strip()


def _leftovers(directory: str) -> Check:
    name = "left by dead owners"
    found = residue(directory)
    if not found:
        return Check(name, True, "nothing")
    total = 0
    for path in found:
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    remedy = "the next connector that is opened on this directory removes them"
    return Check(name, None, f"{len(found)} files, {size(total)}", remedy)


def _file_system(directory: str) -> str:
    """The kind of file system that holds *directory*, from the longest mount point above it."""
    real = os.path.realpath(directory)
    best, kind = "", "unknown"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, point, found, *_ = line.split()
            point = point.encode().decode("unicode_escape")
            above = real == point or real.startswith(point.rstrip("/") + "/")
            if above and len(point) >= len(best):
                best, kind = point, found
    return kind
