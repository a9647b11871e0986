"""Every compressor of ours keeps the contract."""

from __future__ import annotations

import pytest

from stagelink.plugins import Compressor, Manager
from stagelink.plugins.conformance.compressor import CompressorContract


class TestZstd(CompressorContract):
    @pytest.fixture
    def compressor(self) -> Compressor:
        return Manager().compressor("zstd")
