"""The bounded worlds: every mode with every adversity, small enough to exhaust.

Not here, for the protocol has none: several writers into one block. A block belongs to one
transfer id, and each id starts at most one write (invariant 4).
"""

from __future__ import annotations

from typing import Any

from tests.model.state import Bounds

Table = dict[str, dict[str, Any]]

_EVERYWHERE: Table = {
    "cut": {"cuts": 1},
    "copy": {"dups": 1},
    "loss": {"losses": 1},
    "replace": {"puts": 2},
    "duplicate": {"puts": 2, "replace": False},
    "two gets": {"gets": 2},
    "sender dies": {"sender_crashes": 1},
    "receiver dies": {"receiver_crashes": 1},
    "cancel": {"cancels": 1, "gets": 2},
    "reject": {"rejects": 1},
    "stop": {"stops": 1, "gets": 2},
    "poll": {"polls": 1},
    "withdraw": {"withdraws": 1},
    "attach fails": {"attach_failures": 1},
    "greets again": {"greets": 1},
    "silence": {"silent": True, "puts": 2, "readers": None},
    "error": {"errors": 1},
    "wait": {"waits": 1, "gets": 1},
    "untaken": {"untaken": 1, "gets": 2},
    "close": {"closes": 1},
    "two readers": {"places": "two", "gets": 2, "readers": 2, "met": True},
    "two readers, one payload": {"places": "two", "gets": 2, "met": True},
    "two readers, the first": {"places": "two", "gets": 2, "readers": 0, "met": True},
    "stream": {"puts": 0, "gets": 0, "chunks": 1, "met": True},
    "eviction": {"keys": "kl", "puts": 2, "inbox": 1, "met": True},
}

_OF_OFFERS: Table = {
    "two gets, cut": {"gets": 2, "cuts": 1},
    "batch": {"keys": "kl", "puts": 2, "gets": 2, "met": True},
    "glare": {"places": "glare", "met": True},
}

_OF_WRITES: Table = {
    "write fails": {"write_failures": 1},
    "stuck": {"resets": 1},
    "fence": {"fences": 1, "cuts": 1, "met": True},
    "cannot fence": {"sender_crashes": 1, "unfenced": 1, "met": True},
    "one id at a time": {
        "gets": 2, "keys": "kl", "puts": 2, "receiver_pages": 2, "met": True,
        "limits": (("share.OPEN_LIMIT", 1),),
    },
}  # fmt: skip

_LENT: dict[str, Any] = {
    "credits": True, "receiver_pages": 2, "puts": 2, "withdraws": 1, "met": True,
    "start": ("put s k", "mail", "withdraw s k", "mail"),
}  # fmt: skip
"""One of the receiver's two pages is lent, and the key that told how large it should be is gone."""

_OF_CREDITS: Table = {
    "used": {},
    "never used": {"puts": 1},
    "first": {"start": (), "gets": 2},
    "cut": {"cuts": 1},
    "copy": {"dups": 1},
    "loss": {"losses": 1},
    "backlog": {"puts": 3, "keys": "kl", "gets": 2},
    "replace": {"puts": 3},
    "withdraw": {"withdraws": 2},
    "cancel": {"cancels": 1, "gets": 2},
    "reject": {"rejects": 1},
    "stop": {"stops": 1, "gets": 2},
    "poll": {"polls": 2},
    "wait": {"waits": 1},
    "untaken": {"untaken": 1, "gets": 2},
    "stream": {"puts": 1, "gets": 0, "chunks": 1},
    "silence": {"silent": True, "gets": 2, "cuts": 1},
    "attach fails": {"attach_failures": 1, "cuts": 1},
    "greets again": {"greets": 1, "cuts": 1},
    "write fails": {"write_failures": 1, "gets": 2},
    "stuck": {"resets": 1},
    "fence": {"fences": 1, "cuts": 1},
    "sender dies": {"sender_crashes": 1},
    "receiver dies": {"receiver_crashes": 1},
    "cannot fence": {"sender_crashes": 1, "unfenced": 1},
    "close": {"closes": 1},
    "two close": {"closes": 2},
    "no room": {"puts": 3, "keys": "kl", "gets": 2, "sender_pages": 3},
    "one write at a time": {"max_writes": 1, "puts": 3, "keys": "kl", "cancels": 1},
    "eviction": {"keys": "kl", "puts": 3, "inbox": 1},
}  # fmt: skip

_WRITING = (*_LENT["start"], "put s k")
_TOLD = (*_WRITING, "put s l", "mail")
_LANDED = (*_WRITING, "writes")

_FROM_WITHIN: Table = {
    "writing, cut": {"start": _WRITING, "cuts": 1},
    "writing, cut, asked for": {"start": (*_WRITING, "get r k"), "cuts": 1, "silent": True},
    "writing, fence": {"start": (*_WRITING, "cut r"), "cuts": 1, "fences": 1},
    "writing, fails": {"start": _WRITING, "write_failures": 1, "cuts": 1},
    "writing, stuck": {"start": _WRITING, "resets": 1, "cuts": 1},
    "writing, sender dies": {"start": _WRITING, "sender_crashes": 1},
    "writing, receiver dies": {"start": _WRITING, "receiver_crashes": 1},
    "writing, close": {"start": _WRITING, "closes": 1},
    "writing, withdraw": {"start": _WRITING, "withdraws": 2, "cuts": 1},
    "told, cut": {"start": _TOLD, "puts": 3, "keys": "kl", "cuts": 1},
    "told, fence": {"start": (*_TOLD, "cut r"), "puts": 3, "keys": "kl", "cuts": 1, "fences": 1},
    "told, withdraw": {"start": _TOLD, "puts": 3, "keys": "kl", "withdraws": 2},
    "told, cancel": {"start": _TOLD, "puts": 3, "keys": "kl", "cancels": 1},
    "told, sender dies": {"start": _TOLD, "puts": 3, "keys": "kl", "sender_crashes": 1},
    "told, close": {"start": _TOLD, "puts": 3, "keys": "kl", "closes": 1},
    "landed, cut": {"start": _LANDED, "cuts": 1, "dups": 1},
    "landed, fence": {"start": (*_LANDED, "cut r"), "cuts": 1, "fences": 1},
    "landed, sender dies": {"start": _LANDED, "sender_crashes": 1, "gets": 2},
    "landed, receiver dies": {"start": _LANDED, "receiver_crashes": 1, "gets": 2},
    "landed, close": {"start": _LANDED, "closes": 1},
    "landed, reject": {"start": _LANDED, "rejects": 1, "cuts": 1},
    "landed, replace": {"start": _LANDED, "puts": 3, "gets": 2},
}  # fmt: skip

_LARGE_CREDITS: Table = {
    "cut twice": {"cuts": 2},
    "cut, copy": {"cuts": 1, "dups": 1},
    "cut, loss": {"cuts": 1, "losses": 1},
    "cut, two gets": {"cuts": 1, "gets": 2},
    "cut, replace": {"cuts": 1, "puts": 3},
    "cut, withdraw": {"cuts": 1, "withdraws": 2},
    "cut, poll": {"cuts": 1, "polls": 2},
    "cut, cancel": {"cuts": 1, "cancels": 1, "gets": 2},
    "cut, reject": {"cuts": 1, "rejects": 1},
    "cut, close": {"cuts": 1, "closes": 1},
    "cut, write fails": {"cuts": 1, "write_failures": 1, "gets": 2},
    "fence, copy": {"fences": 1, "cuts": 1, "dups": 1},
    "fence, two gets": {"fences": 1, "cuts": 1, "gets": 2},
    "fence twice": {"fences": 2, "cuts": 2},
    "fence, cannot": {"fences": 1, "cuts": 1, "unfenced": 1},
    "fence, sender dies": {"fences": 1, "cuts": 1, "sender_crashes": 1},
    "stuck, two gets": {"resets": 1, "gets": 2, "cuts": 1},
    "both die": {"receiver_crashes": 1, "sender_crashes": 1, "gets": 2, "puts": 3},
    "sender dies, two puts": {"sender_crashes": 1, "puts": 3, "gets": 2},
    "receiver dies, two puts": {"receiver_crashes": 1, "puts": 3, "gets": 2},
    "backlog, cut": {"puts": 3, "keys": "kl", "gets": 2, "cuts": 1},
    "stream, cut": {"puts": 1, "gets": 0, "chunks": 2, "cuts": 1},
    "two lent": {"receiver_pages": 4, "puts": 3, "keys": "kl", "gets": 2},
    "short log, cut": {
        "puts": 3, "gets": 2, "cuts": 1, "limits": (("ledger.GONE_LIMIT", 0),),
    },
    "window, cut": {
        "puts": 3, "keys": "kl", "cuts": 1, "limits": (("handshake.feed.WINDOW_RECORDS", 1),),
    },
}  # fmt: skip

_FULL: dict[str, Any] = {
    **_LENT, "places": "glare", "puts": 4, "withdraws": 2, "gets": 2,
    "start": (
        "put s k", "mail", "withdraw s k", "mail", "put r k", "mail", "withdraw r k", "mail",
    ),
}  # fmt: skip
"""Two that have lent one another half of their pools."""

_OF_EAGER: Table = {
    "window": {"puts": 2, "keys": "kl", "limits": (("handshake.feed.WINDOW_RECORDS", 1),)},
    "window of bytes": {"puts": 2, "keys": "kl", "limits": (("handshake.feed.WINDOW_BYTES", 1),)},
    "short log": {"puts": 2, "keys": "kl", "cuts": 1, "limits": (("ledger.GONE_LIMIT", 0),)},
    "batch": {"keys": "kl", "puts": 2, "gets": 2, "met": True},
    "glare": {"places": "glare", "met": True, "cuts": 1},
}

_LARGE: Table = {
    "cut twice": {"cuts": 2},
    "cut, copy": {"cuts": 1, "dups": 1},
    "cut, loss": {"cuts": 1, "losses": 1},
    "cut, replace": {"cuts": 1, "puts": 2},
    "cut, two gets": {"cuts": 1, "gets": 2},
    "cut, cancel": {"cuts": 1, "cancels": 1, "gets": 2},
    "cut, reject": {"cuts": 1, "rejects": 1},
    "cut, poll": {"cuts": 1, "polls": 1},
    "cut, withdraw": {"cuts": 1, "withdraws": 1},
    "cut, attach fails": {"cuts": 1, "attach_failures": 1},
    "cut, greets again": {"cuts": 1, "greets": 1},
    "cut, silence": {"cuts": 1, "silent": True},
    "cut, error": {"cuts": 1, "errors": 1},
    "cut, wait": {"cuts": 1, "waits": 1},
    "cut, untaken": {"cuts": 1, "untaken": 1, "gets": 2},
    "cut, close": {"cuts": 1, "closes": 1},
    "two close": {"closes": 2, "gets": 2},
    "closes, dies": {"closes": 1, "sender_crashes": 1},
    "closes, receiver dies": {"closes": 1, "receiver_crashes": 1},
    "replace, copy": {"puts": 2, "dups": 1},
    "replace, loss": {"puts": 2, "losses": 1},
    "replace, polls": {"puts": 2, "polls": 2},
    "replace, reject": {"puts": 2, "gets": 2, "rejects": 1},
    "replace, error": {"puts": 2, "errors": 1},
    "any readers": {"readers": None, "gets": 2, "cuts": 1},
    "two keys": {"keys": "kl", "puts": 2, "gets": 2, "cancels": 1},
    "two keys, wait": {"keys": "kl", "puts": 2, "waits": 2, "met": True},
    "room": {"puts": 3, "wait_for_room": True},
    "sender dies, two puts": {"sender_crashes": 1, "puts": 2, "gets": 2},
    "receiver dies, two puts": {"receiver_crashes": 1, "puts": 2, "gets": 2},
    "receiver dies, cut": {"receiver_crashes": 1, "gets": 2, "cuts": 1},
    "receiver dies, two gets": {"receiver_crashes": 1, "gets": 2},
    "both die": {"receiver_crashes": 1, "sender_crashes": 1, "gets": 2, "puts": 2},
    "two readers, cut": {"places": "two", "gets": 2, "readers": 2, "cuts": 1, "met": True},
    "two readers, one payload, cut": {"places": "two", "gets": 2, "cuts": 1, "met": True},
    "two readers, the first, cut": {
        "places": "two", "gets": 2, "readers": 0, "cuts": 1, "met": True,
    },
    "two readers, the first, dies": {
        "places": "two", "gets": 2, "readers": 0, "receiver_crashes": 1, "met": True,
    },
    "two readers, the first, replace": {
        "places": "two", "gets": 2, "puts": 2, "readers": 0, "met": True,
    },
    "two readers, the first, unmet": {"places": "two", "gets": 2, "readers": 0},
    "two readers, a reader dies": {
        "places": "two", "gets": 2, "readers": 2, "receiver_crashes": 1, "met": True,
    },
    "two readers, replace": {"places": "two", "gets": 2, "puts": 2, "readers": 2, "met": True},
    "glare, cut": {"places": "glare", "puts": 2, "gets": 2, "cuts": 1, "met": True},
    "glare, death": {"places": "glare", "puts": 2, "gets": 2, "sender_crashes": 1, "met": True},
    "stream, cut": {"puts": 0, "gets": 0, "chunks": 2, "cuts": 1, "met": True},
    "stream, abort": {"puts": 0, "gets": 0, "chunks": 2, "aborts": 1, "met": True},
    "stream, reject": {"puts": 0, "gets": 0, "chunks": 2, "rejects": 1, "met": True},
    "stream, sender dies": {
        "puts": 0, "gets": 0, "chunks": 2, "sender_crashes": 1, "met": True,
    },
    "eviction, cut": {"keys": "kl", "puts": 2, "gets": 2, "inbox": 1, "cuts": 1, "met": True},
    "eviction, wait": {"keys": "kl", "puts": 2, "waits": 1, "inbox": 1, "met": True},
    "window, cut": {
        "puts": 2, "keys": "kl", "cuts": 1, "limits": (("handshake.feed.WINDOW_RECORDS", 1),),
    },
    "short log, cut": {
        "puts": 2, "gets": 2, "cuts": 1, "limits": (("ledger.GONE_LIMIT", 0),), "met": True,
    },
    "one notice a message": {
        "puts": 2, "gets": 2, "keys": "kl", "cuts": 1, "limits": (("source.NOTICES_LIMIT", 1),),
        "met": True,
    },
    "one id at a time": {
        "gets": 2, "keys": "kl", "puts": 2, "receiver_pages": 2, "cancels": 1, "met": True,
        "limits": (("share.OPEN_LIMIT", 1),),
    },
}  # fmt: skip

_LARGE_WRITES: Table = {
    "late attach": {
        "keys": "kl", "puts": 2, "gets": 2, "receiver_pages": 2, "max_writes": 1, "cuts": 1,
        "fences": 1, "met": True,
        "start": (
            "put s k", "put s l", "get r k", "get r l", "mail", "cut r", "hear of a cut s r",
            "connect r",
        ),
    },
    "write fails, two gets": {"write_failures": 1, "gets": 2, "cuts": 1},
    "fence from the start": {"fences": 1, "cuts": 1},
    "fence, two gets": {"fences": 1, "cuts": 1, "gets": 2},
    "fence, replace": {"fences": 1, "cuts": 1, "puts": 2},
    "fence, copy": {"fences": 1, "cuts": 1, "dups": 1},
    "fence twice": {"fences": 2, "cuts": 2},
    "fence, sender dies": {"fences": 1, "cuts": 1, "sender_crashes": 1},
    "fence, receiver dies": {"fences": 1, "cuts": 1, "receiver_crashes": 1, "gets": 2},
    "fence, cannot": {"fences": 1, "cuts": 1, "unfenced": 1},
    "stuck, two gets": {"resets": 1, "gets": 2, "cuts": 1},
    "two pages": {"receiver_pages": 2, "gets": 2, "puts": 2, "cuts": 1},
    "one write at a time": {
        "max_writes": 1, "gets": 2, "puts": 2, "keys": "kl", "receiver_pages": 2, "cancels": 1,
    },
}  # fmt: skip


def _worlds(every: Table, of_mode: dict[str, Table]) -> dict[str, Bounds]:
    found = {}
    for mode in ("eager", "offer", "claim", "pull"):
        for name, bounds in {**every, **of_mode.get(mode, {})}.items():
            if not (mode == "claim" and bounds.get("places") == "two"):  # it has another reader
                found[f"{mode}: {name}"] = Bounds(mode=mode, **bounds)
    return found


SMALL = _worlds(_EVERYWHERE, {"eager": _OF_EAGER, "offer": _OF_OFFERS, "pull": _OF_WRITES})
LARGE = _worlds(_LARGE, {"pull": _LARGE_WRITES})
_CREDITS = {
    f"credit: {name}": Bounds(**{**_LENT, **more})
    for name, more in {**_OF_CREDITS, **_FROM_WITHIN, **_LARGE_CREDITS}.items()
}
EVERY_DAY = (
    "used", "never used", "cut", "loss", "backlog", "withdraw", "write fails", "writing, fence",
    "writing, sender dies", "writing, receiver dies", "told, cut", "landed, cut", "landed, close",
)  # fmt: skip
"""Worlds of credits that are explored each time, a little; the others when there is time."""

SMALL |= {f"credit: {name}": _CREDITS[f"credit: {name}"] for name in EVERY_DAY}
LARGE |= {name: bounds for name, bounds in _CREDITS.items() if name not in SMALL}
SMALL |= {
    "credit: two peers full": Bounds(**_FULL),
    "credit: two readers": Bounds(
        credits=True, receiver_pages=2, places="two", puts=2, gets=2, met=True
    ),
    "credit: two readers, the first": Bounds(
        credits=True, receiver_pages=2, places="two", puts=2, gets=2, readers=0, met=True
    ),
}
LARGE |= {"credit: two peers full, cut": Bounds(**_FULL, cuts=1)}
