"""Residue of owners that died without closing."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from stagelink.adapters.shm.liveness import is_locked
from stagelink.adapters.shm.names import PREFIX, lock_of, owner_of_lock, owner_of_segment
from stagelink.adapters.shm.segment import DIRECTORY

ORPHAN_AGE_S = 10.0
"""A segment without a lock file is residue: the lock is made first and goes last."""


def sweep(directory: str = DIRECTORY) -> list[str]:
    """Remove what dead owners left in *directory*; return the names removed, segments first.

    Two sweepers at once are fine, and a living owner's files are never touched. It need not take
    a lock to be sure of that: a lock file has its name only once it is locked, and an instance's
    name is never used again, so one that is found unlocked stays so for ever. (Taking it would
    let the dead owner seem alive meanwhile.)
    """
    return [path.name for path in residue(directory) if _removed(path)]


def residue(directory: str = DIRECTORY) -> list[Path]:
    """What :func:`sweep` would remove from *directory* now, segments first."""
    folder = Path(directory)
    names = sorted(path.name for path in folder.glob(f"{PREFIX}*"))
    locks = {owner: folder / name for name in names if (owner := owner_of_lock(name))}
    # Judged once: a lock that goes while we work must not turn its owner's death into a doubt.
    dead = {owner for owner, path in locks.items() if not is_locked(path)}
    # Segments first: a lock file that is left is found, and finished, by the next sweep.
    segments = [folder / name for name in names if _is_residue(folder, name, dead)]
    return [*segments, *map(locks.__getitem__, sorted(dead))]


def _is_residue(folder: Path, name: str, dead: set[str]) -> bool:
    owner = owner_of_segment(name)
    if owner is None:
        return False
    if owner in dead:
        return True
    # Asked again: a listing may miss a lock file made while it was read.
    return not (folder / lock_of(owner)).exists() and _age_s(folder / name) > ORPHAN_AGE_S


def _removed(path: Path) -> bool:
    """Whether it was we who removed it; another sweeper may have, or it is not ours to remove."""
    with contextlib.suppress(OSError):
        path.unlink()
        return True
    return False


def _age_s(path: Path) -> float:
    """Seconds since it was made; wall time, as the file system keeps no other."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
