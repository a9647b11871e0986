"""What a compressor promises. Subclass, give ``compressor``, run pytest.

class TestMine(CompressorContract):
    @pytest.fixture
    def compressor(self):
        return Compressor("mine", compress, decompress)
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stagelink.ports import Compressor

SEED = 5
SAMPLES = {
    "zeros": bytes(200_000),
    "text": b"the quick brown fox " * 3000,
    "counting": b"".join(n.to_bytes(4, "little") for n in range(50_000)),
    "noise": random.Random(SEED).randbytes(70_001),  # noqa: S311 - no secret
    "short": b"x" * 1024,
}


def packed_by(compressor: Compressor, raw: bytes) -> memoryview:
    """*raw* compressed, as it arrives: in memory that may be written to."""
    return memoryview(bytearray(compressor.compress(memoryview(raw))))


class CompressorContract:
    """Every test takes the fixture ``compressor``."""

    def test_it_has_a_short_name(self, compressor: Compressor) -> None:
        """The name travels with each payload."""
        assert 0 < len(compressor.name.encode()) <= 64  # noqa: PLR2004

    @pytest.mark.parametrize("name", SAMPLES)
    def test_bytes_come_back_as_they_were(self, compressor: Compressor, name: str) -> None:
        """Whether they shrink or not."""
        raw = SAMPLES[name]
        into = bytearray(b"\xaa" * len(raw))

        assert compressor.decompress(packed_by(compressor, raw), memoryview(into)) == len(raw)
        assert into == raw

    @pytest.mark.parametrize("name", SAMPLES)
    def test_compressing_leaves_its_argument_alone(
        self, compressor: Compressor, name: str
    ) -> None:
        """The bytes may be needed once more."""
        raw = bytearray(SAMPLES[name])
        compressor.compress(memoryview(raw))

        assert raw == SAMPLES[name]

    @pytest.mark.parametrize("more", [-1, 1, -512, 4096])
    def test_another_size_than_the_promised_one_is_told(
        self, compressor: Compressor, more: int
    ) -> None:
        """By an exception or by the number of bytes, never by silence."""
        raw = SAMPLES["text"]
        into = memoryview(bytearray(len(raw) + more))
        try:
            came = compressor.decompress(packed_by(compressor, raw), into)
        except Exception:  # noqa: BLE001 - any will do
            return
        assert came != len(into)

    def test_what_is_cut_short_is_told(self, compressor: Compressor) -> None:
        """A part of the compressed bytes never makes the whole."""
        raw = SAMPLES["text"]
        packed = packed_by(compressor, raw)
        into = memoryview(bytearray(len(raw)))
        for length in (0, 1, len(packed) // 2, len(packed) - 1):
            try:
                came = compressor.decompress(packed[:length], into)
            except Exception:  # noqa: BLE001, S112 - any will do
                continue
            assert came != len(raw) or bytes(into) == raw
