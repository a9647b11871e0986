"""Payloads of plain values and arrays; those of tensors are in test_serializer_tensors.py."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from collections import OrderedDict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelink.adapters.msgspec.prepare import prepare
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.core.errors import PayloadError

SERIALIZER = PayloadSerializer()


def write(value: Any) -> Any:
    """The payload of *value* in a fresh ctypes array that held other bytes before."""
    staged = SERIALIZER.stage(value)
    buffer = (ctypes.c_ubyte * staged.size)(*b"\xaa" * min(staged.size, 64))
    staged.write(memoryview(buffer).cast("B"))
    return buffer


def trip(value: Any) -> Any:
    buffer = write(value)
    return SERIALIZER.load(buffer, len(buffer))


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=400)
)
PLAIN_KEYS: st.SearchStrategy[Any] = SCALARS.filter(lambda key: key == key)  # noqa: PLR0124
KEYS = PLAIN_KEYS | st.tuples(PLAIN_KEYS, PLAIN_KEYS)
TREES = st.recursive(
    SCALARS | st.binary(max_size=400).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) for a, b in zip(one.items(), other.items(), strict=True)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)
    return bool(one == other)


@given(TREES)
@settings(max_examples=150, deadline=None)
def test_any_tree_comes_back_with_its_types(value: Any) -> None:
    assert same(trip(value), value)


@pytest.mark.parametrize(
    "value",
    [None, False, 0, 0.0, "", b"", bytearray(), [], (), {}, -(2**63), 2**64 - 1, 2**64, -(2**200),
     [2**70, "x"], {2**70: 1}, {(1, ("a", b"b")): 1, True: 2, None: 3, 2.5: 4, b"x": 5},
     {1, "a", (2, 3)}, frozenset(), {frozenset({1}), 2**70}, 1j, complex("nan-infj"), -0j,
     {(1, 2): [0.0, 0.0]}, b"x" * 255, b"x" * 256, bytearray(b"y" * 2_000_000),
     b"x" * 2_000_000],
    ids=map(str, count()),
)  # fmt: skip
def test_edge_values_come_back_as_they_are(value: Any) -> None:
    assert same(trip(value), value)


ARRAYS = [
    np.arange(24, dtype=">i2").reshape(2, 3, 4).transpose(2, 0, 1),
    np.array(3.5),
    np.zeros((3, 0, 2), np.float16),
    np.array([1 + 2j, float("nan")]),
    np.array([True, False]),
    np.array(["ab", "c"]),
    np.array([b"ab", b"c"]),
    np.array(["2020-01-01", "NaT"], "M8[ns]"),
    np.array([1, 2], "m8[3s]"),
    np.zeros(3, "V5"),
    np.zeros(3, [("a", "<f4"), ("b", ">i8", (2, 3)), ("c", [("d", "S3")])]),
    np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    np.arange(10, dtype=np.longdouble)[::-1],
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
]


@pytest.mark.parametrize("array", ARRAYS, ids=map(str, count()))
def test_arrays_keep_dtype_shape_and_bits(array: Any) -> None:
    again = trip([array])[0]
    assert type(again) is np.ndarray
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert again.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "scalar",
    [np.float32(1.5), np.int8(-1), np.bool_(True), np.float64("nan"), np.str_("ab"),
     np.bytes_(b"a"),
     np.datetime64("2020-01-01", "D"), np.complex64(1j), np.zeros(1, "i4,f8")[0], np.str_("")],
    ids=map(str, count()),
)  # fmt: skip
def test_numpy_scalars_keep_their_type(scalar: Any) -> None:
    again = trip({"s": scalar})["s"]
    assert type(again) is type(scalar)
    assert again.tobytes() == scalar.tobytes()


def _function() -> None: ...


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"meta": [0, 1, 2, _function]}, r"value\['meta'\]\[3\]: <class 'function'>"),
        ({"o": OrderedDict()}, r"value\['o'\]: .*pass a plain dict"),
        ([np.array([object()])], r"value\[0\]: .*astype"),
        ([np.ma.zeros(3)], r"value\[0\]: .*asarray"),
        ({frozenset(): 1}, r"value: a key frozenset\(\)"),
        (["ok", {"x": "\ud800"}], r"value\[1\]\['x'\]: a str with a lone surrogate at 0"),
        ([memoryview(bytes(64)).cast("i")], r"value\[0\]: a memoryview .*cast"),
    ],
    ids=map(str, count()),
)
def test_what_cannot_travel_is_named_by_its_path(value: Any, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        SERIALIZER.stage(value)


def test_nesting_ends_at_a_hundred() -> None:
    for kind in (lambda inner: [inner], lambda inner: (inner,), lambda inner: {"k": inner}):
        value: Any = [kind(0)]
        for _ in range(98):
            value = kind(value)
        assert same(trip(value), value)
        with pytest.raises(PayloadError, match="nested deeper than 100"):
            SERIALIZER.stage(kind(kind(kind([kind(value)]))))


def test_a_cycle_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(PayloadError, match="cycle"):
        SERIALIZER.stage(value)


@pytest.mark.parametrize(
    "make",
    [lambda: np.arange(2000), lambda: memoryview(bytes(2000))],
    ids=["array", "memoryview"],
)
def test_the_last_slice_keeps_the_buffer_alive(make: Any) -> None:
    buffer = write({"a": make(), "n": 1})
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


def test_a_target_of_another_size_is_refused() -> None:
    staged = SERIALIZER.stage(1)
    with pytest.raises(PayloadError, match="the target"):
        staged.write(memoryview(bytearray(staged.size + 1)))


def test_a_numpy_dtype_prepares_an_array() -> None:
    room = prepare([3], np.dtype("f4"))
    block = bytearray(room.size)
    room.open(block)[:] = [1, 2, 3]
    assert SERIALIZER.load(block, room.size).tolist() == [1, 2, 3]


def test_no_framework_is_imported_for_plain_values() -> None:
    code = (
        "import sys; from stagelink.adapters.msgspec.serializer import PayloadSerializer as S\n"
        "s = S().stage({'a': [1, (2,), b'x' * 999]}); b = bytearray(s.size)\n"
        "s.write(memoryview(b)); S().load(b, s.size)\n"
        "assert not {'torch', 'numpy', 'pickle'} & set(sys.modules), 'imported'"
    )
    root = next(path for path in map(Path, sys.path) if (path / "stagelink").is_dir())
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(root)})
