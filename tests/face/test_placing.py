"""get(into=...) and get(device=...): the value is copied out, its memory released at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import stagelink
from stagelink import ConfigError, PayloadError

torch = pytest.importorskip("torch", reason="these values are tensors, and torch is an extra")

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 10.0
LARGE = 100_000


@pytest.fixture(params=["shm", "shm-write", "memory"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    tx = stagelink.open(
        stage="a", role="sender", backend=request.param, zmq_port=0, host="127.0.0.1"
    )
    with tx, stagelink.open(
        stage="b", role="receiver", backend=request.param, sender=tx.endpoint
    ) as rx:  # fmt: skip
        yield tx, rx


def is_released(tx: Any, rx: Any) -> bool:
    """Whether no view is left and the sender has heard of it, within our patience."""
    assert len(rx._driver.views) == 0
    return bool(tx.drain(PATIENCE_S))


@pytest.mark.parametrize("items", [10, LARGE])
def test_a_tensor_is_got_into_the_callers_own(ends: Any, items: int) -> None:
    tx, rx = ends
    tx.put("k", torch.arange(items), to="b")
    into = torch.zeros(items, dtype=torch.int64)

    payload = rx.get("k", source="a", timeout=PATIENCE_S, into=into)

    assert payload.value is into
    assert torch.equal(into, torch.arange(items))
    assert is_released(tx, rx)
    payload.close()
    assert payload.value is into


def test_a_structure_is_got_into_the_callers_own(ends: Any) -> None:
    tx, rx = ends
    tx.put("k", {"x": np.ones(LARGE), "step": 3}, to="b")
    into: Any = {"x": np.zeros(LARGE), "step": None}
    array = into["x"]

    got = rx.get("k", source="a", timeout=PATIENCE_S, into=into).value

    assert got is into
    assert got["x"] is array
    assert array.sum() == LARGE
    assert got["step"] == 3
    assert is_released(tx, rx)


def test_a_value_is_got_to_a_device_and_is_our_own(ends: Any) -> None:
    tx, rx = ends
    tx.put("k", [torch.ones(LARGE), np.ones(LARGE), "s"], to="b")

    value = rx.get("k", source="a", timeout=PATIENCE_S, device="cpu").value

    assert is_released(tx, rx)
    assert value[0].sum() == value[1].sum() == LARGE
    assert value[2] == "s"


def test_what_does_not_match_is_told_and_released(ends: Any) -> None:
    tx, rx = ends
    tx.put("k", torch.ones(LARGE), to="b")

    with pytest.raises(
        PayloadError, match=rf"shape \[{LARGE}\] came, into= has .* shape \[3\]"
    ) as told:
        rx.get("k", source="a", timeout=PATIENCE_S, into=torch.zeros(3))

    assert told.value.context.key == "k"
    assert is_released(tx, rx)


def test_a_place_that_is_none_is_refused_and_the_payload_stays(ends: Any) -> None:
    tx, rx = ends
    tx.put("k", torch.ones(3), to="b")
    for wrong in ({"into": 3}, {"device": "nothing"}, {"into": [], "device": "cpu"}):
        with pytest.raises(ConfigError):
            rx.get("k", source="a", timeout=PATIENCE_S, **wrong)
    assert rx.get("k", source="a", timeout=PATIENCE_S, device="cpu").value.sum() == 3


def test_a_coroutine_gets_into_its_own_tensor_too(ends: Any) -> None:
    tx, rx = ends
    tx.put("k", torch.arange(LARGE), to="b")
    into = torch.zeros(LARGE, dtype=torch.int64)

    payload = asyncio.run(rx.aget("k", source="a", timeout=PATIENCE_S, into=into))

    assert payload.value is into
    assert torch.equal(into, torch.arange(LARGE))
    assert is_released(tx, rx)
