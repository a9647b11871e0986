"""For every way a call can fail, its message alone tells a stranger what happened and what to try."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviours.kit import MIB, body, doom, opening

from stagelink import StagelinkError
from stagelink.adapters.memory import WriteFault
from stagelink.core import messages as m
from stagelink.core.errors import Context, Reason
from stagelink.core.events import Failure, Received
from stagelink.core.values import RegionRef
from stagelink.failures import error_of
from stagelink.plugins.conformance.connector import eventually

if TYPE_CHECKING:
    from stagelink.connector import Connector

PATIENCE_S = 10.0
SHORT_S = 0.05
PAGE_OF_ERRORS = Path(__file__).parents[2] / "docs/reference/errors.md"
ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \| (.+?) \| (.*?) \|$", re.MULTILINE)


class Stage:
    """A sender ``thinker`` and receivers ``talker``, and the calls that are left running."""

    def __init__(self, open_: Callable[..., Connector]) -> None:
        self.open = open_
        self.tx = open_(stage="thinker", role="sender")
        self.rx = self.receiver()
        self.key = "req-7"

    def receiver(self, **settings: Any) -> Connector:
        """One more connector of stage ``talker``."""
        settings = {"sender": self.tx.endpoint, **settings}
        return self.open(stage="talker", role="receiver", **settings)

    def linked(self, rx: Connector) -> None:
        """Have the two talk."""
        self.tx.put("warm", b"up", to="talker")
        rx.get("warm", source="thinker", timeout=PATIENCE_S).close()

    def put(self, value: Any = b"abc", **how: Any) -> Any:
        """Put under our key."""
        return self.tx.put(self.key, value, to="talker", **how)

    def get(self, rx: Connector | None = None, **how: Any) -> Any:
        """Get our key."""
        how = {"timeout": PATIENCE_S, **how}
        return (rx or self.rx).get(self.key, source="thinker", **how)

    def get_while(self, act: Callable[[], object], rx: Connector | None = None, **how: Any) -> Any:
        """Get our key, and do *act* once that waits."""
        rx = rx or self.rx
        stopped = threading.Thread(target=self._when_waiting, args=(rx, act))
        stopped.start()
        try:
            return self.get(rx, **how)
        finally:
            stopped.join(PATIENCE_S)

    def _when_waiting(self, rx: Connector, act: Callable[[], object]) -> None:
        assert eventually(
            lambda: rx.health()["inbox"]["gets"] > 0 and self.is_open(rx), PATIENCE_S
        )
        act()

    def is_open(self, rx: Connector) -> bool:
        """Whether the receiver has met its sender."""
        return any(row["state"] == "open" for row in rx.health()["sessions"])

    def say(self, *messages: Any) -> None:
        """Let the sender seem to say that; what it really says from now on is out of place."""
        driver, address = self.rx._driver, self.tx.endpoint
        for message in messages:
            session = driver.look(lambda e: e.incoming.sources[address].session)
            packet = m.Packet(session.number, session.taken, None, message)
            driver.submit(Received(address, packet))

    def announce(self, how: int = m.PULL, where: RegionRef | None = None) -> m.Announce:
        """An announcement of a page under our key."""
        return m.Announce(1, self.key, 99, 4096, how, where, b"")


def transfer_of(stage: Stage) -> int:
    """The transfer that our get has begun."""
    return stage.rx._driver.look(lambda e: e.incoming.fetches.all()[0].transfer)


def answered(lie: Callable[[int], Any]) -> Callable[[Stage], object]:
    """A get whose transfer is answered by *lie*."""

    def fail(stage: Stage) -> object:
        def act() -> None:
            stage.say(stage.announce())
            stage.say(lie(transfer_of(stage)))

        return stage.get_while(act)

    return fail


def expired(stage: Stage) -> object:
    """A get of what nobody took in time."""
    stage.linked(stage.rx)
    stage.put(body(1, MIB), ttl=0.01)
    assert eventually(lambda: not stage.tx.health()["ledger"]["entries"], PATIENCE_S)
    return stage.get()


def withdrawn(stage: Stage) -> object:
    """A get of what was taken back."""
    stage.linked(stage.rx)
    stage.put(body(1, MIB))
    assert stage.tx.withdraw(stage.key, to="talker")
    return stage.get()


def replaced(stage: Stage) -> object:
    """A get of a payload that another has taken the place of."""
    old = stage.put(body(1, MIB)).metadata
    stage.put(b"new", replace=True)
    return stage.get(metadata=old)


def closed(stage: Stage) -> object:
    """A put on a closed connector."""
    stage.tx.close()
    return stage.put()


def full(stage: Stage) -> object:
    """A put into a pool that others have filled."""
    for number in range(3):
        stage.tx.put(f"fill-{number}", body(number, 2 * MIB - 65_536), to="nobody", timeout=0.0)
    return stage.put(body(1, 2 * MIB), timeout=0.0)


def full_here(stage: Stage) -> object:
    """A get into a pool whose payloads are all in use."""
    rx = stage.receiver(replica=1, pool_bytes=2 * MIB)
    stage.tx.put("held", body(1, MIB), to="talker")
    stage.put(body(2, MIB))
    with rx.get("held", source="thinker", timeout=PATIENCE_S) as held:
        view = held.value
        try:
            assert rx.wait([stage.key], source="thinker", timeout=PATIENCE_S) == stage.key
            return stage.get(rx, timeout=SHORT_S)
        finally:
            del view, held


def unreachable(stage: Stage) -> object:
    """A get from where nobody listens, for longer than the grace."""
    rx = stage.receiver(replica=1, sender="memory://999999", timeouts={"suspect_grace_s": 0.01})
    return stage.get(rx, timeout=0.2)


def restarted(stage: Stage) -> object:
    """A get of what an instance put that is not at this address any more."""
    metadata = {**stage.put(body(1, MIB)).metadata, "instance": "ab" * 16}
    stage.tx.put("warm", b"", to="talker")
    stage.rx.get("warm", source="thinker", timeout=PATIENCE_S).close()
    return stage.get(metadata=metadata)


def broken(stage: Stage) -> object:
    """A get whose write fails."""
    doom(stage.tx, WriteFault.FAILING)
    stage.put(body(1, MIB))
    return stage.get()


def corrupt(stage: Stage) -> object:
    """A get of a payload whose bytes have changed on their way."""
    key, (tx, rx) = stage.key, pair_with_digests(stage.open)
    tx.put(key, body(1, MIB), to="talker")
    entry = tx._driver.look(lambda e: next(iter(e.outgoing.ledgers["talker"].entries.values())))
    assert entry.block is not None
    tx._driver.parts.memory.buffer[entry.block.offset + MIB // 2] ^= 1
    stage.rx = rx
    return stage.get()


def pair_with_digests(open_: Callable[..., Connector]) -> tuple[Connector, Connector]:
    """A sender and a receiver that check."""
    tx = open_(stage="thinker", role="sender", integrity="xxh3", replica=1)
    return tx, open_(
        stage="talker", role="receiver", integrity="xxh3", sender=tx.endpoint, replica=1
    )


def fenced(stage: Stage) -> object:
    """A get whose sender is cut off between the answer and the first look at the bytes."""

    def act() -> None:
        stage.rx._driver.work._plane_of.clear()
        stage.say(stage.announce(m.OFFER, RegionRef(1, 0, 4096)))

    return stage.get_while(act)


def out_of_bounds(stage: Stage) -> object:
    """A get of what lies outside of its sender's memory; the plane of this pair maps."""
    with opening("memory") as open_:
        mapped = Stage(open_)
        stage.rx = mapped.rx

        def act() -> None:
            mapped.say(mapped.announce(m.OFFER, RegionRef(1, 1 << 40, 4096)))

        return mapped.get_while(act)


def declined(stage: Stage) -> object:
    """A get by a name that is not that of who is there."""
    return stage.rx.get(stage.key, source="nobody", timeout=PATIENCE_S)


def goner(stage: Stage) -> object:
    """A wait for keys of a sender that has closed."""
    stage.linked(stage.rx)
    stage.tx.close()
    return stage.rx.wait(["x"], source="thinker", timeout=PATIENCE_S)


def polled(stage: Stage) -> object:
    """Polls until there is something."""
    stage.tx.fail(stage.key, "no such voice", to="talker")
    return eventually(lambda: stage.rx.poll(stage.key, source="thinker") is not None, PATIENCE_S)


GETS: dict[Reason, Callable[[Stage], object]] = {
    Reason.EXPIRED: expired,
    Reason.WITHDRAWN: withdrawn,
    Reason.REPLACED: replaced,
    Reason.TAKEN: answered(lambda t: m.Refused(t, "taken", "every reader's slot is taken")),
    Reason.FAILED: lambda s: (s.tx.fail(s.key, ValueError("no such voice"), to="talker"), s.get())[1],
    Reason.CANCELLED: lambda s: s.get_while(lambda: s.rx.cancel(s.key, source="thinker")),
    Reason.REJECTED: lambda s: s.get_while(lambda: s.rx.reject(s.key, source="thinker")),
    Reason.CLOSED: lambda s: s.get_while(s.rx.close),
    Reason.DEADLINE: lambda s: s.get(timeout=SHORT_S),
    Reason.UNREACHABLE: unreachable,
    Reason.PEER_GONE: lambda s: s.get_while(s.tx.close),
    Reason.PEER_RESTARTED: restarted,
    Reason.DECLINED: declined,
    Reason.NEVER_FITS: lambda s: (s.put(body(1, 2 * MIB)), s.get(s.receiver(replica=1, pool_bytes=MIB)))[1],
    Reason.NO_ROOM: full_here,
    Reason.UNKNOWN: answered(lambda t: m.Refused(t, "unknown", "")),
    Reason.OUT_OF_BOUNDS: out_of_bounds,
    Reason.MISMATCH: lambda s: s.get(metadata={**s.put(body(1, MIB)).metadata, "size": 7}),
    Reason.BUDGET: answered(lambda t: m.Refused(t, "budget", "not begun within its budget")),
    Reason.TRANSFER_FAILED: broken,
    Reason.FENCED: fenced,
    Reason.CORRUPT: corrupt,
    Reason.PROTOCOL: answered(lambda t: m.Done(t, 98, 4096)),
}  # fmt: skip
PUTS: dict[Reason, Callable[[Stage], object]] = {
    Reason.NEVER_FITS: lambda s: s.put(body(1, 64 * MIB)),
    Reason.NO_ROOM: full,
    Reason.DUPLICATE: lambda s: (s.put(), s.put())[1],
    Reason.CLOSED: closed,
}
OTHERS: dict[str, tuple[Reason, Callable[[Stage], object]]] = {
    "alloc": (Reason.NEVER_FITS, lambda s: s.tx.alloc((64 * MIB,), "uint8")),
    "wait": (Reason.DEADLINE, lambda s: s.rx.wait(["x", "y"], source="thinker", timeout=SHORT_S)),
    "get_many": (Reason.DEADLINE, lambda s: s.rx.get_many([s.key], source="thinker", timeout=SHORT_S)),
    "poll": (Reason.FAILED, polled),
    "stream": (Reason.DEADLINE, lambda s: next(s.rx.stream(s.key, source="thinker", timeout=SHORT_S))),
    "wait of a goner": (Reason.PEER_GONE, goner),
}  # fmt: skip
ELSEWHERE = {Reason.QUARANTINED: "needs a process that is stopped: tests/chaos/test_silence.py"}
"""Reasons that no call of this module ends with, and where one does."""


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A pair that writes, so that every kind of transfer can be."""
    with opening("memory-write") as open_:
        yield Stage(open_)


def failure_of(call: Callable[[Stage], object], stage: Stage) -> StagelinkError:
    """What *call* raises; one line with a remedy, complete."""
    with pytest.raises(StagelinkError) as caught:
        call(stage)
    return caught.value


def is_told(error: StagelinkError, reason: Reason, *facts: str) -> None:
    """Whether the message has it all: what happened, *facts*, how long it took, what to try."""
    text = str(error)
    assert error.reason is reason
    assert "\n" not in text
    assert error.remedy, "what to try"
    assert text.endswith(f"; {error.remedy}")
    for fact in (*facts, "elapsed_s="):
        assert fact in text, (fact, text)
    assert len(error.message) > len(reason.value) + 8, "some words"


def counted(connector: Connector, cause: str) -> int:
    """Failed calls of *cause* so far."""
    count: int = connector.health()["errors"].get(cause, 0)
    return count


@pytest.mark.parametrize("reason", GETS, ids=lambda reason: reason.value)
def test_a_get_that_fails_says_everything_and_is_counted_by_cause(
    stage: Stage, reason: Reason
) -> None:
    made: list[Connector] = []
    opened = stage.open

    def open_(**settings: Any) -> Connector:
        made.append(opened(**settings))
        return made[-1]

    stage.open = open_

    error = failure_of(GETS[reason], stage)

    edge = "nobody->talker" if reason is Reason.DECLINED else "thinker->talker"
    is_told(
        error,
        reason,
        f"key={stage.key}",
        f"edge={edge}",
        "peer=" if reason not in {Reason.CLOSED} else "",
    )
    receivers = {id(one): one for one in (stage.rx, *made)}.values()
    assert sum(counted(one, reason.value) for one in receivers) == 1
    if reason in {
        Reason.TAKEN,
        Reason.UNKNOWN,
        Reason.BUDGET,
        Reason.TRANSFER_FAILED,
        Reason.PROTOCOL,
    }:
        assert "transfer_id=" in str(error)


@pytest.mark.parametrize("reason", PUTS, ids=lambda reason: reason.value)
def test_a_put_that_fails_says_everything_and_is_counted_by_cause(
    stage: Stage, reason: Reason
) -> None:
    error = failure_of(PUTS[reason], stage)

    is_told(error, reason, f"key={stage.key}", "edge=thinker->talker")
    assert counted(stage.tx, reason.value) == 1


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_call_that_fails_does_so_too(stage: Stage, name: str) -> None:
    reason, call = OTHERS[name]

    error = failure_of(call, stage)

    is_told(error, reason, "edge=" if name != "alloc" else "")
    assert counted(stage.tx if name == "alloc" else stage.rx, reason.value) == 1


def test_every_reason_ends_some_call_here_and_has_its_row() -> None:
    rows = {
        word: (kind, meaning, remedy)
        for word, kind, meaning, remedy in ROW.findall(PAGE_OF_ERRORS.read_text(encoding="utf-8"))
    }

    assert set(rows) == {reason.value for reason in Reason}
    assert {*GETS, *PUTS, *ELSEWHERE} == set(Reason)
    for reason in Reason:
        error = error_of(Failure(reason.value, ""), Context())
        kind, meaning, remedy = rows[reason.value]
        said = error.message.removesuffix(": ")
        assert (type(error).__name__, said, error.remedy) == (kind, meaning, remedy)
        assert remedy, reason
