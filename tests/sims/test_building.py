"""The simulators are built when they must be, and never under anybody's feet."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

import pytest
from tests.sims import building, hipsim, verbsim

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(building, "cache", lambda: tmp_path / "cache")
    path = tmp_path / "answer.c"
    path.write_text(
        '#include "answer.h"\n'
        '__attribute__((visibility("default"))) int answer(void) { return ANSWER; }\n'
    )
    (tmp_path / "answer.h").write_text("#define ANSWER 42\n")
    return path


def answer(library: Path) -> int:
    found: int = ctypes.CDLL(str(library)).answer()
    return found


def test_the_same_sources_are_built_once(source: Path) -> None:
    first = building.shared_library("one", "libanswer.so", [source])
    made = first.stat().st_mtime_ns

    again = building.shared_library("one", "libanswer.so", [source])

    assert (again, again.stat().st_mtime_ns) == (first, made)
    assert answer(first) == 42


def test_a_changed_header_is_built_beside_what_others_have_loaded(source: Path) -> None:
    first = building.shared_library("one", "libanswer.so", [source])
    source.with_name("answer.h").write_text("#define ANSWER 43\n")

    second = building.shared_library("one", "libanswer.so", [source])

    assert (answer(first), answer(second)) == (42, 43)


def test_what_the_compiler_says_is_told_and_leaves_nothing(source: Path) -> None:
    source.write_text("int answer(int unused) { return 0; }")

    with pytest.raises(building.CannotBuildError, match="unused"):
        building.shared_library("one", "libanswer.so", [source])

    assert os.listdir(building.cache()) == ["lock"]


def test_without_a_compiler_it_says_what_to_install(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)

    with pytest.raises(building.CannotBuildError, match="install gcc"):
        building.shared_library("one", "libanswer.so", [source])


def test_no_simulator_gives_a_warning() -> None:
    """A warning is an error to the compiler; all that it wants lies in this repository."""
    libraries = [
        hipsim.build("host"),
        hipsim.build("cuda"),
        hipsim.build_cuda_in_host_memory(),
        *verbsim.build(),
    ]

    assert all(library.is_file() for library in libraries)
