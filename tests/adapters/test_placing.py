"""Values copied out of the payload's memory: into the caller's own, or to a device."""

from __future__ import annotations

import gc
import weakref
from ctypes import c_ubyte
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from stagelink.adapters.msgspec.placing import check_place, fill, moved
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.core.errors import ConfigError, PayloadError

pytest.importorskip("torch", reason="these values are tensors, and torch is an extra")

import torch

SERIALIZER = PayloadSerializer()
NAN_BITS = torch.tensor(
    [0x7F800001, -1, 0x7FC00123, 5], dtype=torch.int32
)  # also a signalling one


def write(value: Any) -> Any:
    staged = SERIALIZER.stage(value)
    buffer = (c_ubyte * staged.size)()
    staged.write(memoryview(buffer).cast("B"))
    return buffer


def loaded(value: Any) -> Any:
    buffer = write(value)
    return SERIALIZER.load(buffer, len(buffer))


@dataclass(frozen=True)
class Kept:
    x: Any


class Pair(NamedTuple):
    x: Any
    y: Any


class Record(msgspec.Struct, frozen=True):
    x: Any


def test_a_tensor_is_filled_bit_for_bit() -> None:
    into = torch.zeros(4)
    assert fill(loaded(NAN_BITS.view(torch.float32)), into) is into
    assert torch.equal(into.view(torch.int32), NAN_BITS)


def test_any_strides_and_a_gradient_may_be_filled() -> None:
    value = torch.arange(6.0).view(2, 3)
    wide = torch.zeros(3, 4, requires_grad=True)
    fill(loaded(value), wide[:, ::2].t())
    assert torch.equal(wide[:, ::2].t(), value)
    assert wide[:, 1::2].sum() == 0

    array = np.zeros((2, 6))[:, ::2]
    assert fill(loaded(value.numpy().astype("f8")), array) is array
    assert array.tolist() == value.tolist()


def test_a_structure_is_filled_and_its_other_items_are_replaced() -> None:
    x: Any = torch.zeros(3)
    y: Any = np.zeros(2, "i4")
    into: Any = {"x": x, "deep": [(y, 7), None], "step": -1, "name": None}
    value = {
        "x": torch.ones(3),
        "deep": [(np.ones(2, "i4"), 8), np.ones(1)],
        "step": 3,
        "name": "n",
    }
    buffer = write(value)
    gone = weakref.ref(buffer)

    assert fill(SERIALIZER.load(buffer, len(buffer)), into) is into
    assert into["x"] is x
    assert x.tolist() == [1, 1, 1]
    assert into["deep"][0] == (y, 7)
    assert y.tolist() == [1, 1]
    assert into["deep"][1].tolist() == [1]
    assert (into["step"], into["name"]) == (3, "n")
    del buffer
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("value", "into", "said"),
    [
        (torch.ones(2, 3), torch.zeros(3, 2),
         r"value: a tensor of torch.float32 and shape \[2, 3\] came, into= has .* shape \[3, 2\]"),
        (torch.ones(2), torch.ones(2).half(), r"torch.float32 .* came, .* torch.float16"),
        (np.ones(2), torch.ones(2).double(), r"an array of float64 .* came, into= has a tensor"),
        (3, torch.ones(2), r"a int came, into= has a tensor"),
        ({"a": [torch.ones(1)]}, {"a": [torch.ones(2)]}, r"value\['a'\]\[0\]: a tensor"),
        ({"a": 1}, {"b": 1}, r"a dict of \['a'\] came, into= has a dict of \['b'\]"),
        ([1], [1, 2], r"a list of 1 came, into= has a list of 2"),
        ((1,), [1], r"a tuple of 1 came, into= has a list of 1"),
    ],
    ids=map(str, range(8)),
)  # fmt: skip
def test_what_does_not_match_tells_both_sides(value: Any, into: Any, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        fill(loaded(value), into)


def test_nothing_is_copied_unless_all_matches() -> None:
    into: dict[str, Any] = {"a": torch.zeros(2), "n": 0, "b": torch.zeros(3)}
    with pytest.raises(PayloadError, match=r"value\['b'\]"):
        fill(loaded({"a": torch.ones(2), "n": 1, "b": torch.ones(2)}), into)
    assert into["a"].tolist() == [0, 0]
    assert into["n"] == 0


def test_what_cannot_be_written_is_a_payload_error() -> None:
    array = np.zeros(2)
    array.flags.writeable = False
    with pytest.raises(PayloadError, match=r"shape \[2\] cannot be written"):
        fill(loaded(np.ones(2)), array)
    with pytest.raises(PayloadError, match=r"shape \[2\] cannot be written"):
        fill(loaded(torch.ones(2)), torch.zeros(1).expand(2))


def test_a_moved_value_leaves_no_view_behind() -> None:
    value: list[Any] = [
        torch.ones(3), {"a": np.ones(2), 1: (torch.zeros(2), "s")}, Kept(torch.ones(1)),
        Pair(np.ones(1), None), Record(memoryview(b"m" * 300)), {1, 2}, frozenset({3}), torch.ones(0),
    ]  # fmt: skip
    buffer = write(value)
    gone = weakref.ref(buffer)
    got = moved(SERIALIZER.load(buffer, len(buffer)), "cpu")
    del buffer
    gc.collect()

    assert gone() is None
    assert torch.equal(got[0], value[0])
    assert got[1]["a"].tolist() == [1, 1]
    assert got[1][1][0].tolist() == [0, 0]
    assert (type(got[2]), got[2].x.item()) == (Kept, 1)
    assert (type(got[3]), got[3].x.tolist(), got[3].y) == (Pair, [1], None)
    assert (type(got[4]), got[4].x) == (Record, b"m" * 300)
    assert got[5:7] == [{1, 2}, frozenset({3})]


def test_a_moved_tensor_is_on_its_device() -> None:
    got = moved(loaded({"x": [torch.ones(3)]}), "meta")
    assert got["x"][0].is_meta
    assert got["x"][0].shape == (3,)


@pytest.mark.parametrize(
    ("into", "device", "said"),
    [
        (torch.ones(1), "cpu", "exclude each other"),
        (3, None, "into= is of <class 'int'>"),
        (None, "nothing:7", "device 'nothing:7' cannot be used here"),
        (None, 3.5, "device 3.5 cannot be used here"),
    ],
)
def test_a_place_that_is_none_is_refused_before_anything_is_fetched(
    into: Any, device: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_place(into, device)


def test_places_that_are_fine() -> None:
    places: list[Any] = [None, torch.ones(1), np.ones(1), {}, [], ()]
    for into in places:
        check_place(into, None)
    check_place(None, "cpu")
    check_place(None, torch.device("cpu"))
