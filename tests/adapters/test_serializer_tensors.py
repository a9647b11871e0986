"""Payloads with tensors in them: all here needs torch, the rest is in test_serializer.py."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import warnings
import weakref
from dataclasses import dataclass
from enum import Enum
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelink.adapters.msgspec.leaves import encode
from stagelink.adapters.msgspec.packing import Walk
from stagelink.adapters.msgspec.prepare import prepare
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.adapters.msgspec.staged import Staged
from stagelink.core.errors import ConfigError, PayloadError

pytest.importorskip("torch", reason="these values are tensors, and torch is an extra")

import torch

from stagelink.adapters.msgspec.tensors import BITS, DTYPES, whole

SERIALIZER = PayloadSerializer()


class Kind(Enum):
    HOT = 1
    COLD = 2


@dataclass
class Kept:
    kind: Kind
    data: Any


class Odd(torch.Tensor):
    """Some library's tensor."""


def write(value: Any) -> Any:
    """The payload of *value* in a fresh ctypes array that held other bytes before."""
    staged = SERIALIZER.stage(value)
    buffer = (ctypes.c_ubyte * staged.size)(*b"\xaa" * min(staged.size, 64))
    staged.write(memoryview(buffer).cast("B"))
    return buffer


def trip(value: Any) -> Any:
    buffer = write(value)
    return SERIALIZER.load(buffer, len(buffer))


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_torch_dtype_keeps_its_bits(name: str) -> None:
    dtype = DTYPES[name]
    raw = torch.arange(256, dtype=torch.uint8).repeat(2 * dtype.itemsize)
    raw = raw % 2 if dtype is torch.bool else raw
    flat = raw.view(dtype)  # holds every byte, so NaN patterns as well

    for tensor in (
        flat,
        flat.view(-1, 2),
        flat.view(16, -1).t(),
        flat[3:9],
        flat[:0],
        flat[5:6].view(()),
    ):
        again = trip({"t": tensor})["t"]
        as_bits = BITS.get(dtype.itemsize)
        assert again.dtype is dtype
        assert again.shape == tensor.shape
        if as_bits is None:
            as_bits, again = torch.int64, torch.view_as_real(again)
        wanted = torch.view_as_real(tensor) if tensor.itemsize > 8 else tensor
        assert torch.equal(again.view(as_bits), wanted.view(as_bits))


def walked(value: Any) -> bytes:
    """The payload of *value* as it is made of a tensor among other things."""
    walk = Walk(False)
    header = encode(walk.pack(value, None, 0))
    staged = Staged(header, walk.leaves, walk.buffers)
    body = bytearray(b"\xff" * staged.size)
    staged.write(memoryview(body))
    return bytes(body)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_a_tensor_alone_makes_the_bytes_that_it_makes_among_others(name: str) -> None:
    dtype = DTYPES[name]
    flat = torch.arange(240, dtype=torch.uint8).remainder(2).repeat(dtype.itemsize).view(dtype)
    shapes = [flat, flat.view(2, 3, 40), flat[:0], flat[5:6].view(()), flat[3:9], flat.view(60, 4)]
    alone = [value for value in (*shapes, flat.view(60, 4).t()) if whole(value) is not None]

    assert len(alone) == (0 if dtype.is_complex else len(shapes))  # all but the transposed one
    for value in alone:
        assert bytes(write(value)) == walked(value)


@pytest.mark.parametrize(
    "value",
    [
        torch.complex(torch.ones(2), torch.ones(2)).conj(),
        torch.complex(torch.ones(1), torch.ones(1)).conj().imag,
        torch.ones(4, 2)[:, 0],
    ],
    ids=["conjugate", "negative", "strided"],
)
def test_what_does_not_lie_as_it_is_written_is_not_taken_alone(value: torch.Tensor) -> None:
    assert whole(value) is None
    assert torch.equal(trip(value), value)


def test_a_tensor_with_a_gradient_travels_alone_without_it() -> None:
    value = torch.ones(3, requires_grad=True)

    assert bytes(write(value)) == walked(value)
    assert not trip(value).requires_grad


def test_a_target_of_another_size_is_refused() -> None:
    staged = SERIALIZER.stage(torch.ones(3))
    with pytest.raises(PayloadError, match=f"has {staged.size} bytes, the target 5"):
        staged.write(memoryview(bytearray(5)))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.zeros(2, device="meta"), "^value: a tensor on meta"),
        (torch.zeros([1] * 65), "^value: a tensor of 65 dimensions"),
        (torch.zeros(2, 2).to_sparse(), "^value: .*to_dense"),
    ],
    ids=["meta", "dimensions", "sparse"],
)
def test_a_tensor_alone_that_cannot_travel_is_refused(value: Any, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        SERIALIZER.stage(value)


def test_twelve_bfloat16_take_24_bytes() -> None:
    empty, twelve = (torch.zeros(count, dtype=torch.bfloat16) for count in (0, 12))
    assert SERIALIZER.stage(twelve).size == SERIALIZER.stage(empty).size + 24


@pytest.mark.parametrize("rows", [8, 1024])
def test_strided_tensors_keep_their_values_and_stay_untouched(rows: int) -> None:
    base = torch.arange(rows * 1024, dtype=torch.float32).view(rows, 1024)
    before = base.clone()
    for tensor in (
        base.t(), base[1:, 3::5], base[2:3].expand(7, 1024), base[:, 0], base.unsqueeze(1),
        torch.complex(base, base).conj(), torch.complex(base, base).conj().imag,
    ):  # fmt: skip
        assert torch.equal(trip(tensor), tensor)
    assert torch.equal(base, before)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([torch.zeros(2, device="meta")], r"value\[0\]: a tensor on meta; .* no values"),
        ((torch.zeros(2).as_subclass(Odd),), r"value\[0\]: .*as_subclass"),
        ([torch.zeros([1] * 65)], r"value\[0\]: a tensor of 65 dimensions; flatten"),
        ([torch.zeros(2, 2).to_sparse()], r"value\[0\]: .*to_dense"),
    ],
    ids=map(str, count()),
)
def test_a_tensor_that_cannot_travel_is_named_by_its_path(value: Any, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        SERIALIZER.stage(value)


def test_quantized_tensors_are_refused_with_what_to_put_instead() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates them
        tensor = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
    with pytest.raises(
        PayloadError, match=r"value\['q'\]: a tensor of dtype torch.quint8; .*int_repr"
    ):
        SERIALIZER.stage({"q": tensor})


def test_a_payload_is_data_without_its_gradient() -> None:
    leaf = torch.ones(2, 3, requires_grad=True)
    for tensor in (leaf, leaf * 2, (leaf * 2).t(), torch.nn.Parameter(torch.ones(3))):
        again = trip([tensor])[0]
        assert type(again) is torch.Tensor
        assert not again.requires_grad
        assert torch.equal(again, tensor.detach())
    assert leaf.grad is None
    assert leaf.requires_grad


def test_the_last_slice_of_a_tensor_keeps_the_buffer_alive() -> None:
    buffer = write({"a": torch.arange(2000), "n": 1})
    gone = weakref.ref(buffer)
    loaded = SERIALIZER.load(buffer, len(buffer))
    del buffer

    part = loaded["a"][1:3]
    del loaded
    gc.collect()
    assert gone() is not None
    del part
    gc.collect()
    assert gone() is None


def test_copies_and_empty_tensors_do_not_keep_the_buffer() -> None:
    buffer = write([b"x" * 999, bytearray(999), torch.zeros(0, 3), np.zeros(0), "text"])
    gone = weakref.ref(buffer)
    loaded = SERIALIZER.load(buffer, len(buffer))
    del buffer
    gc.collect()

    assert gone() is None
    assert loaded[2].shape == (0, 3)


def test_views_share_the_buffer_and_the_original_does_not() -> None:
    tensor, array = torch.zeros(100), np.zeros(100)
    buffer = write([tensor, array])
    one, two = SERIALIZER.load(buffer, len(buffer))
    one += 1
    two += 1

    again = SERIALIZER.load(buffer, len(buffer))
    assert again[0].sum() == again[1].sum() == 100
    assert tensor.sum() == array.sum() == 0


def test_read_only_memory_gives_read_only_arrays_and_copied_tensors() -> None:
    data = bytes(write([torch.arange(9), np.arange(9)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor, array = SERIALIZER.load(data, len(data))
        view, _ = PayloadSerializer(readonly_views=True).load(data, len(data))

    assert not array.flags.writeable
    tensor.zero_()
    assert torch.equal(view, torch.arange(9))
    assert torch.equal(SERIALIZER.load(data, len(data))[0], torch.arange(9))


def test_what_others_read_too_cannot_be_written() -> None:
    buffer = write([torch.arange(9), np.arange(9), memoryview(bytes(300)), {"z": np.zeros(0)}])
    before = bytes(buffer)
    tensor, array, view, _ = SERIALIZER.load(buffer, len(buffer), writable=False)

    tensor.zero_()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match=r"WRITEABLE|writeable"):
        array.flags.writeable = True
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1
    assert bytes(buffer) == before


@pytest.mark.parametrize("kept", [0, 1])
def test_read_only_views_share_the_buffer_and_keep_it_alive(kept: int) -> None:
    buffer = write([torch.arange(9), np.arange(9)])
    gone = weakref.ref(buffer)
    loaded = PayloadSerializer(readonly_views=True).load(buffer, len(buffer), writable=False)
    buffer[-72] = buffer[-72 - 128] = 7  # the first items of both
    part = loaded[kept][:2]
    del loaded, buffer
    gc.collect()

    assert gone() is not None
    assert part[0] == 7
    del part
    gc.collect()
    assert gone() is None


def test_gaps_carry_no_old_bytes() -> None:
    value = [
        torch.ones(3, dtype=torch.uint8),
        b"x" * 257,
        np.zeros(1, np.dtype("i1,f8", align=True)),
    ]
    assert bytes(write(value)) == bytes(write(value))
    staged = SERIALIZER.stage(value)
    dirty = bytearray(b"\xff" * staged.size)
    staged.write(memoryview(dirty))
    assert dirty == bytes(write(value))


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float8_e4m3fn, "uint8"])
def test_a_prepared_tensor_is_filled_in_place(dtype: Any) -> None:
    room = prepare((64, 8), dtype)
    block = bytearray(b"\xff" * (room.size + 5))
    tensor = room.open(block)
    tensor.copy_(torch.full((64, 8), 2.0))

    again = SERIALIZER.load(block, room.size)
    assert again.dtype is tensor.dtype
    assert torch.equal(again.float(), torch.full((64, 8), 2.0))
    assert bytes(block[: room.size]) == bytes(write(tensor))


def test_rooms_of_one_kind_do_not_meet() -> None:
    size = prepare((3,), "int64").size
    blocks = bytearray(size), bytearray(size)
    tensors = [prepare((3,), "int64").open(block) for block in blocks]

    for number, tensor in enumerate(tensors):
        tensor.fill_(number)

    for number, block in enumerate(blocks):
        assert SERIALIZER.load(block, size).tolist() == [number] * 3


def test_a_bad_room_is_refused() -> None:
    for shape, dtype in (((-1,), "uint8"), ((1.5,), "uint8"), ((1,), "no"), ((1,), np.dtype("O"))):
        with pytest.raises(ConfigError):
            prepare(shape, dtype)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="writable"):
        prepare((9,), "uint8").open(bytes(500))


RICH = [{"a": (1, 2.5, "x"), (1,): 2**70}, torch.ones(3), np.ones(3), np.float32(1), b"z" * 300,
        np.zeros(2, "i4,f8"), memoryview(b"m" * 300), bytearray(3), {1, "a"}, 1j, Kind.HOT, Kept(Kind.COLD, [None])]  # fmt: skip


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_mutated_payload_raises_nothing_else(data: st.DataObject) -> None:
    buffer = bytearray(write(RICH))
    for _ in range(data.draw(st.integers(1, 3))):
        buffer[data.draw(st.integers(0, len(buffer) - 1) | st.integers(104, 410))] = data.draw(
            st.integers(0, 255)
        )
    with contextlib.suppress(PayloadError):
        SERIALIZER.load(buffer, len(buffer))


def test_the_page_shows_the_payload_of_its_example() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "wire.md"
    shown = re.findall(r"```hex\n(.*?)```", page.read_text(), re.DOTALL)[1]
    value = {"x": torch.tensor([1.0, 2.0], dtype=torch.bfloat16)}
    assert bytes.fromhex(shown) == bytes(write(value))
