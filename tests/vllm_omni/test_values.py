"""What arrives is what the host's own serializer would have made of it, to the bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.vllm_omni import acts, values
from tests.vllm_omni.stages import OURS, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def ends(base: int) -> Iterator[tuple[Stage, Stage]]:
    """A sender and a receiver for all values of this module."""
    sender, receiver = Stage(), Stage()
    for number, one in enumerate((sender, receiver)):
        one.do(acts.connect, "c", OURS, base, number)
    yield sender, receiver
    receiver.end()
    sender.end()


@pytest.fixture(scope="module")
def base() -> int:
    """A base port for all tests of this module."""
    from tests.vllm_omni.ports import free_base

    return free_base()


@pytest.mark.parametrize("kind", [*values.KINDS, *values.RAW])
def test_it_arrives_as_itself(ends: tuple[Stage, Stage], base: int, kind: str) -> None:
    sender, receiver = ends

    assert sender.do(values.put, "c", kind)

    told = receiver.do(acts.told, OURS, base, 0)
    assert receiver.do(values.get, "c", kind, told) == []


def test_what_nobody_can_serialize_is_refused_and_the_host_goes_on(
    ends: tuple[Stage, Stage], base: int
) -> None:
    sender, receiver = ends

    refused = sender.do(put_nonsense)
    assert refused == (False, 0, None)

    assert sender.do(acts.put, "c", ("0", "1"), "k_0_0", 3)[0]
    told = receiver.do(acts.told, OURS, base, 0)
    assert receiver.do(acts.get, "c", ("0", "1"), "k_0_0", told)["number"] == 3


def put_nonsense() -> object:
    return acts.MADE["c"].put("0", "1", "n_0_0", {"x": object()})
