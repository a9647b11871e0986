"""No plane uses the numbers of an order before it knows that they are right."""

from __future__ import annotations

import re

import pytest

from stagelink.core.errors import Reason, TransportError
from stagelink.core.regions import Region, attached, check, registered, same_size
from stagelink.core.values import RegionRef

PEER = b"p" * 16


def refused(error: pytest.ExceptionInfo[TransportError]) -> tuple[object, bool]:
    """Why, and whether it says what to do."""
    return error.value.reason, bool(error.value.remedy)


@pytest.mark.parametrize(("offset", "size"), [(0, 0), (0, 8), (8, 0), (3, 5)])
def test_a_range_within_a_region_is_let_pass(offset: int, size: int) -> None:
    check(RegionRef(1, offset, size), 8)


@pytest.mark.parametrize(("offset", "size"), [(0, 9), (8, 1), (9, 0), (-1, 1), (0, -1), (4, 5)])
def test_a_range_that_is_not_wholly_inside_is_refused(offset: int, size: int) -> None:
    words = re.escape(f"bytes [{offset}, {offset + size}) are outside a region of 8 bytes")

    with pytest.raises(TransportError, match=words) as caught:
        check(RegionRef(1, offset, size), 8)

    assert caught.value.reason is Reason.OUT_OF_BOUNDS


@pytest.mark.parametrize("number", [1.0, "1", True, None])
def test_numbers_that_are_no_integers_are_refused(number: object) -> None:
    for where in (RegionRef(1, number, 1), RegionRef(1, 1, number)):  # type: ignore[arg-type]
        with pytest.raises(TransportError, match="must be integers"):
            check(where, 8)


def test_an_address_is_told_of_what_lies_inside() -> None:
    region = Region(memoryview(bytearray(8)), 1000)

    assert region.at(RegionRef(1, 3, 5)) == 1003
    with pytest.raises(TransportError, match="outside"):
        region.at(RegionRef(1, 3, 6))


def test_a_write_has_as_many_bytes_here_as_there() -> None:
    same_size(RegionRef(1, 0, 4), RegionRef(2, 64, 4))

    with pytest.raises(TransportError, match="source has 4 bytes, target 5") as caught:
        same_size(RegionRef(1, 0, 4), RegionRef(2, 64, 5))

    assert caught.value.reason is Reason.MISMATCH


def test_a_region_of_ours_is_found_or_was_never_registered() -> None:
    assert registered({3: "three"}, 3) == "three"

    with pytest.raises(TransportError, match="region 4 is not registered here") as caught:
        registered({3: "three"}, 4)

    assert refused(caught) == (Reason.UNKNOWN, True)


@pytest.mark.parametrize("regions", [{}, {3: 64}])
def test_a_region_of_a_peer_is_found_or_is_not_attached(regions: dict[int, int]) -> None:
    with pytest.raises(
        TransportError, match=f"region 4 of peer {PEER.hex()} is not att"
    ) as caught:
        attached(regions, PEER, 4)

    assert refused(caught) == (Reason.UNKNOWN, True)
    assert attached({4: 0}, PEER, 4) == 0
