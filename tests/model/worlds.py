"""The bounded worlds: every mode with every adversity, small enough to exhaust."""

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
    "receiver dies": {"receiver_crashes": 1, "gets": 2},
    "cancel": {"cancels": 1, "gets": 2},
    "reject": {"rejects": 1},
    "stop": {"stops": 1, "gets": 2},
    "poll": {"polls": 1},
    "withdraw": {"withdraws": 1},
    "attach fails": {"attach_failures": 1},
    "greets again": {"greets": 1},
}

_OF_OFFERS: Table = {"two gets, cut": {"gets": 2, "cuts": 1}}

_OF_WRITES: Table = {
    "write fails": {"write_failures": 1},
    "stuck": {"resets": 1},
    "fence": {"fences": 1, "cuts": 1},
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
    "replace, copy": {"puts": 2, "dups": 1},
    "replace, loss": {"puts": 2, "losses": 1},
    "replace, polls": {"puts": 2, "polls": 2},
    "replace, reject": {"puts": 2, "gets": 2, "rejects": 1},
    "any readers": {"readers": None, "gets": 2, "cuts": 1},
    "two keys": {"keys": "kl", "puts": 2, "gets": 2, "cancels": 1},
    "room": {"puts": 3, "wait_for_room": True},
    "sender dies, two puts": {"sender_crashes": 1, "puts": 2, "gets": 2},
    "receiver dies, two puts": {"receiver_crashes": 1, "puts": 2, "gets": 2},
    "receiver dies, cut": {"receiver_crashes": 1, "gets": 2, "cuts": 1},
    "both die": {"receiver_crashes": 1, "sender_crashes": 1, "gets": 2, "puts": 2},
}

_LARGE_WRITES: Table = {
    "write fails, two gets": {"write_failures": 1, "gets": 2, "cuts": 1},
    "fence, two gets": {"fences": 1, "cuts": 1, "gets": 2},
    "fence, replace": {"fences": 1, "cuts": 1, "puts": 2},
    "fence, copy": {"fences": 1, "cuts": 1, "dups": 1},
    "fence twice": {"fences": 2, "cuts": 2},
    "fence, sender dies": {"fences": 1, "cuts": 1, "sender_crashes": 1},
    "fence, receiver dies": {"fences": 1, "cuts": 1, "receiver_crashes": 1, "gets": 2},
    "stuck, two gets": {"resets": 1, "gets": 2, "cuts": 1},
    "two pages": {"receiver_pages": 2, "gets": 2, "puts": 2, "cuts": 1},
    "one write at a time": {
        "max_writes": 1, "gets": 2, "puts": 2, "keys": "kl", "receiver_pages": 2, "cancels": 1,
    },
}  # fmt: skip


def _worlds(every: Table, of_offers: Table, of_writes: Table) -> dict[str, Bounds]:
    found = {}
    for mode in ("eager", "offer", "claim", "pull"):
        table = {"offer": of_offers, "pull": of_writes}.get(mode, {})
        for name, bounds in {**every, **table}.items():
            found[f"{mode}: {name}"] = Bounds(mode=mode, **bounds)
    return found


SMALL = _worlds(_EVERYWHERE, _OF_OFFERS, _OF_WRITES)
LARGE = _worlds(_LARGE, {}, _LARGE_WRITES)
