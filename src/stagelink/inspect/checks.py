"""The result of looking at one thing."""

from __future__ import annotations

from typing import NamedTuple


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: what was looked at, in a few words.
        ok: True: fine; False: the chosen configuration cannot work; None: a warning if there is
            a remedy, else only a fact.
        found: what is there.
        remedy: what to do about it; empty when nothing is to be done.
    """

    name: str
    ok: bool | None
    found: str
    remedy: str = ""


def size(count: float) -> str:
    """*count* bytes as people write them, in powers of 1024."""
    for unit in _UNITS[:-1]:
        if count < 1024:  # noqa: PLR2004
            return _written(count, unit)
        count /= 1024
    return _written(count, _UNITS[-1])


def _written(count: float, unit: str) -> str:
    return f"{count:,.0f} {unit}" if count == int(count) else f"{count:,.1f} {unit}"


_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
