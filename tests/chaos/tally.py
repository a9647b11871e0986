"""What a hunt has done and found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Tally:
    """Counts; ``slowest_notice_ms`` is from a death to the error of a get that waits."""

    rounds: int = 0
    kills: int = 0
    stops: int = 0
    restarts: int = 0
    aborts: int = 0
    gets: int = 0
    right: int = 0
    failures: int = 0
    seconds: float = 0.0
    slowest_notice_ms: float = 0.0
    slowest_whole_ms: float = 0.0
    growth_kib: int = 0
    failed: list[int] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take in what another part of the hunt has counted."""
        for name, value in vars(other).items():
            mine = getattr(self, name)
            most = name.startswith("slowest") or name == "growth_kib"
            setattr(self, name, max(mine, value) if most else mine + value)

    def figures(self) -> dict[str, Any]:
        """As plain numbers."""
        return {
            name: round(value, 1) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }
