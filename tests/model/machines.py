"""The real endpoints as values: interned, and stepped through a memo.

A state of the world holds endpoints and messages by number. Stepping the same endpoint with the
same event is done once, so exploring costs little more than looking up. Times are left out: every
armed timer may fire at any moment, whatever its distance, its number of earlier tries, or how
much was owed when it was armed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.model.shapes import OVER
from tests.model.state import PLACES, Violation

from stagelink.core.endpoint import Endpoint
from stagelink.core.events import Received, Send, TimePassed
from stagelink.core.handshake.session import OwnPlane, Session
from stagelink.core.messages import Packet
from stagelink.core.pool import Pool
from stagelink.core.settings import Settings
from stagelink.core.values import HostCard, Identity, PlaneCard

if TYPE_CHECKING:
    from tests.model.state import Bounds

    from stagelink.core.timers import TimerKey

PAGE = 4096
FAR = 1e9
"""When a timer is due that has not been told to fire."""

SESSIONS = 1000
"""Session numbers an instance may use before they meet those of the next one."""

ORDER = (
    "ack", "greet", "probe", "settle", "grace", "fence", "heir", "fetch", "wait", "budget", "kept",
    "ttl", "idle", "stuck",
)  # fmt: skip
"""Timers in the order in which a kind world lets them fire."""

LOOKS = 20_000
"""Endpoints kept thawed, to be read."""


class Policy(NamedTuple):
    """The time-outs an endpoint asks for; the explorer ignores how long they are."""

    suspect_grace_s: float = 0.5
    successor_s: float = 0.5
    settle_s: float = 0.05
    ack_delay_s: float = 0.05
    ttl_s: float = 1.0
    silence_s: float = 10.0
    credit_idle_s: float = 5.0

    def stuck_write_s(self, size: int) -> float:
        """Any time."""
        return 30.0 + size * 0.0


class Post(NamedTuple):
    """Send, with the message by its number."""

    link: str
    mail: int


def name(place: str, life: int) -> bytes:
    """The instance of that life at that place."""
    return f"{place}{life}".encode()


class Machines:
    """Every endpoint and message met so far, by number (from 1; 0 is none)."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._places = PLACES[bounds.places]
        self._settings: dict[bytes, Settings] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._frozen: list[tuple[bytes, tuple[Any, ...]]] = [(b"", ())]
        self._mail_numbers: dict[tuple[Any, ...], int] = {}
        self._mail: list[Any] = [None]
        self._steps: dict[tuple[Any, ...], tuple[tuple[Any, ...], int]] = {}
        self._looks: dict[int, Endpoint] = {}
        self._armed: dict[int, tuple[tuple[int, TimerKey], ...]] = {}

    # --- endpoints -----------------------------------------------------------------------

    def born(self, place: str, life: int) -> int:
        """A new endpoint at that place."""
        instance = name(place, life)
        if instance not in self._settings:
            self._settings[instance] = self._settle(place, life)
        pages = self._bounds.sender_pages if place == "s" else self._bounds.receiver_pages
        pool = Pool(pages * PAGE, PAGE, 0.0, 0.0, pool_id=self._places.index(place) + 1)
        return self._intern(Endpoint(self._settings[instance], pool))

    def _settle(self, place: str, life: int) -> Settings:
        instance, bounds = name(place, life), self._bounds
        mode = "write" if bounds.mode == "pull" else "map"
        plane = OwnPlane(PlaneCard("plane", mode, b"0"), crosses_hosts=False)
        base = (life * len(self._places) + self._places.index(place) + 1) * SESSIONS
        identity = Identity("a") if place == "s" else Identity("b", int(place == "q"))
        return Settings(
            instance, identity, HostCard("host", instance.decode()), (plane,),
            Policy(), PAGE * 8, bounds.max_writes, base, bounds.fences > 0,  # type: ignore[arg-type]
            peer_share=bounds.peer_share, credit_share=float(bounds.credits),
        )  # fmt: skip

    def dialer_of(self, message: Any) -> str:
        """In whose conversation *message* is said."""
        return self._places[(message.session // SESSIONS - 1) % len(self._places)]

    def look(self, number: int) -> Endpoint:
        """The endpoint of that number, to be read only."""
        seen = self._looks.get(number)
        if seen is None:
            if len(self._looks) > LOOKS:
                self._looks.clear()
            seen = self._looks[number] = self._thaw(number)
        return seen

    def _thaw(self, number: int) -> Endpoint:
        instance, frozen = self._frozen[number]
        endpoint = Endpoint.thaw(self._settings[instance], frozen)
        for source in endpoint.incoming.sources.values():
            source.inbox._limit = self._bounds.inbox
        return endpoint

    def _intern(self, endpoint: Endpoint) -> int:
        _forget_times(endpoint)
        key = (endpoint.settings.instance, _far(endpoint.freeze()))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._frozen)
            self._frozen.append(key)
        return number

    def armed(self, number: int) -> tuple[tuple[int, TimerKey], ...]:
        """The timers of that endpoint, each with its place in :data:`ORDER`; in that order.

        Without the one that changes the words of a deadline only.
        """
        found = self._armed.get(number)
        if found is None:
            names = [key for key, _ in self._frozen[number][1][2] if key[0] != "first"]
            listed = sorted((ORDER.index(str(key[0])), repr(key), key) for key in names)
            found = self._armed[number] = tuple([(rank, key) for rank, _, key in listed])
        return found

    def closed(self, number: int) -> bool:
        """Whether that endpoint was closed."""
        return bool(self._frozen[number][1][0])

    def blocks(self, number: int) -> tuple[Any, ...]:
        """The rows of that endpoint's pool: offset, size, serial, pool, state, use, ids."""
        return self._frozen[number][1][1][2]  # type: ignore[no-any-return]

    def __len__(self) -> int:
        """How many different endpoint states were met."""
        return len(self._frozen) - 1

    def frozen(self, number: int) -> tuple[bytes, tuple[Any, ...]]:
        """The instance and the frozen form of that endpoint."""
        return self._frozen[number]

    # --- steps ---------------------------------------------------------------------------

    def handle(self, number: int, event: Any) -> tuple[tuple[Any, ...], int]:
        """The actions for *event*, with messages by number, and the endpoint afterwards."""
        return self._step((number, type(event).__name__, event), event, None)

    def deliver(self, number: int, link: str, mail: int) -> tuple[tuple[Any, ...], int]:
        """The same for a message by its number."""
        return self._step((number, link, mail), Received(link, self._mail[mail]), None)

    def fire(self, number: int, timer: TimerKey) -> tuple[tuple[Any, ...], int]:
        """The same for an armed timer whose moment has come."""
        return self._step((number, "fire", timer), TimePassed(), timer)

    def _step(
        self, key: tuple[Any, ...], event: Any, timer: TimerKey | None
    ) -> tuple[tuple[Any, ...], int]:
        done = self._steps.get(key)
        if done is None:
            endpoint = self._thaw(key[0])
            if timer is not None:
                endpoint.timers.arm(timer, 0.0)
            actions = [self._posted(action) for action in endpoint.handle(event, 0.0)]
            done = self._steps[key] = (tuple(actions), self._intern(endpoint))
            if timer is not None:
                frees_only_its_own(timer, self.look(key[0]), self.look(done[1]))
        return done

    def _posted(self, action: Any) -> Any:
        if isinstance(action, Send):
            return Post(action.link, self.mail_number(action.message))
        return action

    # --- messages ------------------------------------------------------------------------

    def mail_number(self, message: Any) -> int:
        """The number of *message*; equal tuples of different types are different messages."""
        inner = type(message.message).__name__ if isinstance(message, Packet) else ""
        key = (type(message).__name__, inner, message)
        number = self._mail_numbers.get(key)
        if number is None:
            number = self._mail_numbers[key] = len(self._mail)
            self._mail.append(message)
        return number

    def mail(self, number: int) -> Any:
        """The message of that number."""
        return self._mail[number]


def frees_only_its_own(timer: TimerKey, before: Endpoint, after: Endpoint) -> None:
    """14: no memory is freed by time, but unleased entries and payloads without a taker.

    A write that has not begun by its budget is a lease no more.
    """
    left = {row[2] for row in after.pool.freeze(0.0)[2]}
    freed = {row[2] for row in before.pool.freeze(0.0)[2]} - left
    queued = [item for item in before.outgoing.transfers.queue if ("budget", *item) == timer]
    for peer, transfer in queued:
        lease = before.outgoing.readers[peer].leases.transfers[transfer]
        for ledger in before.outgoing.ledgers.values():
            entry = ledger.entries[lease.generation]
            if entry.block and entry.leases == 1:
                freed.discard(entry.block.serial)
    if freed - _ownerless(before):
        raise Violation(f"14 the timer {timer} frees the blocks {freed}")


def _ownerless(endpoint: Endpoint) -> set[int]:
    found = {
        entry.block.serial
        for ledger in endpoint.outgoing.ledgers.values()
        for entry in ledger.entries.values()
        if entry.block and not entry.leases
    }
    shelved = {kept.delivery.handle for kept in endpoint.incoming.shelf.all()}
    for fetch in endpoint.incoming.fetches.all():
        if fetch.block and (fetch.state == "landed" or fetch.number in shelved):
            found.add(fetch.block.serial)
    return found


def _forget_times(endpoint: Endpoint) -> None:
    """What only says when, or how much, and changes no more than the moment of a timer."""
    for source in endpoint.incoming.sources.values():
        source.owed, source.owed_bytes = min(source.owed, 1), 0
        source.grants.passed = 0  # too few puts for it to matter
        while len(source.grants.sizes) > 1:  # every payload is as large as the others
            source.grants.sizes.pop()
        source.session = _placeless(source.session)
    for reader in endpoint.outgoing.readers.values():
        reader.session = _placeless(reader.session)
    watches = endpoint.peers.watches
    for peer, watch in watches.items():
        watches[peer] = watch._replace(tries=0)


def _placeless(session: Session) -> Session:
    return Session(session.state, session.number) if session.state in OVER else session


def _far(frozen: tuple[Any, ...]) -> tuple[Any, ...]:
    """Every timer far ahead."""
    timers = tuple((key, FAR) for key, _ in frozen[2])
    return (*frozen[:2], timers, *frozen[3:])
