"""What happens in one round of the hunt, drawn from its number: no clock, no process.

Four roles. ``hub`` and ``witness`` survive: stage ``hub``, replicas 0 and 1, the first of them sends
too. ``mortal`` and ``second`` are struck: stage ``mortal``, replicas 0 and 1, the first sends too.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, NamedTuple

LANES: dict[str, dict[str, Any]] = {
    "shm": {"backend": "shm"},
    "shm-write": {"backend": "shm-write"},
    "shm, ZeroMQ": {"backend": "shm", "shortcut": False},
    "shm-write, ZeroMQ": {"backend": "shm-write", "shortcut": False},
    "frames": {"backend": "frames"},
}
"""What is hunted, as settings of a connector; a later backend joins by a line. Rounds take turns."""

POOL = 16 << 20
ROLES: dict[str, dict[str, Any]] = {
    "hub": {"stage": "hub", "role": "peer"},
    "witness": {"stage": "hub", "role": "receiver", "replica": 1},
    "mortal": {"stage": "mortal", "role": "peer"},
    "second": {"stage": "mortal", "role": "receiver", "replica": 1},
}
SURVIVORS, MORTALS = ("hub", "witness"), ("mortal", "second")
IDENTITIES = {"hub": "hub", "witness": "hub/1/0", "mortal": "mortal", "second": "mortal/1/0"}
STAGES = {role: str(settings["stage"]) for role, settings in ROLES.items()}

STRIKES = {
    "calm": 2, "kill": 6, "stop": 5, "stop and kill": 3, "restart": 5, "close": 3, "reopen": 2,
    "fork and kill": 1, "fork and restart": 1,
}  # fmt: skip
"""What befalls one of the mortals, and how often. A stop may befall a survivor, too. What is forked
lives on for the round, with copies of all that its parent had open."""

AGAIN = frozenset({"restart", "reopen", "fork and restart"})

SENDER_ABORTS = ("withdraw", "replace")
GETTER_ABORTS = ("cancel", "reject")


class HandOff(NamedTuple):
    """A payload or a stream on its way from one role to others.

    Attributes:
        readers: as a put takes it: a number, or identities.
        getters: the roles that ask for it.
        chunks: of a stream; 0: a payload.
        at_ms: when it is put, and for each getter when it asks for it.
        timeout_s: of each get.
        hold_ms: how long a getter looks at what it got.
        pause_ms: between two chunks.
        abort: what ends it early, if anything, at *abort_ms*; ``by`` says who.
        sure: neither side is struck and nobody aborts it, so it must come.
    """

    key: str
    sender: str
    getters: tuple[str, ...]
    readers: int | tuple[str, ...]
    size: int
    chunks: int
    at_ms: tuple[float, ...]
    timeout_s: float
    hold_ms: float
    pause_ms: float
    abort: str = ""
    abort_ms: float = 0.0
    by: str = ""
    sure: bool = False


class Strike(NamedTuple):
    """What befalls *whom* at *at_ms*; a stop lasts *for_ms*."""

    at_ms: float
    what: str
    whom: str
    for_ms: float = 0.0


class Plan(NamedTuple):
    """One round.

    Attributes:
        meets: everybody has heard of everybody before it begins.
        end: how the mortals that are left end: ``kill`` or ``close``.
    """

    number: int
    lane: str
    meets: bool
    hand_offs: tuple[HandOff, ...]
    strikes: tuple[Strike, ...]
    end: str

    def __str__(self) -> str:
        """One line for each thing that happens."""
        head = f"round {self.number} on {self.lane!r}, meets={self.meets}, end={self.end}"
        strikes = [_line(one) for one in self.strikes]
        return "\n".join([head, *strikes, *[_line(one) for one in self.hand_offs]])


def _line(thing: Strike | HandOff) -> str:
    shown = (f"{name}={value!r}" for name, value in thing._asdict().items() if value)
    return f"  {type(thing).__name__}: {' '.join(shown)}"


def draw(number: int, lanes: tuple[str, ...] = tuple(LANES)) -> Plan:
    """The plan of round *number*; a round's number settles everything but the timing."""
    dice = Random(number)
    strikes = _strikes(dice)
    struck = {strike.whom for strike in strikes}
    count = dice.randint(4, 9)
    hand_offs = tuple(_hand_off(dice, f"{number}.{nth}", struck) for nth in range(count))
    meets = dice.random() < 0.85
    return Plan(
        number, lanes[number % len(lanes)], meets,
        hand_offs if meets and _fit(hand_offs) else _unsure(hand_offs), strikes,
        dice.choice(("kill", "kill", "close")),
    )  # fmt: skip


def _strikes(dice: Random) -> tuple[Strike, ...]:
    what = dice.choices(list(STRIKES), list(STRIKES.values()))[0]
    if what == "calm":
        return ()
    whom = dice.choices(MORTALS, (3, 1))[0]
    strikes = [Strike(_moment(dice), what, whom, _pause(dice))]
    if dice.random() < (0.4 if what == "stop" else 0.15):
        strikes.append(Strike(_moment(dice), "stop", dice.choice(SURVIVORS), _pause(dice)))
    if dice.random() < 0.2:
        other = MORTALS[whom == MORTALS[0]]
        strikes.append(Strike(_moment(dice), dice.choice(("kill", "stop")), other, _pause(dice)))
    return tuple(sorted(strikes))


def _hand_off(dice: Random, key: str, struck: set[str]) -> HandOff:
    inwards = dice.random() < 0.6
    sender, others = ("mortal", SURVIVORS) if inwards else ("hub", MORTALS)
    chunks = dice.randint(2, 6) if dice.random() < 0.25 else 0
    way = dice.choice(("one", "one", "both", "contest"))
    getters = (dice.choice(others),) if way == "one" else others
    readers: int | tuple[str, ...] = tuple(IDENTITIES[role] for role in getters)
    if way == "contest":
        readers = 1
    elif dice.random() < 0.3:
        readers = len(getters)
    put_ms = round(dice.uniform(0.0, 25.0), 1)
    times = (put_ms, *(round(max(0.0, put_ms + dice.gauss(0.0, 8.0)), 1) for _ in getters))
    abort, by = _abort(dice, sender, getters, chunks)
    sure = not abort and way != "contest" and not struck & {sender, *getters}
    return HandOff(
        key, sender, getters, readers, _size(dice, chunks), chunks, times,
        6.0 if sure else dice.choice((0.05, 0.2, 0.4, 0.8)),
        dice.choice((0.0, 0.0, 2.0, 15.0)), dice.choice((0.0, 1.0, 4.0)),
        abort, round(put_ms + dice.uniform(0.0, 12.0), 1), by, sure,
    )  # fmt: skip


def _abort(dice: Random, sender: str, getters: tuple[str, ...], chunks: int) -> tuple[str, str]:
    """What ends a hand-off early, and who does it."""
    if dice.random() >= 0.3:
        return "", ""
    if chunks:
        return dice.choice((("abort", sender), ("leave", getters[0])))
    if dice.random() < 0.5:
        return dice.choice(SENDER_ABORTS), sender
    return dice.choice(GETTER_ABORTS), dice.choice(getters)


def _unsure(hand_offs: tuple[HandOff, ...]) -> tuple[HandOff, ...]:
    """Of roles that may not even find each other, or room, in time."""
    return tuple(one._replace(sure=False, timeout_s=min(one.timeout_s, 0.8)) for one in hand_offs)


def _fit(hand_offs: tuple[HandOff, ...]) -> bool:
    """Whether there is room for everything, even if nobody takes any of it."""
    loads = Counter[str]()
    for one in hand_offs:
        loads[one.sender] += one.size * max(1, one.chunks)
    return max(loads.values()) <= POOL // 2


def _moment(dice: Random) -> float:
    """Milliseconds; in the middle of the traffic most of the time."""
    return round(dice.uniform(0.0, dice.choice((3.0, 40.0, 90.0))), 1)


def _pause(dice: Random) -> float:
    return dice.choice((5.0, 30.0, 150.0, 700.0))


def _size(dice: Random, chunks: int) -> int:
    sizes = (1, 60 << 10), (100 << 10, 1 << 20), (2 << 20, 3 << 20), (5 << 20, 7 << 20)
    weights = (6, 9, 0, 0) if chunks else (6, 9, 4, 1)
    return dice.randint(*dice.choices(sizes, weights)[0])
