"""Every backend of ours keeps the connector's contract."""

from __future__ import annotations

import pytest

from stagelink.plugins.conformance.connector import ConnectorContract

BACKENDS = ["shm", "shm-write", "memory", "memory-write"]


class TestOurBackends(ConnectorContract):
    """One run for each name."""

    @pytest.fixture(params=BACKENDS)
    def backend(self, request: pytest.FixtureRequest) -> str:
        """The name of this run."""
        return str(request.param)
