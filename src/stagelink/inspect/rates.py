"""What changed between two looks at a connector, per second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeGuard


MOST = 1e18
"""Figures from here on are none of ours."""


class Rates(NamedTuple):
    """Per second, from two snapshots of ``health()``; ``megabytes`` counts 10**6 bytes."""

    puts: float
    gets: float
    megabytes: float
    errors: float


def rates_between(before: dict[str, Any], after: dict[str, Any], seconds: float) -> Rates | None:
    """The rates; None if there are none to tell.

    That is so when no time has passed, or when another connector answers than before.
    """
    if seconds <= 0 or before.get("engine_key") != after.get("engine_key"):
        return None

    def rate(total: Callable[[dict[str, Any]], float]) -> float:
        return max(0.0, (total(after) - total(before)) / seconds)

    return Rates(
        rate(lambda health: number(health, "puts")),
        rate(lambda health: number(health, "gets")),
        rate(lambda health: number(health, "bytes_transferred")) / 1e6,
        rate(lambda health: sum(table(health, "errors").values())),
    )


def number(health: dict[str, Any], name: str) -> float:
    """A figure of *health*, which another version may have sent: 0 if it has none."""
    found = health.get(name)
    return found if _is_figure(found) else 0


def table(health: dict[str, Any], name: str) -> dict[str, float]:
    """The named numbers that *health* holds under *name*; whatever is no number is left out."""
    found = health.get(name)
    pairs = found.items() if isinstance(found, dict) else ()
    return {key: value for key, value in pairs if _is_figure(value)}


def _is_figure(found: object) -> TypeGuard[float]:
    """Whether it can be shown: a stranger may have sent more digits than a float holds."""
    return isinstance(found, (int, float)) and abs(found) < MOST


def rows(health: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects that *health* lists under *name*."""
    found = health.get(name)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
