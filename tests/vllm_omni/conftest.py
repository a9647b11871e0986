"""Tests against the released vLLM-Omni. They run in an environment of their own: ``make test-vllm-omni``."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.vllm_omni.ports import free_base
from tests.vllm_omni.stages import Stage, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
# Stages are processes that find the tests by it.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
)
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
prepare()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have vLLM imported before the first test's time begins to count."""
    if session.items and not session.config.option.collectonly:
        Stage().end()


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    """Makes stages, which are ended after the test, last first."""
    made: list[Stage] = []

    def make(**settings: object) -> Stage:
        made.append(Stage(**settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in reversed(made):
        one.end()


@pytest.fixture
def port() -> int:
    """A base port with free neighbours."""
    return free_base()


@pytest.fixture
def taken(port: int) -> Iterator[int]:
    """A base port that somebody else listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", port + 3))
        other.listen()
        yield port + 3
