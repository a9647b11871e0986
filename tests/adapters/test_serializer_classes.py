"""Instances of classes in payloads: the same type comes back, and no name makes code run."""

from __future__ import annotations

import enum
import sys
import types
from collections import namedtuple
from dataclasses import dataclass, field, make_dataclass
from itertools import count
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
import pytest
from msgspec.msgpack import Ext, encode

from stagelink.adapters.msgspec.leaves import COMPLEX, ENUM, OBJECT
from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.adapters.msgspec.staged import Staged
from stagelink.core.errors import PayloadError

SERIALIZER = PayloadSerializer()


def write(staged: Any) -> bytearray:
    buffer = bytearray(staged.size)
    staged.write(memoryview(buffer))
    return buffer


def trip(value: Any) -> Any:
    buffer = write(SERIALIZER.stage(value))
    return SERIALIZER.load(buffer, len(buffer))


def forged(code: int, *items: Any) -> bytearray:
    """A payload whose one value is an extension of these items."""
    return write(Staged(encode(Ext(code, encode(list(items)))), [], []))


def load_forged(code: int, *items: Any) -> Any:
    buffer = forged(code, *items)
    return SERIALIZER.load(buffer, len(buffer))


class Mode(enum.Enum):
    PREFILL = 1
    FIRST = 1  # noqa: PIE796 - an alias
    DECODE = "decode"


class Level(enum.IntEnum):
    LOW = 0


class Traits(enum.Flag):
    FAST = 1
    HOT = 4


@dataclass
class Step:
    number: int
    tokens: Any = None
    kind: ClassVar[str] = "step"


@dataclass(frozen=True)
class Frozen:
    step: Step
    mode: Mode = Mode.DECODE
    derived: int = field(init=False, default=3)

    def __post_init__(self) -> None:
        if self.step is None:
            raise AssertionError("made without __init__, so this never runs on arrival")


@dataclass(frozen=True, eq=True)
class Slotted:
    __slots__ = ("a", "b")
    a: int
    b: tuple[int, ...]


class Outer:
    @dataclass
    class Inner:
        x: int


class Point(NamedTuple):
    x: int
    y: Any = 0


Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024


class Record(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    data: Any = None


class Checked(msgspec.Struct):
    x: int

    def __post_init__(self) -> None:
        if self.x < 1:
            raise ValueError("too small")


@dataclass
class Words(dict):  # type: ignore[type-arg]
    x: int = 0


@pytest.mark.parametrize(
    "value",
    [
        Step(3, [1, None, 0]),
        Step(0),
        Frozen(Step(2), Mode.PREFILL),
        Slotted(1, (2, 3)),
        Outer.Inner(5),
        Point(1, Point(2)),
        Pair("a", b"b"),
        Record(name="r", data={"x": (Record(name=""), {1, 2})}),
        Mode.PREFILL,
        Mode.FIRST,
        Level.LOW,
        Traits.HOT,
        Traits.HOT | Traits.FAST,
        Traits(0),
        [Step(1), Step(2)],
        {Mode.DECODE: Level.LOW, Level.LOW: 1},
        {"deep": {"er": (Step(2**70), Frozen(Step(1)))}},
        {Mode.DECODE, Slotted(1, ())},
    ],
    ids=map(str, count()),
)
def test_an_instance_comes_back_as_its_own_type(value: Any) -> None:
    again = trip(value)
    assert type(again) is type(value)
    assert again == value
    if isinstance(value, enum.Enum):
        assert again is value


def test_fields_may_hold_arrays_which_are_views() -> None:
    again = trip(Step(1, {"x": np.arange(300)}))
    assert again.tokens["x"].tolist() == list(range(300))
    assert again.tokens["x"].base is not None


def test_a_dataclass_is_made_without_its_init(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = write(SERIALIZER.stage([Step(1), Frozen(Step(1))]))
    for cls in (Step, Frozen):
        monkeypatch.setattr(cls, "__init__", lambda *_: 1 / 0)
        monkeypatch.setattr(cls, "__post_init__", lambda *_: 1 / 0, raising=False)

    step, frozen = SERIALIZER.load(buffer, len(buffer))
    assert (step.number, frozen.derived) == (1, 3)


def test_a_struct_whose_check_fails_on_arrival_is_a_payload_error() -> None:
    assert trip(Checked(2)).x == 2
    with pytest.raises(PayloadError, match=r":Checked cannot be made again: too small"):
        load_forged(OBJECT, f"{__name__}:Checked", "x", 0)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": Step(1, [object])}, r"value\['a'\]\.tokens\[0\]: <class 'type'> cannot"),
        (
            [make_dataclass("Dynamic", ["x"])(1)],
            r"value\[0\]: class .*:Dynamic could not be found",
        ),
        ([Words()], r"value\[0\]: class .*:Words could not be .*from no builtin type"),
        ([Frozen.__new__(Frozen)], r"value\[0\]: field 'step' of .*:Frozen was never set"),
    ],
    ids=["field", "dynamic", "dict", "unset"],
)
def test_an_instance_that_cannot_travel_is_named_by_its_path(value: Any, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        SERIALIZER.stage(value)


def test_a_class_of_a_function_is_refused() -> None:
    @dataclass
    class Local:
        x: int

    with pytest.raises(PayloadError, match="top of a module"):
        SERIALIZER.stage(Local(1))


HERE = __name__


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("xml.dom.expatbuilder:Namespaces", "is not known here"),  # not imported, and never is
        ("os:system", "is not known here"),
        ("subprocess:Popen", "is no dataclass"),
        ("builtins:dict", "is no dataclass"),
        ("builtins:eval", "is not known here"),
        (f"{HERE}:Other", "is not known here"),
        (f"{HERE}:Step.__init__", "is not known here"),
        (f"{HERE}:Step.__class__", "is not known here"),
        (f"{HERE}:pytest.Item", "is not known here"),
        (f"{HERE}:Alias", "is not known here"),
        (f"{HERE}:", "is not known here"),
        (":Step", "is not known here"),
        ("", "is not known here"),
        (7, "is not known here"),
        (None, "is not known here"),
        ([], "is not known here"),
    ],
    ids=str,
)
def test_a_remote_name_reaches_nothing_but_known_classes(name: Any, why: str) -> None:
    before = set(sys.modules)
    with pytest.raises(PayloadError, match=why + ".*import its module before"):
        load_forged(OBJECT, name, "x", 1)
    with pytest.raises(PayloadError, match=r"is not known here|is no enum"):
        load_forged(ENUM, name, "X")
    assert set(sys.modules) == before


Alias = Step


def test_no_attribute_hook_of_a_module_runs() -> None:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

    sys.modules["stagelink_lazy"] = Lazy("stagelink_lazy")
    try:
        with pytest.raises(PayloadError, match="is not known here"):
            load_forged(OBJECT, "stagelink_lazy:Thing", "x", 1)
    finally:
        del sys.modules["stagelink_lazy"]


@pytest.mark.parametrize(
    "items",
    [
        ("number", 1),
        ("number", 1, "tokens", 2, "more", 3),
        ("tokens", 1, "number", 2),
        ("number", 1, "token", 2),
        (),
    ],
)
def test_other_fields_are_another_version(items: tuple[Any, ...]) -> None:
    said = "Step differs between versions: it has the fields number, tokens here, "
    with pytest.raises(PayloadError, match=said):
        load_forged(OBJECT, f"{HERE}:Step", *items)


@pytest.mark.parametrize(
    ("name", "members", "said"),
    [
        ("Mode", ["OTHER"], "enum .*Mode differs between versions: it has no"),
        ("Mode", [[]], "differs between versions"),
        ("Mode", [], "0 members of enum"),
        ("Mode", ["PREFILL", "DECODE"], "2 members of enum"),
        ("Step", ["x"], "is no enum here"),
    ],
)
def test_other_members_are_another_version(name: str, members: list[Any], said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        load_forged(ENUM, f"{HERE}:{name}", *members)


@pytest.mark.parametrize(
    "items", [(), (f"{HERE}:Step", "number"), (f"{HERE}:Pair", "left", 1, "right")]
)
def test_a_malformed_instance_is_a_payload_error(items: tuple[Any, ...]) -> None:
    with pytest.raises(PayloadError):
        load_forged(OBJECT, *items)


@pytest.mark.parametrize("bits", [b"", bytes(15), bytes(17)])
def test_a_complex_number_of_another_length_is_refused(bits: bytes) -> None:
    data = write(Staged(encode(Ext(COMPLEX, bits)), [], []))

    with pytest.raises(PayloadError, match=f"16 bytes, not {len(bits)}"):
        SERIALIZER.load(data, len(data))
