from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.behaviours.kit import Open, opening
from tests.chaos.stages import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["memory", "shm"])
def opened(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens connectors that map, within one process and between processes."""
    with opening(request.param) as open_:
        yield open_


@pytest.fixture(params=["memory", "shm", "memory-write", "shm-write"])
def opened_any(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens connectors of every backend in turn."""
    with opening(request.param) as open_:
        yield open_


@pytest.fixture
def opened_writing() -> Iterator[Open]:
    """Opens connectors whose writes may be given a fate."""
    with opening("memory-write") as open_:
        yield open_


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Processes that may be stopped and killed; cleared away afterwards."""
    made = Scene()
    yield made
    made.close()
