"""Values in the form of vLLM-Omni's connectors, there and back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelink.adapters.vllm_omni_mori import values
from stagelink.core.errors import PayloadError

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

pack = msgspec.msgpack.encode
TYPES = [name for name in values.TORCH_TYPES if hasattr(torch, name)]
TREES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=9) | st.binary(max_size=9)
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)  # fmt: skip


def marked(marker: str, kind: str, name: Any, shape: Any, data: Any) -> bytes:
    return pack({marker: True, kind: name, "shape": shape, "data": data})


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: Any
    y: int


@settings(max_examples=100, deadline=None)
@given(TREES)
def test_plain_trees_pass_there_and_back(tree: Any) -> None:
    form = values.encode({"tree": tree})

    assert not form.plain
    assert form.data == pack({"tree": tree})
    assert values.decode(form.data) == {"tree": tree}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (2, 3)], ids=str)
def test_tensors_of_every_type_and_shape_pass(name: str, shape: tuple[int, ...]) -> None:
    size = values.TORCH_TYPES[name] * int(np.prod(shape))
    data = torch.frombuffer(bytearray(b"\1" * size), dtype=torch.uint8) if size else None
    kind = getattr(torch, name)
    tensor = data.view(kind).reshape(shape) if data is not None else torch.empty(shape, dtype=kind)

    found = values.decode(values.encode({"t": tensor}).data)["t"]

    assert (found.dtype, tuple(found.shape)) == (kind, shape)
    assert bytes(values.encode(found).data) == bytes(values.encode(tensor).data) == b"\1" * size


def test_strides_and_gradients_do_not_travel() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t().requires_grad_()

    found = values.decode(values.encode([tensor]).data)[0]

    assert torch.equal(found, tensor)
    assert not found.requires_grad
    assert values.encode(tensor).plain


@pytest.mark.parametrize("kind", ["<f4", ">i2", "|u1", "?", "<M8[ns]", "<U3", "S2", "<c16"])
def test_arrays_of_data_pass(kind: str) -> None:
    array = np.zeros((2, 3), dtype=kind)

    found = values.decode(values.encode({"a": array}).data)["a"]

    assert found.dtype == array.dtype
    assert (found == array).all()


def test_dataclasses_enums_and_slices_come_as_what_theirs_makes_of_them() -> None:
    value = {"point": Point(torch.ones(1), 2), "colour": Colour.RED, "cut": slice(1, None, 2)}

    found = values.decode(values.encode(value).data)

    assert found == {"point": {"x": torch.ones(1), "y": 2}, "colour": "red", "cut": [1, None, 2]}


@pytest.mark.parametrize(
    "value", [b"", b"abc", bytearray(b"abc"), memoryview(b"abc")], ids=range(4)
)
def test_bytes_are_plain(value: Any) -> None:
    assert values.encode(value) == values.Form(memoryview(value), plain=True)
    assert values.plain_size(value) == len(value)


def test_what_is_plain_and_how_large_is_known_beforehand() -> None:
    assert values.plain_size(torch.zeros(3, dtype=torch.bfloat16)) == 6
    others: list[Any] = [
        torch.zeros(2).to_sparse(), np.zeros(2), {}, "text", None, 1
    ]  # fmt: skip
    for packed in others:
        assert values.plain_size(packed) == -1


@pytest.mark.parametrize(
    "value",
    [1j, object(), {"a": {"b": object()}}, 2**70, np.array([object()]), torch.zeros(2).to_sparse(),
     {"t": torch.zeros(2).to_sparse()}, "\ud800", {(1, 2): {3: {}}, object(): 1}],
    ids=range(9),
)  # fmt: skip
def test_what_has_no_form_is_one_typed_error(value: Any) -> None:
    with pytest.raises(PayloadError) as caught:
        values.encode(value)
    assert caught.value.remedy


T, A, P = values.TENSOR, values.ARRAY, values.PICTURE


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"\x91", pack(1) + b"x", b"\x91" * 100_000,
        pack({T: True}), marked(T, "dtype", "float32", [2], b"1234567"),
        marked(T, "dtype", "float32", [-1], b"1234"), marked(T, "dtype", "float32", [1.0], b"1234"),
        marked(T, "dtype", "float32", [True], b"1234"), marked(T, "dtype", "float32", [1 << 61] * 9, b""),
        marked(T, "dtype", "load", [1], b"1"), marked(T, "dtype", "__class__", [1], b"1"),
        marked(T, "dtype", 7, [1], b"1"), marked(T, "dtype", "uint8", 1, b"1"),
        marked(T, "dtype", "uint8", [1], "1"), marked(T, "dtype", "uint8", [1] * 33, b"1"),
        marked(A, "dtype", "|O", [1], b"12345678"), marked(A, "dtype", "<V4", [1], b"1234"),
        marked(A, "dtype", "f4,f4", [1], b"12345678"), marked(A, "dtype", "<f4" * 20, [1], b"1234"),
        marked(A, "dtype", "<f4", [2], b"1234"), marked(A, "dtype", "<q!", [1], b"1234"),
        marked(A, "dtype", "|S0", [5], b""),
        marked(P, "mode", "RGB", [2, 2], b"1234"), marked(P, "mode", "1", [2, 2], b"1234"),
        marked(P, "mode", "eval", [1, 1, 1], b"1"), marked(P, "mode", "RGB", [1, 1, 3], b"12"),
        marked(P, "mode", "L", [0, 5], b""),
    ],
    ids=range(29),
)  # fmt: skip
def test_what_is_malformed_is_one_typed_error(data: bytes) -> None:
    with pytest.raises(PayloadError):
        values.decode(data)


def test_a_picture_passes_where_pillow_is_and_else_says_what_to_install() -> None:
    data = marked(P, "mode", "RGB", [1, 2, 3], b"abcdef")
    try:
        from PIL import Image
    except ImportError:
        with pytest.raises(PayloadError, match="Pillow"):
            values.decode(data)
        return
    picture = values.decode(data)
    assert (picture.mode, picture.size, picture.tobytes()) == ("RGB", (2, 1), b"abcdef")
    assert isinstance(picture, Image.Image)
    assert bytes(values.encode(picture).data) == data
