"""The real endpoints as values: interned, stepped through a memo, and renamed to a normal form.

A state of the world holds endpoints and messages by number. Stepping the same endpoint with the
same event is done once, so exploring costs little more than looking up.

Normal form, so that histories that no longer matter do not tell states apart:

- session numbers are only compared and counted up: those of one receiver instance are renamed to
  their rank;
- places in a session are only compared with the place expected: each direction of a session is
  shifted so that its smallest number is 0;
- times are left out: every armed timer may fire at any moment, whatever its distance, its number
  of earlier tries, or how much was owed when it was armed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.core.endpoint import Endpoint
from stagelink.core.events import Received, Send, TimePassed
from stagelink.core.handshake.session import (
    CLOSED,
    DECLINED,
    DIALING,
    IDLE,
    OwnPlane,
    Session,
)  # fmt: skip
from stagelink.core.messages import Declined, Hello, Lost, Packet
from stagelink.core.pool import Pool
from stagelink.core.settings import Settings
from stagelink.core.values import HostCard, Identity, PlaneCard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.core.timers import TimerKey

PAGE = 4096
FAR = 1e9
"""When a timer is due that has not been told to fire."""

SESSIONS = 1000
"""Session numbers an instance may use before they meet those of the next one."""

TO_SENDER, TO_RECEIVER = 0, 1

OVER = frozenset({IDLE, DIALING, DECLINED, CLOSED})
"""States of a session in which nobody looks at places."""

Names = tuple[tuple[tuple[int, int], ...], tuple[tuple[tuple[int, int], int], ...]]
"""How to rename: (old, new) of sessions; then ((session, direction), shift) of places."""


class Policy(NamedTuple):
    """The time-outs an endpoint asks for; the explorer ignores how long they are."""

    suspect_grace_s: float = 0.5
    successor_s: float = 0.5
    settle_s: float = 0.05
    ack_delay_s: float = 0.05
    silence_s: float = 10.0

    def stuck_write_s(self, size: int) -> float:
        """Any time."""
        return 30.0 + size * 0.0


class Post(NamedTuple):
    """Send, with the message by its number."""

    link: str
    mail: int


class Kit(NamedTuple):
    """What the endpoints of a world are made of."""

    mode: str
    sender_pages: int
    receiver_pages: int
    max_writes: int
    can_fence: bool
    peer_share: float


def name(role: str, number: int) -> bytes:
    """The instance of the *number*-th life of "s" (sender) or "r" (receiver)."""
    return f"{role}{number}".encode()


class Machines:
    """Every endpoint and message met so far, by number (from 1; 0 is none)."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._settings: dict[bytes, Settings] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._frozen: list[tuple[bytes, tuple[Any, ...]]] = [(b"", ())]
        self._mail_numbers: dict[tuple[Any, ...], int] = {}
        self._mail: list[Any] = [None]
        self._steps: dict[tuple[Any, ...], tuple[tuple[Any, ...], int]] = {}
        self._looks: dict[int, Endpoint] = {}
        self._facts: dict[tuple[bool, int], tuple[tuple[int, int, int], ...]] = {}
        self._renamed: dict[tuple[Any, ...], int] = {}

    # --- endpoints -----------------------------------------------------------------------

    def born(self, role: str, number: int) -> int:
        """A new endpoint of that role and life."""
        instance = name(role, number)
        if instance not in self._settings:
            self._settings[instance] = self._settle(role, number)
        pages = self._kit.sender_pages if role == "s" else self._kit.receiver_pages
        pool = Pool(pages * PAGE, PAGE, 0.0, 0.0, pool_id=1 if role == "s" else 2)
        return self._intern(Endpoint(self._settings[instance], pool))

    def _settle(self, role: str, number: int) -> Settings:
        instance = name(role, number)
        plane = OwnPlane(PlaneCard("plane", self._kit.mode, b""), crosses_hosts=False)
        base = (2 * number + (role == "r") + 1) * SESSIONS
        return Settings(
            instance, Identity("a" if role == "s" else "b"), HostCard("host", instance.decode()),
            (plane,), Policy(), PAGE * 8, self._kit.max_writes, base, self._kit.can_fence,  # type: ignore[arg-type]
            peer_share=self._kit.peer_share,
        )  # fmt: skip

    def look(self, number: int) -> Endpoint:
        """The endpoint of that number, to be read only."""
        seen = self._looks.get(number)
        if seen is None:
            if len(self._looks) > 20_000:
                self._looks.clear()
            seen = self._looks[number] = self._thaw(number)
        return seen

    def _thaw(self, number: int) -> Endpoint:
        instance, frozen = self._frozen[number]
        return Endpoint.thaw(self._settings[instance], frozen)

    def _intern(self, endpoint: Endpoint) -> int:
        _forget_times(endpoint)
        return self._number(endpoint.settings.instance, _far(endpoint.freeze()))

    def _number(self, instance: bytes, frozen: tuple[Any, ...]) -> int:
        key = (instance, frozen)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._frozen)
            self._frozen.append(key)
        return number

    def __len__(self) -> int:
        """How many different endpoint states were met."""
        return len(self._frozen) - 1

    def frozen(self, number: int) -> tuple[Any, ...]:
        """The frozen form of that endpoint."""
        return self._frozen[number][1]

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

    # --- normal form ---------------------------------------------------------------------

    def facts(self, mail: bool, number: int) -> tuple[tuple[int, int, int], ...]:
        """(session, direction, place) wherever they occur in a message or an endpoint."""
        key = (mail, number)
        known = self._facts.get(key)
        if known is None:
            value = self._mail[number] if mail else self._frozen[number][1]
            receiver = not mail and self._frozen[number][0][:1] == b"r"
            found = set(_facts_of(value, receiver))
            if receiver:
                found.add((value[5][0], -1, 0))
            known = self._facts[key] = tuple(sorted(found))
        return known

    def rename(self, mail: bool, number: int, names: Names) -> int:
        """The number of that message or endpoint under other names."""
        key = (mail, number, names)
        known = self._renamed.get(key)
        if known is not None:
            return known
        sessions, shifts = dict(names[0]), dict(names[1])
        if mail:
            renamed = _rename(self._mail[number], False, sessions, shifts)
            known = self.mail_number(renamed)
        else:
            instance, frozen = self._frozen[number]
            receiver = instance[:1] == b"r"
            frozen = _rename(frozen, receiver, sessions, shifts)
            if receiver:
                counter, *rest = frozen[5]
                frozen = (*frozen[:5], (sessions.get(counter, counter), *rest))
            known = self._number(instance, frozen)
        self._renamed[key] = known
        return known


def names_for(facts: Iterable[tuple[int, int, int]]) -> Names | None:
    """The renaming to the normal form, or None if everything is in it already."""
    lowest: dict[tuple[int, int], int] = {}
    sessions = set()
    for session, direction, place in facts:
        sessions.add(session)
        if direction >= 0:
            key = (session, direction)
            lowest[key] = min(place, lowest.get(key, place))
    ranks: dict[int, int] = {}
    pairs = []
    for session in sorted(sessions):
        group = session // SESSIONS
        rank = ranks.get(group, 0)
        ranks[group] = rank + 1
        if group and session != group * SESSIONS + rank:
            pairs.append((session, group * SESSIONS + rank))
    shifts = tuple(sorted((key, low) for key, low in lowest.items() if low))
    return (tuple(pairs), shifts) if pairs or shifts else None


def _facts_of(value: Any, receiver: bool) -> Iterable[tuple[int, int, int]]:
    kind = type(value)
    if kind is Session and value.state in OVER:
        yield value.number, -1, 0
    elif kind is Session:
        yield value.number, TO_SENDER if receiver else TO_RECEIVER, value.sent
        yield value.number, TO_RECEIVER if receiver else TO_SENDER, value.taken
    elif kind is Packet:
        yield value.session, TO_RECEIVER if value.report is None else TO_SENDER, value.sequence
    elif kind is Hello:  # a conversation that may begin yet counts from 0
        yield value.session, TO_SENDER, 0
        yield value.session, TO_RECEIVER, 0
    elif kind is Lost or kind is Declined:
        yield value.session, -1, 0
    elif isinstance(value, tuple):
        for part in value:
            yield from _facts_of(part, receiver)


def _rename(value: Any, receiver: bool, names: dict[int, int], shifts: dict[Any, int]) -> Any:
    kind = type(value)
    if kind is Session and value.state in OVER:
        return value._replace(number=names.get(value.number, value.number))
    if kind is Session:
        number, ways = value.number, (TO_SENDER, TO_RECEIVER)
        out, back = ways if receiver else ways[::-1]
        sent = value.sent - shifts.get((number, out), 0)
        taken = value.taken - shifts.get((number, back), 0)
        return Session(value.state, names.get(number, number), sent, taken)
    if kind is Packet:
        way = TO_RECEIVER if value.report is None else TO_SENDER
        place = value.sequence - shifts.get((value.session, way), 0)
        return value._replace(session=names.get(value.session, value.session), sequence=place)
    if kind in {Hello, Lost, Declined}:
        return value._replace(session=names.get(value.session, value.session))
    if not isinstance(value, tuple):
        return value
    parts = [_rename(part, receiver, names, shifts) for part in value]
    if all(new is old for new, old in zip(parts, value, strict=True)):
        return value
    return kind(parts) if kind is tuple else kind(*parts)


def _forget_times(endpoint: Endpoint) -> None:
    """What only says when, or how much, and changes no more than the moment of a timer."""
    for source in endpoint.incoming.sources.values():
        source.owed, source.owed_bytes = min(source.owed, 1), 0
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
