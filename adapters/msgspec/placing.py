"""A loaded value copied out of its memory: into the caller's tensors, or to a device."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from stagelink.adapters.msgspec.paths import Path, render, shown
from stagelink.core.errors import ConfigError, PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def check_place(into: object, device: object) -> None:
    """Whether a value can be copied there at all; before anything is fetched.

    Raises:
        ConfigError: both are given, or *into* is nothing to copy into, or *device* is not here.
    """
    if into is not None and device is not None:
        msg = "into= and device= exclude each other"
        raise ConfigError(msg, remedy="pass a tensor of that device as into=")
    if into is not None and not (_is_bulk(into) or isinstance(into, (dict, list, tuple))):
        msg = f"into= is of {type(into)}"
        raise ConfigError(msg, remedy="pass a tensor, an array, or a dict, list or tuple of them")
    if device is not None:
        _check_device(device)


def fill(value: Any, into: Any) -> Any:  # noqa: ANN401
    """Copy *value* into the tensors and arrays of *into*, which is returned.

    Dicts, lists and tuples must match in keys and length, tensors and arrays in shape and dtype;
    all is checked before a byte is copied. Other items of a dict or list are replaced.

    Raises:
        PayloadError: they do not match; both sides' shapes are told.
    """
    match = _Match()
    with _bounded():
        match.whole(value, into, None)
    for source, target in match.copies:
        _copy(source, target)
    for container, key, item in match.replaced:
        container[key] = item
    return into


def moved(value: Any, device: object) -> Any:  # noqa: ANN401
    """*value* with every tensor copied to *device*, and every other view copied as well.

    Containers are made anew; instances, which a load has just made, are changed in place.

    Raises:
        PayloadError: it is nested too deep.
    """
    with _bounded():
        return _mapped(value, lambda tensor: _moved(tensor, device))


@contextmanager
def _bounded() -> Iterator[None]:
    """A value may be nested deeper than we can follow, for reading it takes less of the stack."""
    try:
        yield
    except RecursionError as error:
        msg = "the value is nested too deep to be copied"
        raise PayloadError(msg, remedy="get it without into= and device=") from error


def _moved(tensor: Any, device: object) -> Any:  # noqa: ANN401
    from stagelink.adapters.msgspec.tensors import moved_bits  # noqa: PLC0415 - heavy

    return moved_bits(tensor, device)


class _Match:
    """One pass over a value and its place: what is to be copied where, what is replaced."""

    __slots__ = ("copies", "replaced")

    def __init__(self) -> None:
        self.copies: list[tuple[Any, Any]] = []
        self.replaced: list[tuple[Any, Any, Any]] = []

    def whole(self, value: Any, into: Any, path: Path) -> None:  # noqa: ANN401
        if _is_bulk(into):
            if _told(value) != _told(into):
                raise _mismatch(value, into, path)
            self.copies.append((value, into))
            return
        keys = _keys(value)
        if keys is None or type(value) is not type(into) or keys != _keys(into):
            raise _mismatch(value, into, path)
        for key in keys:
            self.item(value, into, key, (path, key))

    def item(self, value: Any, into: Any, key: Any, path: Path) -> None:  # noqa: ANN401
        item, place = value[key], into[key]
        nested = _keys(place) is not None and type(item) is type(place)
        if _is_bulk(place) or nested:
            self.whole(item, place, path)
        elif type(into) is not tuple:
            self.replaced.append((into, key, moved(item, "cpu")))


def _mismatch(value: Any, into: Any, path: Path) -> PayloadError:  # noqa: ANN401
    msg = f"{render(path)}: {_told(value)} came, into= has {_told(into)}"
    return PayloadError(msg, remedy="make into= like what is put")


def _keys(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return value.keys()
    return range(len(value)) if isinstance(value, (list, tuple)) else None


def _told(value: Any) -> str:  # noqa: ANN401
    """Kind, dtype and shape: two that say the same match."""
    if _is_bulk(value):
        kind = "a tensor" if _is_tensor(value) else "an array"
        return f"{kind} of {value.dtype} and shape {list(value.shape)}"
    if isinstance(value, dict):
        return f"a dict of {sorted(k if type(k) is str else shown(k) for k in value)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _copy(source: Any, target: Any) -> None:  # noqa: ANN401
    """Bit for bit, for what matches."""
    try:
        if _is_tensor(target):
            from stagelink.adapters.msgspec.tensors import copy_bits  # noqa: PLC0415 - heavy

            copy_bits(source, target.detach())
        else:
            target[...] = source
    except (RuntimeError, ValueError) as error:  # torch's and numpy's own refusals
        msg = f"{_told(target)} cannot be written: {error}"
        raise PayloadError(msg, remedy="pass one whose items are writable and apart") from error


def _mapped(value: Any, move: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    if _is_bulk(value):
        return move(value) if _is_tensor(value) else value.copy()
    if isinstance(value, memoryview):  # of a set, it must be hashable still
        return memoryview(bytes(value) if value.readonly else bytearray(value))
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_mapped(item, move) for item in value]
        return (
            tuple.__new__(type(value), items) if isinstance(value, tuple) else type(value)(items)
        )
    if isinstance(value, dict):
        return {
            key if type(key) is str else _mapped(key, move): _mapped(item, move)
            for key, item in value.items()
        }
    _map_fields(value, move)
    return value


def _map_fields(value: Any, move: Callable[[Any], Any]) -> None:  # noqa: ANN401
    """Of an instance, if it is one; frozen or not."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            msgspec.structs.force_setattr(value, name, _mapped(getattr(value, name), move))
    elif is_dataclass(value):
        for field in fields(value):
            object.__setattr__(value, field.name, _mapped(getattr(value, field.name), move))


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_bulk(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return _is_tensor(value) or (numpy is not None and isinstance(value, numpy.ndarray))


def _check_device(device: object) -> None:
    try:
        import torch  # noqa: PLC0415 - heavy, and only tensors have devices

        torch.empty(0, device=device)  # type: ignore[call-overload]
    except (ImportError, RuntimeError, TypeError, AssertionError) as error:
        msg = f"device {device!r:.40} cannot be used here: {error!s:.200}"
        raise ConfigError(msg, remedy="leave it out, or name a device of this torch") from error
