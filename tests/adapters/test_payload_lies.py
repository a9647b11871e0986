"""Headers that lie: whatever a payload says of itself is checked before anything is handed out."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec import Raw
from msgspec.msgpack import Ext, decode, encode

from stagelink.adapters.msgspec import leaves as lv
from stagelink.adapters.msgspec.placing import fill, moved
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.adapters.msgspec.staged import Staged
from stagelink.core.errors import PayloadError
from stagelink.core.payload import pack_prefix, parse, plan

torch = pytest.importorskip("torch", reason="these values are tensors, and torch is an extra")

SERIALIZER = PayloadSerializer()


def write(staged: Any) -> bytearray:
    buffer = bytearray(staged.size)
    staged.write(memoryview(buffer))
    return buffer


def load(buffer: Any) -> Any:
    return SERIALIZER.load(buffer, len(buffer))


def forged(header: Any, *lengths: int) -> bytearray:
    """A payload of this header and of zeros in buffers of these lengths."""
    leaves: list[lv.Leaf] = [(lv.write_bytes, bytes(length)) for length in lengths]
    buffers = [(length, lv.VIEW_ALIGNMENT) for length in lengths]
    return write(Staged(encode(header), leaves, buffers))


def bulk(code: int, index: Any, dtype: Any, shape: Any) -> Ext:
    return Ext(code, encode([index, dtype, shape]))


KINDS = [(lv.TENSOR, "float32"), (lv.ARRAY, "<f4")]


@pytest.mark.parametrize(("code", "dtype"), KINDS, ids=["tensor", "array"])
def test_the_forge_makes_what_is_honest(code: int, dtype: str) -> None:
    for shape in ([6], [2, 3], [6, 1, 1]):
        assert list(load(forged(bulk(code, 0, dtype, shape), 24)).shape) == shape
    assert load(forged(bulk(code, 0, dtype, []), 4)).shape == ()
    assert load(forged(bulk(code, 0, dtype, [3, 0]), 0)).shape == (3, 0)


@pytest.mark.parametrize(("code", "dtype"), KINDS, ids=["tensor", "array"])
@pytest.mark.parametrize(
    ("index", "shape", "said"),
    [
        (0, [5], r"shape \(5,\) of 4 byte items needs 20 bytes, its buffer has 24"),
        (0, [7], "needs 28 bytes, its buffer has 24"),
        (0, [2], "needs 8 bytes"),  # a short dimension would show less than was sent
        (0, [], "needs 4 bytes"),
        (0, [0], "needs 0 bytes"),
        (0, [2**62, 2**62], "its buffer has 24"),
        (0, [2**62, 4, 0], "needs 0 bytes"),
        (0, [-2, -3], "malformed"),
        (0, [-6], "malformed"),
        (0, [6.0], "malformed"),
        (0, [True, 6], "malformed"),
        (0, "6", "malformed"),
        (0, None, "malformed"),
        (0, [1] * 65, "malformed"),
        (0, [1] * 64 + [6], "malformed"),
        (1, [6], "the payload has 1 buffers, it names number 1"),
        (2**63, [6], "it names number"),
        (-1, [6], "malformed"),
        (None, [6], "malformed"),
        (0.0, [6], "malformed"),
    ],
)
def test_a_shape_or_buffer_that_is_not_there_is_refused(
    code: int, dtype: str, index: Any, shape: Any, said: str
) -> None:
    honest = bulk(code, 0, dtype, [6])
    for header in (bulk(code, index, dtype, shape), [honest, bulk(code, index, dtype, shape)]):
        with pytest.raises(PayloadError, match=said):
            load(forged(header, 24))


@pytest.mark.parametrize("code", [lv.FAR_BYTES, lv.FAR_BYTEARRAY, lv.FAR_MEMORYVIEW])
@pytest.mark.parametrize("index", [1, -1, 2**64 - 1, "0", None, [0]])
def test_bytes_of_a_missing_buffer_are_refused(code: int, index: Any) -> None:
    with pytest.raises(PayloadError):
        load(forged(Ext(code, encode(index)), 24))


@pytest.mark.parametrize(
    ("code", "dtype"),
    [(lv.TENSOR, "quint8"), (lv.TENSOR, "Tensor"), (lv.TENSOR, "__class__"), (lv.TENSOR, 5),
     (lv.TENSOR, "torch.float32"), (lv.TENSOR, []),
     (lv.ARRAY, "O"), (lv.ARRAY, "<f3"), (lv.ARRAY, 4), (lv.ARRAY, [["a", "O"]]),
     (lv.ARRAY, [["a", "<i4"], 3])],
    ids=str,
)  # fmt: skip
def test_a_dtype_that_is_none_is_refused(code: int, dtype: Any) -> None:
    with pytest.raises(PayloadError):
        load(forged(bulk(code, 0, dtype, [3]), 24))


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x90", b"\xc1", b"\x92\x00", bytes(15), bytes(17)], ids=bytes.hex
)
def test_an_extension_of_any_code_is_a_value_or_a_payload_error(data: bytes) -> None:
    for code in range(-128, 128):
        with contextlib.suppress(PayloadError):
            load(forged([Ext(code, data), {}]))


def test_a_table_that_lies_is_refused() -> None:
    value = [torch.ones(3), torch.ones(5)]
    honest = write(SERIALIZER.stage(value))
    layout = parse(honest, len(honest))
    header = bytes(honest[layout.header_start : layout.header_stop])

    for lengths in ((8, 24), (12, 16), (12, 24), (16, 16), (0, 20), (12,), ()):
        other = plan(len(header), [(length, 64) for length in lengths])
        data = bytearray((pack_prefix(other) + header).ljust(other.size, b"\0"))
        with pytest.raises(PayloadError):
            load(data)
    assert len(load(honest)) == 2


def test_a_payload_cut_short_at_any_byte_is_refused() -> None:
    honest = write(SERIALIZER.stage({"x": torch.ones(3), "y": np.ones(2), "z": b"z" * 256}))
    for size in range(len(honest)):
        with pytest.raises(PayloadError):
            SERIALIZER.load(honest[:size], size)
        with pytest.raises(PayloadError):
            SERIALIZER.load(honest, size)


def test_a_payload_that_begins_as_one_before_is_checked_all_the_same() -> None:
    honest = forged(bulk(lv.TENSOR, 0, "int64", [3]), 24)
    for number in (1, 2):
        torch.frombuffer(honest, dtype=torch.int64, offset=lv.VIEW_ALIGNMENT).fill_(number)
        assert load(bytearray(honest)).tolist() == [number] * 3
    cut = bytearray(honest[:-8])
    for size in (len(honest), len(cut)):
        with pytest.raises(PayloadError):
            SERIALIZER.load(cut, size)
    seen = SERIALIZER.load(honest, len(honest))
    assert SERIALIZER.load(honest, len(honest), writable=False).data_ptr() != seen.data_ptr()
    longer = forged(bulk(lv.TENSOR, 0, "int64", [3]), 24) + b"\0" * 8
    with pytest.raises(PayloadError):
        load(longer)


def test_a_header_that_goes_on_behind_its_tensor_is_refused() -> None:
    tree = encode(bulk(lv.TENSOR, 0, "bfloat16", [1, 1, 1, 2**16, 1]))
    layout = plan(len(tree) + 40, [(2 << 16, lv.VIEW_ALIGNMENT)])
    head = pack_prefix(layout) + tree
    assert len(head) == lv.VIEW_ALIGNMENT  # so it looks whole to who reads no further
    with pytest.raises(PayloadError, match="malformed"):
        load(bytearray(head.ljust(layout.size, b"\0")))


def test_the_header_says_dtype_and_shape_and_the_table_the_bytes() -> None:
    value = {"a": torch.zeros(3, 4, dtype=torch.bfloat16), "b": np.zeros((2, 0, 5), ">i4")}
    buffer = write(SERIALIZER.stage(value))
    layout = parse(buffer, len(buffer))
    header = decode(
        buffer[layout.header_start : layout.header_stop],
        ext_hook=lambda code, data: (code, decode(data)),
    )

    assert header == {
        "a": (lv.TENSOR, [0, "bfloat16", [3, 4]]),
        "b": (lv.ARRAY, [1, ">i4", [2, 0, 5]]),
    }
    assert layout.buffers == ((24, 64), (0, 64))


def test_items_of_every_size_are_aligned_for_each() -> None:
    sizes = ("uint8", "float64", "bool", "float16", "complex128", "int8", "int32", "bfloat16")
    value = [torch.ones(3, dtype=getattr(torch, name)) for name in sizes]
    value += [np.ones(3, np.longdouble), np.ones(1, "i1"), np.ones(5, "c16")]
    # What the face hands in is 64-aligned: a block of the pool, or memory mapped.
    room = bytearray(4096 + 64)
    start = -torch.frombuffer(room, dtype=torch.uint8).data_ptr() % 64
    staged = SERIALIZER.stage(value)
    buffer = memoryview(room)[start : start + staged.size]
    staged.write(buffer)

    again = SERIALIZER.load(buffer, staged.size)
    for sent, got in zip(value, again, strict=True):
        assert (sent == got).all()
        is_tensor = isinstance(got, torch.Tensor)
        assert (got.data_ptr() if is_tensor else got.ctypes.data) % 64 == 0
        assert is_tensor or got.flags.aligned


def test_a_long_structure_comes_back_in_its_order() -> None:
    value = [torch.full((i % 5,), i, dtype=torch.int64) for i in range(300)]
    again = load(write(SERIALIZER.stage(value)))
    assert [tensor.tolist() for tensor in again] == [tensor.tolist() for tensor in value]


# --- what loads, and is then copied out --------------------------------------------------------

BIG = Ext(lv.MAP, encode([Ext(lv.BIG_INT, b"\x7f" * 20_000), 1]))
"""A dict whose key is too long to be written in digits."""


def too_deep(depth: int) -> Raw:
    return Raw(b"\x91" * depth + b"\x01")


def test_what_can_be_hashed_still_can_once_it_is_copied() -> None:
    for inner in (Ext(lv.MEMORYVIEW, b"ab"), Ext(lv.TUPLE, encode([Ext(lv.MEMORYVIEW, b"ab")]))):
        for code in (lv.SET, lv.FROZENSET):
            value = load(forged(Ext(code, encode([inner]))))
            assert moved(value, "cpu") == value


def test_a_tensor_of_any_dtype_is_copied_bit_for_bit() -> None:
    from stagelink.adapters.msgspec.tensors import DTYPES

    for name, dtype in DTYPES.items():
        buffer = forged(bulk(lv.TENSOR, 0, name, [2]), 2 * dtype.itemsize)
        buffer[-1] = 0x55
        copy = moved(load(buffer), "cpu")
        assert copy.dtype is dtype
        again = write(SERIALIZER.stage(copy))
        assert again == buffer, name


@pytest.mark.parametrize("into", [{"b": 1}, {"a": {}}, np.zeros(3), [{"a": 1}]], ids=str)
def test_a_key_without_digits_is_refused_as_such(into: Any) -> None:
    for header in (BIG, {"a": BIG}, [BIG]):
        with pytest.raises(PayloadError, match="into= has"):
            fill(load(forged(header)), into)


def test_a_key_without_digits_has_a_path() -> None:
    with pytest.raises(PayloadError, match=r"value\[an int of 90001 bits\]"):
        SERIALIZER.stage({2**90_000: object()})


@pytest.mark.parametrize("depth", [400, 700, 900, 990])
def test_what_is_nested_too_deep_to_be_copied_is_a_payload_error(depth: int) -> None:
    try:
        value = load(forged(too_deep(depth)))
    except PayloadError:
        return
    with contextlib.suppress(PayloadError):
        moved(value, "cpu")
    into: Any = np.zeros(1)
    for _ in range(depth):
        into = [into]
    with pytest.raises(PayloadError):
        fill(value, into)


@pytest.mark.parametrize("dtype", ["S0", "<U0", "V0"])
def test_items_without_bytes_take_no_memory(dtype: str) -> None:
    array = load(forged(bulk(lv.ARRAY, 0, dtype, [1 << 40]), 0))
    assert array.nbytes == 0
    assert array.shape == (1 << 40,)


class Touchy(NamedTuple):
    """Cannot be a key."""

    x: int

    def __hash__(self) -> int:
        raise KeyError(self.x)


def test_a_class_that_fails_to_be_a_key_is_a_payload_error() -> None:
    name = f"{Touchy.__module__}:Touchy"
    item = Ext(lv.OBJECT, encode([name, "x", 1]))
    for header in (Ext(lv.SET, encode([item])), Ext(lv.MAP, encode([item, 1]))):
        with pytest.raises(PayloadError, match="KeyError"):
            load(forged(header))
