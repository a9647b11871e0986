"""Both planes keep the contract on Mori's real engine."""

from __future__ import annotations

import pytest
from tests.mori.parties import on_rdma, on_xgmi

from stagelink.plugins.conformance.plane import DataPlaneContract, MakeParty


class WritePlaneContract(DataPlaneContract):
    """Without what only planes that map can be asked."""

    test_the_bytes_of_a_frozen_owner_are_there_to_view = None  # type: ignore[assignment]
    test_views_of_a_killed_owner_stay_as_its_plane_says = None  # type: ignore[assignment]


class TestXgmiPlane(WritePlaneContract):
    """Between GPUs of one host."""

    @pytest.fixture
    def make_party(self) -> MakeParty:
        return on_xgmi


class TestRdmaPlane(WritePlaneContract):
    """Through NICs."""

    @pytest.fixture
    def make_party(self) -> MakeParty:
        return on_rdma
