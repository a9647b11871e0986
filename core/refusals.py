"""Refusals in words, with their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagelink.core.pool import Refusal


def describe(refusal: Refusal) -> str:
    """One line that says whether waiting can help, and every number behind it (bytes, seconds)."""
    verdict = "can never fit" if refusal.never_fits else "does not fit now"
    return (
        f"{refusal.requested} bytes {verdict}: free {refusal.free}, largest free "
        f"{refusal.largest_free}, capacity {refusal.capacity}, alignment {refusal.alignment}, "
        f"leases {refusal.leases}, oldest lease {refusal.oldest_lease_s:.1f} s"
    )
