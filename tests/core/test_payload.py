from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelink.core.errors import PayloadError
from stagelink.core.payload import pack_prefix, parse, plan

BUFFERS = st.lists(
    st.tuples(st.integers(0, 5000), st.sampled_from([1, 2, 8, 64, 256, 4096])), max_size=6
)


@given(st.integers(0, 300), BUFFERS)
def test_buffers_are_aligned_in_order_and_apart(
    header_len: int, buffers: list[tuple[int, int]]
) -> None:
    layout = plan(header_len, buffers)

    end = layout.header_stop
    for offset, (length, alignment) in zip(layout.offsets, buffers, strict=True):
        assert offset % alignment == 0
        assert end <= offset < end + alignment
        end = offset + length
    assert layout.size == end


@given(st.integers(0, 300), BUFFERS)
def test_the_prefix_tells_the_layout_again(
    header_len: int, buffers: list[tuple[int, int]]
) -> None:
    layout = plan(header_len, buffers)
    data = pack_prefix(layout).ljust(layout.size, b"\0")

    assert len(pack_prefix(layout)) == layout.header_start
    assert parse(data, layout.size) == layout
    assert parse(data + b"more of the block", layout.size) == layout


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        parse(data, len(data))


@given(st.integers(0, 71), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_stays_in_bounds(place: int, byte: int) -> None:
    layout = plan(10, [(100, 64), (7, 8), (0, 4096)])
    data = bytearray(pack_prefix(layout).ljust(layout.size, b"\0"))
    data[place] = byte

    try:
        found = parse(data, layout.size)
    except PayloadError:
        return
    ends = [o + n for o, (n, _) in zip(found.offsets, found.buffers, strict=True)]
    assert found.header_stop <= min(found.offsets)
    assert max(ends) == found.size == layout.size


def test_a_truncated_payload_is_refused() -> None:
    layout = plan(10, [(100, 64)])
    data = pack_prefix(layout).ljust(layout.size, b"\0")

    for size in range(layout.size):
        with pytest.raises(PayloadError):
            parse(data[:size], size)
    with pytest.raises(PayloadError):
        parse(data + b"x", layout.size + 1)
    with pytest.raises(PayloadError):
        parse(data[:-1], layout.size)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ((b"XLPL", 1, 0, 0, 0, 24), "no payload"),
        ((b"SLPL", 2, 0, 0, 0, 24), "version 2, this side reads 1"),
        ((b"SLPL", 1, 9, 0, 0, 24), "no payload"),
        ((b"SLPL", 1, 0, 1, 0, 24), "1 of header"),
        ((b"SLPL", 1, 0, 0, 2**32 - 1, 24), "4294967295 buffers"),
        ((b"SLPL", 1, 0, 0, 0, 2**63), "24 arrived"),
    ],
)
def test_a_wrong_prefix_is_refused_with_its_numbers(fields: tuple[object, ...], said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        parse(struct.pack("<4sHHIIQ", *fields), 24)


@pytest.mark.parametrize("buffer", [(-1, 8), (2**63, 8), (1, 0), (1, 3), (1, 8192), (1, -8)])
def test_a_buffer_beyond_the_format_is_refused(buffer: tuple[int, int]) -> None:
    with pytest.raises(PayloadError, match="beyond the format"):
        plan(0, [buffer])


def test_buffers_that_sum_beyond_63_bits_are_refused() -> None:
    with pytest.raises(PayloadError, match="beyond the format"):
        plan(0, [(2**62, 8), (2**62, 8)])
