"""What is to be expected of a get, told without touching it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.errors import Reason
from stagelink.core.handshake.fetch import HELD, QUEUED

if TYPE_CHECKING:
    from stagelink.core.gets import Gets
    from stagelink.core.handshake.fetch import Fetch
    from stagelink.core.pool import Pool
    from stagelink.core.source import Source


def is_there(gets: Gets, source: Source, key: str) -> bool:
    """Whether a get of *key* would be given a payload that nobody else works on."""
    if gets.shelf.of(source.address, key):
        return True
    known = source.inbox.get(key)
    fetch = gets.fetches.get(known.fetch) if known else None
    if fetch is None:
        return known is not None
    return not fetch.ticket and fetch.state != HELD


def no_room(pool: Pool, fetch: Fetch) -> tuple[Reason, str] | None:
    """Why *fetch* has not come, if it is for want of room in *pool*."""
    if fetch.state != QUEUED:
        return None
    room = pool.stats()
    detail = (
        f"{fetch.size} bytes did not fit in time: free {room.free}, largest free "
        f"{room.largest_free}, capacity {room.capacity}, waiting {room.waiting}"
    )
    return Reason.NO_ROOM, detail


def safe(fetch: Fetch | None) -> bool:
    """Whether *fetch* answers its caller by itself, although its payload has left the log."""
    if fetch is None or fetch.state == QUEUED:
        return False
    return bool(fetch.ticket) or fetch.state == HELD
