"""Tests on AMD's real engine. They are collected only where it is installed: ``make test-mori``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.mori.real import ROOT, Far, Side

from stagelink.plugins.conformance.meeting import Meeting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagelink.plugins.conformance.plane import MakeParty

# How long a peer may stall while we connect to it; the engine reads it when it connects at first.
os.environ.setdefault("MORI_IO_CP_TIMEOUT_MS", "3000")

# Connectors of the conformance kit run in processes that import nothing of the tests.
_paths = [str(Path(__file__).parent / "children"), str(ROOT), str(ROOT / "src")]
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


@pytest.fixture
def meet() -> Iterator[Callable[..., Meeting]]:
    """Makes two parties that know each other."""
    meetings: list[Meeting] = []

    def make(owner: MakeParty, peer: MakeParty | None = None, size: int = 1 << 20) -> Meeting:
        meetings.append(Meeting(owner(size), (peer or owner)(size)))
        return meetings[-1]

    yield make
    for meeting in meetings:
        meeting.close()
