"""Whole connectors keep the contract over both planes on Mori's real engine."""

from __future__ import annotations

import pytest

from stagelink.plugins.conformance.connector import ConnectorContract


class TestXgmiConnector(ConnectorContract):
    """Between GPUs of one host."""

    @pytest.fixture
    def backend(self) -> str:
        return "mori-xgmi"


class TestRdmaConnector(ConnectorContract):
    """Through NICs."""

    @pytest.fixture
    def backend(self) -> str:
        return "mori-rdma"
