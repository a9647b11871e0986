"""Both planes keep the contract on Mori's real engine."""

from __future__ import annotations

import pytest
from tests.mori.parties import on_rdma, on_xgmi

from stagelink.plugins.conformance.plane import DataPlaneContract, MakeParty


class TestXgmiPlane(DataPlaneContract):
    """Between GPUs of one host."""

    @pytest.fixture
    def make_party(self) -> MakeParty:
        return on_xgmi


class TestRdmaPlane(DataPlaneContract):
    """Through NICs."""

    @pytest.fixture
    def make_party(self) -> MakeParty:
        return on_rdma
