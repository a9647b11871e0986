"""Tests on AMD's real engine. They are collected only where it is installed: ``make test-mori``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.sims import verbsim

from stagelink.plugins.conformance.meeting import Meeting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagelink.plugins.conformance.plane import MakeParty

# Read when the engine is loaded. It would take XGMI for two GPUs of one host, whatever the test is
# about; and its log goes to stdout.
os.environ.setdefault("MORI_DISABLE_AUTO_XGMI", "1")
os.environ.setdefault("MORI_IO_LOG_LEVEL", "critical")
os.environ.setdefault("MORI_IO_CP_TIMEOUT_MS", "3000")  # how long a peer that connects may stall

verbsim.setup()

# Connectors of the conformance kit run in processes that import nothing of the tests.
_root = Path(__file__).parents[2]
_paths = [str(Path(__file__).parent / "children"), str(_root), str(_root / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join([*_paths, os.environ.get("PYTHONPATH", "")])


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
