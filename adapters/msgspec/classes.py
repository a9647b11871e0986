"""Instances of the user's own classes: dataclasses, structs, named tuples, enum members.

A payload names a class as ``module:qualname``. Nothing is imported on behalf of these words, and
no attribute hook runs: the class must lie, under that very name, in a module that this process
has imported before, and must be of one of the four kinds.
"""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from enum import Enum, Flag
from functools import reduce
from operator import or_
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.msgpack import Ext

from stagelink.adapters.msgspec.leaves import ENUM, OBJECT, encode
from stagelink.adapters.msgspec.paths import Field, Path, render
from stagelink.core.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stagelink.adapters.msgspec.packing import Walk
    from stagelink.adapters.msgspec.unpacking import Load

    Build = Callable[[Any, Sequence[Any]], Any]

REMEDY = "import its module before the value is used, or put a dict of it"


def packer(cls: type) -> Callable[[Walk, Any, Path, int], Ext] | None:
    """How to pack instances of *cls*; None if it is of none of the four kinds."""
    if issubclass(cls, Enum):
        return pack_enum
    return pack_object if _kind(cls) else None


def pack_object(walk: Walk, value: Any, path: Path, depth: int) -> Ext:  # noqa: ANN401
    """Class, names and values of the declared fields; what else the instance holds stays here."""
    cls = type(value)
    name = _checked_name(cls, path)
    kind = _kind(cls)
    assert kind is not None
    flat = [name]
    for field in kind[0]:
        try:
            inner = getattr(value, field)
        except AttributeError:
            msg = f"{render(path)}: field {field!r} of {name} was never set"
            raise PayloadError(msg, remedy="set it, or give it a default") from None
        flat += [field, walk.pack(inner, (path, Field(field)), depth + 1)]
    return Ext(OBJECT, encode(flat))


def pack_enum(_walk: Walk, value: Enum, path: Path, _depth: int) -> Ext:
    """Class and name of a member; of a combination of flags, the names of its parts."""
    cls = type(value)
    name = _checked_name(cls, path)
    if cls.__members__.get(value.name or "") is value:
        return Ext(ENUM, encode([name, value.name]))
    parts = [part for part in cls if isinstance(part, Flag) and _is_part(part, value)]
    if not issubclass(cls, Flag) or _united(cls, parts) != value:
        msg = f"{render(path)}: {value!r} is made of no members of {name}"
        raise PayloadError(msg, remedy="put its value")
    return Ext(ENUM, encode([name, *(part.name for part in parts)]))


def unpack_object(load: Load, data: memoryview) -> Any:  # noqa: ANN401
    """The instance of :func:`pack_object`, made without its ``__init__`` where that can be."""
    name, *flat = load.items(data)
    cls = _find(name)
    kind = _kind(cls)
    if kind is None:
        raise _unknown(name, "is no dataclass, Struct or named tuple here")
    names, build = kind
    if tuple(flat[::2]) != names or len(flat) != 2 * len(names):
        theirs = ", ".join(map(str, flat[::2]))
        msg = f"class {name} differs between versions: it has the fields {', '.join(names)} here, "
        raise PayloadError(msg + f"{theirs:.200} there", remedy="run one version on both sides")
    try:
        return build(cls, flat[1::2])
    except Exception as error:  # the user's __post_init__ or setter may raise whatever it likes
        msg = f"an instance of {name} cannot be made again: {error}"
        raise PayloadError(msg, remedy="put a dict of it") from error


def unpack_enum(load: Load, data: memoryview) -> Enum:
    """The member of :func:`pack_enum`."""
    name, *members = load.items(data)
    cls = _find(name)
    if not issubclass(cls, Enum):
        raise _unknown(name, "is no enum here")
    try:
        parts = [cls.__members__[member] for member in members]
    except (KeyError, TypeError):
        msg = f"enum {name} differs between versions: it has no {members!r:.80} here"
        raise PayloadError(msg, remedy="run one version on both sides") from None
    if len(parts) == 1:
        return parts[0]
    if not issubclass(cls, Flag):
        msg = f"{len(parts)} members of enum {name} are no value"
        raise PayloadError(msg)
    return _united(cls, parts)


def _find(name: object) -> type:
    """The class of that name, if this process has imported it already.

    Only dictionaries are read: getattr() would let a lazy module import something.
    """
    module_name, _, qualname = name.partition(":") if isinstance(name, str) else ("", "", "")
    found: Any = sys.modules.get(module_name)
    for step in qualname.split("."):
        found = _names_in(found).get(step)
    if not issubclass(type(found), type) or _name(found) != name:
        raise _unknown(name, "is not known here")
    return found  # type: ignore[no-any-return]


def _names_in(holder: object) -> Mapping[str, Any]:
    """What a module or class holds, by the descriptors of these types themselves."""
    kinds: tuple[Any, ...] = (ModuleType, type)
    for kind in kinds:
        if issubclass(type(holder), kind):
            return kind.__dict__["__dict__"].__get__(holder)  # type: ignore[no-any-return]
    return {}


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _checked_name(cls: type, path: Path) -> str:
    name = _name(cls)
    try:
        found = _find(name)
    except PayloadError:
        found = None
    if found is not cls or not _makeable(cls):
        msg = f"{render(path)}: class {name} could not be found or made again by its name"
        remedy = "define it at the top of a module, from no builtin type, or put a dict of it"
        raise PayloadError(msg, remedy=remedy)
    return name


def _makeable(cls: type) -> bool:
    """Whether an empty instance may be made: not of a dataclass that is a dict or exception."""
    if issubclass(cls, (Enum, tuple)) or not is_dataclass(cls):
        return True
    return all(base is object or base.__module__ != "builtins" for base in cls.__mro__)


def _kind(cls: type) -> tuple[tuple[str, ...], Build] | None:
    """The declared fields of *cls* and how to make an instance of their values."""
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__, _build_struct
    names = getattr(cls, "_fields", None)
    if issubclass(cls, tuple) and isinstance(names, tuple):
        return names, tuple.__new__
    if is_dataclass(cls):
        return tuple(field.name for field in fields(cls)), _build_dataclass
    return None


def _build_dataclass(cls: type, values: Sequence[Any]) -> Any:  # noqa: ANN401
    """As pickle would: neither ``__init__`` nor ``__post_init__`` runs, frozen or not."""
    instance: Any = object.__new__(cls)
    for field, value in zip(fields(cls), values, strict=True):
        object.__setattr__(instance, field.name, value)
    return instance


def _build_struct(cls: type[msgspec.Struct], values: Sequence[Any]) -> Any:  # noqa: ANN401
    """By its constructor: msgspec has no other way, so ``__post_init__`` runs."""
    return cls(**dict(zip(cls.__struct_fields__, values, strict=True)))


def _is_part(part: Flag, whole: Enum) -> bool:
    return bool(part.value) and part.value & whole.value == part.value


def _united(cls: type[Flag], parts: Sequence[Enum]) -> Flag:
    return reduce(or_, parts, cls(0))


def _unknown(name: object, why: str) -> PayloadError:
    return PayloadError(f"class {name!s:.200} {why}", remedy=REMEDY)
