"""Every backend of ours keeps the connector's contract."""

from __future__ import annotations

import pytest

from stagelink.plugins.conformance.connector import ConnectorContract


class TestBetweenProcesses(ConnectorContract):
    """One run for each name."""

    @pytest.fixture(params=["shm", "shm-write"])
    def backend(self, request: pytest.FixtureRequest) -> str:
        """The name of this run."""
        return str(request.param)


class TestWithinOne(ConnectorContract):
    """What is only for tests, and as strict."""

    crosses_processes = False

    @pytest.fixture(params=["memory", "memory-write"])
    def backend(self, request: pytest.FixtureRequest) -> str:
        """The name of this run."""
        return str(request.param)
