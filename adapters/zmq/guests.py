"""The accepted links: a bounded table by routing id, by link and by descriptor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagelink.core.values import Link

NO_DESCRIPTOR = -1


class Guest:
    """Who has dialled us; ``active`` since the table last looked for an idle one."""

    __slots__ = ("active", "descriptor", "link", "routing_id")

    def __init__(self, routing_id: bytes, descriptor: int) -> None:
        self.routing_id = routing_id
        self.link = f"accepted:{routing_id.hex()}"  # never an address: those have ``://``
        self.descriptor = descriptor
        self.active = False


class Guests:
    """At most *limit* guests. A full table gives up the oldest that has been idle."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.by_id: dict[bytes, Guest] = {}
        self.by_link: dict[Link, Guest] = {}
        self._by_descriptor: dict[int, dict[bytes, Guest]] = {}

    def admit(self, guest: Guest) -> Guest | None:
        """Take *guest* in; return the one that had to go for it, if any."""
        gone = self._make_room() if len(self.by_id) >= self._limit else None
        self.by_id[guest.routing_id] = guest
        self.by_link[guest.link] = guest
        self._by_descriptor.setdefault(guest.descriptor, {})[guest.routing_id] = guest
        return gone

    def remove(self, guest: Guest) -> None:
        """Forget *guest*, who is here."""
        del self.by_id[guest.routing_id], self.by_link[guest.link]
        fellows = self._by_descriptor[guest.descriptor]
        del fellows[guest.routing_id]
        if not fellows:
            del self._by_descriptor[guest.descriptor]

    def of_descriptor(self, descriptor: int) -> list[Guest]:
        """Whom the connection with *descriptor* may have been."""
        known = self._by_descriptor.get(descriptor, {})
        unknown = self._by_descriptor.get(NO_DESCRIPTOR, {})
        return [*known.values(), *unknown.values()]

    def _make_room(self) -> Guest:
        while True:
            guest = next(iter(self.by_id.values()))
            if not guest.active:
                self.remove(guest)
                return guest
            guest.active = False  # a second chance, at the end of the line
            self.by_id[guest.routing_id] = self.by_id.pop(guest.routing_id)
