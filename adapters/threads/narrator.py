"""Tells people what has changed: conversations, quarantine, payloads held for long.

It compares what it sees now with what it saw last, once in a while and after news from outside, so
that the way of a message costs nothing. What comes and goes between two glances is not told.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from stagelink.adapters.threads.sightings import Sight, sight

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.threads.sightings import Name, Talk
    from stagelink.core.endpoint import Endpoint
    from stagelink.core.values import Instance
    from stagelink.ports.log import EventLog

GLANCE_S = 1.0
"""Between two glances while something is held, in quarantine or not connected."""

IDLE_GLANCE_S = 5.0
MISSING_S = 5.0
"""After how long a sender that was never reached is worth a warning."""


class _Known(NamedTuple):
    """A conversation as it was told: open or not, since when, and whether it ever was open."""

    open: bool
    since_s: float
    met: bool
    number: int
    warned: bool = False


class Narrator:
    """Looks at the endpoint when ``due_s`` (seconds of the driver's clock) has come."""

    def __init__(self, log: EventLog, lease_warning_s: float) -> None:
        self.log = log
        self._patience_s = lease_warning_s
        self._looking = Lock()
        self._talks: dict[Name, _Known] = {}
        self._names: dict[Instance, str] = {}
        self._held_since: dict[tuple[str, Instance, int], float] = {}
        self._warned: set[tuple[str, Instance, int]] = set()
        self._quarantined = 0
        self.due_s = 0.0
        self.held_long = 0

    def soon(self) -> None:
        """There is news: look at the next occasion."""
        self.due_s = 0.0

    def name(self, peer: Instance) -> str:
        """*peer* as people call it, or the beginning of its number."""
        return self._names.get(peer) or peer.hex()[:12]

    def look(self, read: Callable[[Callable[[Endpoint], Sight]], Sight], now_s: float) -> None:
        """Look with *read*, which holds the lock that it takes, and tell; no lock is held then."""
        if not self._looking.acquire(blocking=False):
            return  # another thread does
        try:
            seen = read(sight)
            busy = seen.leases or seen.quarantined or not all(t.open for t in seen.talks.values())
            self.due_s = now_s + (GLANCE_S if busy else IDLE_GLANCE_S)
            self._compare_talks(seen, now_s)
            self._compare_leases(seen, now_s)
            self._compare_quarantine(seen.quarantined)
        finally:
            self._looking.release()

    def _compare_talks(self, seen: Sight, now_s: float) -> None:
        # Names of peers that have gone stay for the last words about them, for one more glance.
        self._names = {
            **dict(list(self._names.items())[-64:]),
            **{talk.instance: talk.peer for talk in seen.talks.values() if talk.instance},
        }
        known = self._talks
        self._talks = {
            name: self._told(talk, known.get(name), name[0], now_s)
            for name, talk in seen.talks.items()
        }

    def _told(self, talk: Talk, known: _Known | None, way: str, now_s: float) -> _Known:
        if known is None:
            known = _Known(open=False, since_s=now_s, met=False, number=0)
        if talk.open and not (known.open and known.number == talk.number):
            return self._opened(talk, known, way, now_s)
        if known.open and not talk.open:
            self._ended(talk, way)
            known = _Known(open=False, since_s=now_s, met=True, number=talk.number)
        if not talk.open:
            return self._still_closed(talk, known, way, now_s)
        return known

    def _ended(self, talk: Talk, way: str) -> None:
        """Say that it is over: by a goodbye, or somehow."""
        log = self.log
        if talk.left:
            log.info("session_closed", edge=talk.edge, peer=talk.peer, direction=way)
            return
        log.warning(
            "session_lost", edge=talk.edge, peer=talk.peer, direction=way, cause=talk.detail
        )

    def _opened(self, talk: Talk, known: _Known, way: str, now_s: float) -> _Known:
        log, lost_s = self.log, 0.0 if known.open else now_s - known.since_s
        if known.met:
            log.info(
                "session_back", edge=talk.edge, peer=talk.peer, direction=way, elapsed_s=lost_s
            )
        else:
            log.debug(
                "session_open", edge=talk.edge, peer=talk.peer, direction=way, link=talk.link
            )
        return _Known(open=True, since_s=now_s, met=True, number=talk.number)

    def _still_closed(self, talk: Talk, known: _Known, way: str, now_s: float) -> _Known:
        """Say once why it is not open: refused, or never reached at all."""
        log, waited_s = self.log, now_s - known.since_s
        if known.warned or way == "out":
            return known
        if talk.declined:
            log.warning(
                "session_declined", edge=talk.edge, peer=talk.peer, cause=talk.detail,
                remedy="compare stage names, backends, keys and versions of both sides",
            )  # fmt: skip
        elif not known.met and waited_s >= MISSING_S:
            log.warning(
                "sender_missing", edge=talk.edge, peer=talk.peer, elapsed_s=waited_s,
                cause=talk.detail, remedy="check that it runs and that the endpoint is right",
            )  # fmt: skip
        else:
            return known
        return known._replace(warned=True)

    def _compare_leases(self, seen: Sight, now_s: float) -> None:
        since, log = self._held_since, self.log
        self._held_since = {name: since.get(name, now_s) for name in seen.leases}
        self._warned &= seen.leases.keys()
        long = 0
        for name, since_s in self._held_since.items():
            if now_s - since_s < self._patience_s:
                continue
            long += 1
            if name not in self._warned:
                self._warned.add(name)
                key, edge, peer = seen.leases[name]
                log.warning(
                    "lease_warning", key=key, edge=edge, peer=peer, elapsed_s=now_s - since_s,
                    remedy="close payloads, and drop the tensors made from them, after use",
                )  # fmt: skip
        self.held_long = long

    def _compare_quarantine(self, quarantined: int) -> None:
        before, self._quarantined = self._quarantined, quarantined
        if quarantined and not before:
            log = self.log
            log.info("quarantine_entered", bytes=quarantined, cause="a write may still land")
        elif before and not quarantined:
            log = self.log
            log.info("quarantine_left", bytes=before)
