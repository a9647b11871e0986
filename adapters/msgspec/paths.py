"""Where in a value something lies: kept cheaply, and rendered only in errors."""

from __future__ import annotations

from typing import Union

from stagelink.core.errors import PayloadError

Path = Union["tuple[Path, object]", None]
"""The way from the value to a field: made of the way to its container, rendered only in errors."""


class Field(str):
    """A step to an attribute; any other step is to an item."""

    __slots__ = ()


def render(path: Path) -> str:
    """*path* as one would write it in Python, the whole being ``value``."""
    steps = []
    while path is not None:
        path, step = path
        steps.append(f".{step}" if isinstance(step, Field) else f"[{shown(step)}]")
    return "value" + "".join(reversed(steps))


def shown(key: object) -> str:
    """*key* as one would write it in Python, cut short; or what it is, if it cannot be written."""
    try:
        return f"{key!r:.60}"
    except Exception:  # noqa: BLE001 - its own __repr__ may raise anything, and long ints do
        many = f"an int of {key.bit_length()} bits" if isinstance(key, int) else ""
        return many or f"a {type(key).__name__}"


def at(path: Path, error: PayloadError) -> PayloadError:
    """*error* with the path before its words."""
    return PayloadError(f"{render(path)}: {error.message}", remedy=error.remedy)
