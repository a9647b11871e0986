"""Names in the shared-memory directory; what a peer names is matched, never trusted."""

from __future__ import annotations

import re

PREFIX = "stagelink-"
_SEGMENT = re.compile(r"stagelink-([0-9a-f]{32})-[0-9]{1,9}\Z")
_LOCK = re.compile(r"stagelink-([0-9a-f]{32})\.lock\Z")


def segment_name(instance: bytes, number: int) -> str:
    """The name of an instance's segment."""
    return f"{PREFIX}{instance.hex()}-{number}"


def lock_name(instance: bytes) -> str:
    """The name of an instance's lock file."""
    return f"{PREFIX}{instance.hex()}.lock"


def owner_of_segment(name: str) -> str | None:
    """The instance (hex) that owns segment *name*; None if that is no name of ours."""
    match = _SEGMENT.match(name)
    return match.group(1) if match else None


def owner_of_lock(name: str) -> str | None:
    """The instance (hex) that owns lock file *name*; None if that is no name of ours."""
    match = _LOCK.match(name)
    return match.group(1) if match else None


def lock_of(owner: str) -> str:
    """The lock file's name of an instance in hex, as :func:`owner_of_segment` returns it."""
    return f"{PREFIX}{owner}.lock"
