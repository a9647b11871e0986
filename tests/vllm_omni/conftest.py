"""Tests against the released vLLM-Omni. They run in an environment of their own: ``make test-vllm-omni``."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
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
    """A base port whose neighbours are free: those of 4 stages, 4 ranks, 2 replicas, and of KV."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8
    offsets = [kind + 1024 * replica + 16 * rank + stage for kind in (0, 100) for replica in (0, 1)
               for rank in range(4) for stage in range(4)]  # fmt: skip
    for _ in range(100):
        base = 12000 + 2500 * worker + random.randrange(1200)
        if all(_free(base + offset) for offset in offsets):
            return base
    pytest.fail("no base port with free neighbours")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.fixture
def taken(port: int) -> Iterator[int]:
    """A base port that somebody else listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", port + 3))
        other.listen()
        yield port + 3
