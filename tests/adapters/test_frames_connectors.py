"""Connectors that share no memory move payloads over TCP."""

from __future__ import annotations

import pytest

from stagelink.plugins.conformance.connector import ConnectorContract


class TestFrames(ConnectorContract):
    """The whole contract, in two processes."""

    @pytest.fixture
    def backend(self) -> str:
        """The name."""
        return "frames"
