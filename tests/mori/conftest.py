"""Tests on AMD's real engine. They are collected only where it is installed: ``make test-mori``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.mori.real import ROOT, Far, Side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Connectors of the conformance kit run in processes that import nothing of the tests.
_paths = [str(ROOT / "tests" / "mori" / "children"), str(ROOT), str(ROOT / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join([*_paths, os.environ.get("PYTHONPATH", "")])


@pytest.fixture
def side() -> Iterator[Callable[..., Side]]:
    """Makes engines of this process, which are ended after the test."""
    made: list[Side] = []

    def make(*arguments: Any, **settings: Any) -> Side:
        made.append(Side(*arguments, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def far() -> Iterator[Callable[..., Far]]:
    """Makes engines in processes of their own, which are ended after the test."""
    made: list[Far] = []

    def make(*arguments: Any, **settings: Any) -> Far:
        made.append(Far(*arguments, **settings))
        return made[-1]

    yield make
    for one in made:
        one.process.end()
