"""Stand-ins for libraries that the engine is linked with and that no transfer ever calls.

ROCm's and those for gRPC are not on a machine that only runs tests. Without them the engine does not
load, so each that is missing is made: a library of that name with exactly the symbols that the engine
wants of it. A function returns at once, and data is zero.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from tests.sims import building

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NEVER = re.compile(r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|amdhip64|mori_\w+)\.so|ld-linux")
"""The system's, the simulated runtime and the engine's own."""

ERRORS = {"hsa_": 0x1000, "drm": -1, "amdgpu_": -1, "numa_": -1}
"""What functions return that must not seem to succeed; the others return 0."""


class Symbol(NamedTuple):
    """What some library must define; *library* and *version* are empty if nobody says."""

    name: str
    library: str
    version: str


def load_missing(libraries: list[Path]) -> list[str]:
    """Stand in for everything that *libraries* need and that is not here; its names.

    Raises:
        CannotBuildError: there is no C compiler.
    """
    needed = {name for path in libraries for name in _needed(path) if not NEVER.match(name)}
    here, missing = [ctypes.CDLL(None)], []
    for name in sorted(needed):
        try:
            here.append(ctypes.CDLL(name))
        except OSError:
            missing.append(name)
    folder = building.made(
        "stubs", _digest(libraries, missing), lambda place: _make(place, libraries, missing, here)
    )
    for name in missing:
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    return missing


def _make(place: Path, libraries: list[Path], missing: list[str], here: list[ctypes.CDLL]) -> None:
    """One library for each that is missing. What has no owner goes into the first."""
    wanted = _wanted(libraries)
    own = {symbol for path in libraries for symbol in _defined(path)}
    orphans = [
        symbol
        for symbol in wanted
        if not symbol.library
        and symbol.name not in own
        and not any(hasattr(library, symbol.name) for library in here)
    ]
    for name in missing:
        symbols = [symbol for symbol in wanted if symbol.library == name]
        _assemble(place, name, symbols + (orphans if name == missing[0] else []))


def _assemble(place: Path, name: str, symbols: list[Symbol]) -> None:
    source, versions = place / f"{name}.s", place / f"{name}.map"
    names = [symbol.name for symbol in symbols]
    data = {one for one, text in zip(names, _demangled(names), strict=True) if _is_data(one, text)}
    source.write_text(
        '.section .note.GNU-stack,"",@progbits\n'
        + "".join(_object(one) if one in data else _function(one) for one in names)
    )
    flags = ["-shared", "-nostdlib", f"-Wl,-soname,{name}", str(source)]
    by_version: dict[str, list[str]] = {}
    for symbol in symbols:
        if symbol.version:
            by_version.setdefault(symbol.version, []).append(symbol.name)
    if by_version:
        versions.write_text(
            "".join(f"{one} {{ global: {'; '.join(of)}; }};\n" for one, of in by_version.items())
        )
        flags.append(f"-Wl,--version-script={versions}")
    building.compile_c(flags, place / name)


def _function(name: str) -> str:
    value = next((value for prefix, value in ERRORS.items() if name.startswith(prefix)), 0)
    return f".text\n.globl {name}\n.type {name},@function\n{name}: movq ${value},%rax\nret\n"


def _object(name: str) -> str:
    return (
        f".data\n.balign 16\n.globl {name}\n.type {name},@object\n.size {name},128\n"
        f"{name}: .zero 128\n"
    )


def _is_data(name: str, text: str) -> bool:
    """Whether a name of C++ is none of a function: only functions have parameters."""
    return name.startswith("_Z") and "(" not in text.replace("(anonymous namespace)", "")


# --- what the engine's files say -----------------------------------------------------------------


def _output(*command: str, given: str = "") -> str:
    return subprocess.run(command, input=given, check=True, capture_output=True, text=True).stdout


def _needed(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", _output("readelf", "-d", str(library)))


def _owners(library: Path) -> dict[str, str]:
    """Which library each version of a symbol is wanted of."""
    owners, current = {}, ""
    for line in _output("readelf", "-VW", str(library)).splitlines():
        if of := re.search(r"File: (\S+)", line):
            current = of[1]
        elif (version := re.search(r"Name: (\S+)", line)) and current:
            owners[version[1]] = current
    return owners


def _wanted(libraries: Iterable[Path]) -> list[Symbol]:
    wanted = set()
    for library in libraries:
        owners = _owners(library)
        for line in _output("nm", "-D", "--undefined-only", str(library)).splitlines():
            name, _, version = line.split()[-1].partition("@")
            version = version.lstrip("@")
            if line.split()[-2] == "U":
                wanted.add(Symbol(name, owners.get(version, ""), version))
    return sorted(wanted)


def _defined(library: Path) -> list[str]:
    lines = _output("nm", "-D", "--defined-only", str(library)).splitlines()
    return [line.split()[-1].partition("@")[0] for line in lines]


def _demangled(names: list[str]) -> list[str]:
    return _output("c++filt", given="".join(f"{one}\n" for one in names)).splitlines()


def _digest(libraries: list[Path], missing: list[str]) -> str:
    """Of which files there are, without reading all of them."""
    state = hashlib.sha256("\0".join(missing).encode())
    for path in libraries:
        state.update(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}\0".encode())
    return state.hexdigest()
