"""Builds the simulators with the C compiler, once for each state of their sources.

What is built lies in ``build/sims``, in a folder that is named after everything it was made from:
a changed source makes a new one, and nothing is ever built over what another process has loaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

STRICT = ("-O2", "-g1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-pthread")


class CannotBuildError(RuntimeError):
    """There is no C compiler here, or it refuses the sources."""


def cache() -> Path:
    """Where everything is built: in the checkout if we may write there.

    A folder of this user in the place for temporary files otherwise.
    """
    root = Path(__file__).parents[2]
    if os.access(root, os.W_OK):
        return root / "build" / "sims"
    return Path(tempfile.gettempdir()) / f"stagelink-sims-{os.getuid()}"


def shared_library(
    folder: str, name: str, sources: Iterable[Path], flags: Sequence[str] = ()
) -> Path:
    """The library *name* of *sources*, built if it is not there yet.

    Args:
        folder: what its folder in the cache begins with.
        name: its file name and SONAME, by which other libraries ask for it.
        sources: C and assembler files; headers beside them count as sources too.
        flags: more for the compiler.

    Raises:
        CannotBuildError: with what the compiler says.
    """
    command = [*STRICT, "-shared", f"-Wl,-soname,{name}", *map(str, sources), *flags]
    return made(folder, _digest(command), lambda place: compile_c(command, place / name)) / name


def compile_c(arguments: Sequence[str], out: Path) -> None:
    """Run the C compiler.

    Raises:
        CannotBuildError: there is none, or it fails.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        msg = "the simulators are built with a C compiler, and there is none: install gcc"
        raise CannotBuildError(msg)
    done = subprocess.run(
        [compiler, *arguments, "-o", str(out)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CannotBuildError(done.stderr)


def made(folder: str, digest: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name and digest; *make* fills it if nobody has."""
    place = cache() / f"{folder}-{digest[:12]}"
    if not place.is_dir():
        with _alone():
            if not place.is_dir():
                _fill(place, make)
    return place


def _fill(place: Path, make: Callable[[Path], None]) -> None:
    """Under another name first, so that nobody ever sees half of it."""
    draft = Path(tempfile.mkdtemp(dir=place.parent))
    try:
        make(draft)
        draft.chmod(0o755)
        draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _alone() -> Iterator[None]:
    """One at a time builds; the workers of a test run all start at once."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _digest(command: Sequence[str]) -> str:
    """Of the flags and of the content of every file that is named, with all that lies beside it."""
    state = hashlib.sha256("\0".join(command).encode())
    folders = {Path(one).parent for one in command if one.endswith((".c", ".s"))}
    for folder in sorted(folders):
        for path in sorted(folder.glob("*.[chs]")) + sorted(folder.glob("*.map")):
            state.update(path.name.encode() + b"\0" + path.read_bytes())
    return state.hexdigest()
