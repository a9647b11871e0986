"""A peer that speaks the protocol and lies: refused, counted by cause, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.fuzz.scene import (
    BOOKS,
    GOOD,
    GUEST,
    HONEST,
    HONEST_KEY,
    LIAR,
    PAGE,
    SMALL,
    WHO,
    WHOLE,
    K,
    Scene,
)  # fmt: skip

from stagelink.core import events as e
from stagelink.core import messages as m
from stagelink.core.messages import CLAIM, INLINE, OFFER, OPEN_LIMIT, PULL, Report
from stagelink.core.values import HostCard, PlaneCard, RegionRef
from stagelink.core.violations import Violation

BIG = 2**63 - 1


class Lie(NamedTuple):
    """What is told, in which mode, and what it is counted as; ``told`` ends our get of ``k``."""

    behaviour: str
    tell: Callable[[Scene], None]
    cause: str
    mode: str = "map"
    told: str = ""


def announce(**changes: Any) -> m.Announce:
    """A page of key ``k``, offered."""
    return m.Announce(1, "k", 7, PAGE, OFFER, WHOLE, b"")._replace(**changes)


def claimed(scene: Scene) -> m.Pull:
    """The liar lets us claim ``k``."""
    scene.say(LIAR, announce(how=CLAIM, where=None))
    return scene.pull_of(LIAR)


def pulling(scene: Scene, link: str = LIAR, key: str = "k") -> m.Pull:
    """The sender on *link* lets us pull *key* into our pool."""
    scene.say(link, announce(how=PULL, where=None, key=key))
    return scene.pull_of(link)


def ask(scene: Scene, generation: int, target: RegionRef | None, transfer: int = 1) -> None:
    """The liar pulls."""
    scene.say(GUEST, m.Pull(transfer, generation, target, 1.0), Report(1, (), 0, ()))


def many(scene: Scene, message: Callable[[int], Any]) -> None:
    """One more of *message* than there may be, under ids that are never closed."""
    for transfer in range(1, 2 * OPEN_LIMIT + 4 + 2):
        scene.say(GUEST, message(transfer), Report(1, (), 0, ()))


def answer(
    ask_for: Callable[[Scene], m.Pull], lie: Callable[[m.Pull], Any]
) -> Callable[[Scene], None]:
    """*lie* is the answer to what was asked."""

    def tell(scene: Scene) -> None:
        asked = ask_for(scene)
        scene.say(LIAR, lie(asked))

    return tell


def both(*tells: Callable[[Scene], object]) -> Callable[[Scene], None]:
    """One after the other."""

    def tell(scene: Scene) -> None:
        for one in tells:
            one(scene)

    return tell


def from_sender(message: Any, **changes: Any) -> Callable[[Scene], None]:
    """*message* out of the blue."""
    return lambda scene: scene.say(LIAR, message, **changes)


def from_reader(message: Any, report: Report = BOOKS, **changes: Any) -> Callable[[Scene], None]:
    """The same from a receiver."""
    return lambda scene: scene.say(GUEST, message, report, **changes)


def welcome_again(**changes: Any) -> Callable[[Scene], None]:
    """The liar's connection is renewed, and it answers as somebody else."""

    def tell(scene: Scene) -> None:
        scene.do(e.Connected(LIAR))
        scene.say(LIAR, scene.welcome(LIAR, **changes))

    return tell


def greet_again(link: str = GUEST, **changes: Any) -> Callable[[Scene], None]:
    """A greeting that is not its own."""
    return lambda scene: scene.do(e.Received(link, scene.hello(GUEST, **changes)))


def as_who_is_away(scene: Scene) -> None:
    """The honest sender's connection is cut for a moment."""
    scene.do(e.Disconnected(HONEST, "cut"))
    welcome_again(instance=WHO[HONEST], host=HostCard("host", "thinker.lock"))(scene)
    scene.do(e.Connected(HONEST))
    scene.say(HONEST, scene.welcome(HONEST, fresh=False))


def done_of(transfer: int) -> m.Done:
    """The news that an honest peer's write has ended."""
    return m.Done(transfer, 7, PAGE)


LIES = [
    # A sender's announcements.
    Lie("announces a region larger than the payload",
        from_sender(announce(where=RegionRef(1, 0, BIG))), "region", told="protocol"),
    Lie("announces a region smaller than the payload",
        from_sender(announce(where=SMALL)), "region", told="protocol"),
    Lie("announces generation 0", from_sender(announce(generation=0)), "generation", told="protocol"),
    Lie("announces record 0", from_sender(announce(number=0)), "generation", told="protocol"),
    Lie("announces a second key under the generation of the first",
        both(claimed, from_sender(announce(key="l"))), "generation"),
    Lie("ends a key for a reason that is ours",
        from_sender(m.Ended((m.Gone(1, "k", 7, "cancelled", ""),))), "reason"),
    Lie("ends a generation under another key",
        both(claimed, from_sender(m.Ended((m.Gone(2, "l", 7, "expired", ""),)))),
        "generation"),
    # A sender's answers.
    Lie("offers what was not asked for", from_sender(m.Offer(99, 7, WHOLE, b"")), "late"),
    Lie("offers another generation", answer(claimed, lambda p: m.Offer(p.transfer, 8, WHOLE, b"")),
        "answer", told="protocol"),
    Lie("offers a larger region", answer(claimed, lambda p: m.Offer(p.transfer, 7, RegionRef(1, 0, BIG), b"")),
        "answer", told="protocol"),
    Lie("offers fewer bytes", answer(claimed, lambda p: m.Offer(p.transfer, 7, None, b"few")),
        "answer", told="protocol"),
    Lie("offers where a write was asked for",
        answer(pulling, lambda p: m.Offer(p.transfer, 7, WHOLE, b"")), "late", "write"),
    Lie("is done with what was not asked for", from_sender(done_of(99)), "late"),
    Lie("is done with an honest sender's transfer",
        lambda scene: scene.say(LIAR, done_of(scene.pull_of(HONEST).transfer)), "late", "write"),
    Lie("refuses an honest sender's transfer",
        lambda scene: scene.say(LIAR, m.Refused(scene.pull_of(HONEST).transfer, "taken", "")), "late", "write"),
    Lie("is done with another generation", answer(pulling, lambda p: m.Done(p.transfer, 8, PAGE)),
        "answer", "write", "protocol"),
    Lie("is done with another length", answer(pulling, lambda p: m.Done(p.transfer, 7, BIG)),
        "answer", "write", "protocol"),
    Lie("is done with a claim", answer(claimed, lambda p: m.Done(p.transfer, 7, PAGE)),
        "answer", told="protocol"),
    Lie("refuses for a reason that is ours",
        answer(pulling, lambda p: m.Refused(p.transfer, "rejected", "")), "reason", "write", "protocol"),
    # A sender's conversation.
    Lie("speaks in another session", from_sender(m.Synced(1), session=BIG), "stale"),
    Lie("leaves a sequence number out", from_sender(m.Synced(1), sequence=BIG), "stale"),
    Lie("repeats a sequence number", from_sender(m.Synced(1), sequence=0), "stale"),
    Lie("welcomes twice", lambda scene: scene.say(LIAR, scene.welcome(LIAR)), "stale"),
    Lie("welcomes as an honest sender", welcome_again(instance=WHO[HONEST], host=HostCard("host", "thinker.lock")),
        "identity", told="declined"),
    Lie("welcomes as an honest sender that is away",
        as_who_is_away, "identity", "write", "declined"),
    Lie("welcomes with another proof of life", welcome_again(host=HostCard("host", "dead.lock")),
        "identity", told="declined"),
    Lie("welcomes by a plane that we have not", welcome_again(plane=PlaneCard("rdma", "map", b"")),
        "route", told="declined"),
    Lie("welcomes by a plane of another mode", welcome_again(plane=PlaneCard("shm", "write", b"")),
        "route", told="declined"),
    # A receiver's pulls.
    Lie("pulls what never was", lambda scene: ask(scene, 99, None), "unknown"),
    Lie("pulls what is for another stage", lambda scene: ask(scene, 3, None), "unknown"),
    Lie("pulls into a smaller region", lambda scene: ask(scene, 1, SMALL), "region", "write"),
    Lie("pulls into a larger region", lambda scene: ask(scene, 1, RegionRef(1, 0, BIG)), "region", "write"),
    Lie("pulls without a target", lambda scene: ask(scene, 1, None), "route", "write"),
    Lie("pulls into a target where it maps", lambda scene: ask(scene, 1, WHOLE), "route"),
    Lie("pulls under ids without end",
        lambda scene: many(scene, lambda transfer: m.Pull(transfer, 1, None, 1.0)), "transfers"),
    Lie("cancels ids without end", lambda scene: many(scene, m.Cancel), "transfers"),
    # A receiver's books.
    Lie("counts itself as the reader of what is another's", from_reader(m.Ack((2,))), "consumed"),
    Lie("reports news that it was never told", from_reader(m.Ack(()), Report(1, (), BIG, ())), "cursor"),
    # A receiver's conversation.
    Lie("is in another session", from_reader(m.Subscribe(), session=BIG), "stale"),
    Lie("leaves one out", from_reader(m.Subscribe(), sequence=BIG), "stale"),
    Lie("repeats one", from_reader(m.Subscribe(), sequence=0), "stale"),
    Lie("greets with another proof of life", greet_again(host=HostCard("host", "dead.lock")), "identity"),
    Lie("greets as an honest receiver, on its own connection", greet_again(instance=WHO[GOOD], host=HostCard("host", f"{GOOD}.lock")), "identity"),
    Lie("greets as an honest receiver, with a proof of its own",
        greet_again("accepted:new", instance=WHO[GOOD], host=HostCard("host", "dead.lock")), "identity"),
    Lie("greets as one of our senders, with a proof of its own",
        greet_again("accepted:new", instance=WHO[HONEST], host=HostCard("host", "dead.lock")), "identity"),
]  # fmt: skip
UNTOUCHED = [
    # What costs the others nothing, and the liar what it says.
    Lie("acknowledges what never was", from_reader(m.Ack((99, BIG))), ""),
    Lie("acknowledges what is for another stage", from_reader(m.Ack((3,))), ""),
    Lie("views what it never had as it leaves", from_reader(m.Bye((2, 3, 99, BIG))), ""),
    Lie("holds what it never had", from_reader(m.Ack(()), Report(1, (), 0, tuple(range(60_000)))), ""),
    Lie("has ids open that never were", from_reader(m.Ack(()), Report(BIG, (BIG, 5), 0, ())), ""),
    Lie("says goodbye and goes on", both(from_sender(m.Bye((1, 2, BIG))), from_sender(m.Bye(()))), "", told="peer_gone"),
    Lie("queries what is not there", from_reader(m.Query("secret")), ""),
    Lie("queries over and over", lambda scene: many(scene, lambda _: m.Query("one")), ""),
]  # fmt: skip


@pytest.mark.parametrize(
    "lie", [*LIES, *UNTOUCHED], ids=lambda lie: lie.behaviour.replace(" ", "_")
)
def test_a_lie_is_refused_and_counted_and_nobody_else_notices(lie: Lie) -> None:
    scene = Scene(lie.mode)
    write = lie.mode == "write"
    if write:
        pulling(scene, HONEST, "fine")
    assert scene.counted() == {}, "the scene itself is honest"
    before = scene.machine.pool.stats()

    lie.tell(scene)

    expected = {lie.cause} if lie.cause else set()
    assert set(scene.counted()) == expected
    told = scene.answers.get(K)
    assert (told.reason if told is not None else "") == lie.told
    assert scene.machine.pool.stats().free >= before.free - PAGE, (
        "a page of the liar's own at most"
    )
    entries = {
        entry.key: entry
        for one in scene.machine.outgoing.ledgers.values()
        for entry in one.entries.values()
    }
    assert {"one", "named", "secret"} == set(entries), "nobody but a reader takes what is put"
    assert entries["named"].counted == entries["secret"].counted == ()
    the_honest_go_on(scene)


def the_honest_go_on(scene: Scene) -> None:
    """A get from the honest sender, and one by the honest reader, in that very scene."""
    if scene.mode == "write":
        pull = scene.pull_of(HONEST)
        scene.say(HONEST, m.Done(pull.transfer, 7, PAGE))
        scene.say(GOOD, m.Pull(1, 2, RegionRef(1, PAGE, PAGE), 1.0), Report(1, (1,), 0, ()))
        mine = [write for write in scene.writes if write.peer == WHO[GOOD]]
        assert [write.target for write in mine] == [RegionRef(1, PAGE, PAGE)]
        assert not [write for write in scene.writes if write.peer not in WHO.values()]
        scene.do(e.WriteEnded(WHO[GOOD], 1, ""))
        assert isinstance(scene.last_said(), m.Done)
    else:
        scene.say(HONEST, m.Announce(1, "fine", 7, PAGE, OFFER, WHOLE, b""))
        scene.say(GOOD, m.Ack((2,)), Report(1, (), 0, ()))
        assert "named" not in scene.machine.outgoing.ledgers["reader"].by_key
    got = scene.answers[HONEST_KEY]
    assert isinstance(got, e.Delivery), got
    assert (got.size, got.peer) == (PAGE, WHO[HONEST])


def test_every_cause_has_a_lie() -> None:
    assert {lie.cause for lie in LIES} - {"late", "stale"} | {"readers"} == {
        one.value for one in Violation
    }


def test_a_liar_that_ends_its_lies_is_served() -> None:
    scene = Scene()
    scene.say(LIAR, m.Done(99, 7, PAGE))

    scene.say(LIAR, m.Announce(1, "k", 1, 3, INLINE, None, b"abc"))

    assert scene.answers[K].body == b"abc"


def test_a_write_outside_of_regions_is_told_and_counted() -> None:
    scene = Scene("write")
    ask(scene, 1, RegionRef(99, BIG, PAGE))
    [order] = scene.writes

    scene.do(e.WriteEnded(order.peer, order.transfer, "bytes are outside a region"))

    assert scene.counted() == {"failed": 1}
    told = scene.last_said()
    assert (told.reason, told.detail) == ("transfer_failed", "bytes are outside a region")


def test_an_announcement_without_end_is_forgotten_at_the_limit() -> None:
    scene = Scene("map")
    claimed(scene)
    for number in range(2, 70_000):
        scene.say(LIAR, m.Announce(number, f"n{number}", 7 + number % 2, PAGE, CLAIM, None, b""))

    inbox = scene.machine.incoming.sources[LIAR].inbox
    assert len(inbox) <= 65_536


def test_receivers_without_end_are_forgotten_or_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    from stagelink.core import receivers

    monkeypatch.setattr(receivers, "READERS_LIMIT", 8)
    scene = Scene("map")
    for number in range(100):
        link, instance = f"accepted:{number}", number.to_bytes(16, "big")
        hello = scene.hello(GUEST, instance=instance, host=HostCard("host", "forged"))
        identity = hello.identity._replace(stage=f"stage-{number}")
        scene.do(e.Received(link, hello._replace(identity=identity, session=1)))
        if number % 2:
            scene.do(e.Disconnected(link, "gone"))
    scene.do(e.TimePassed())

    assert len(scene.readers) == 8
    assert scene.counted()["readers"] > 10
    assert len(scene.machine.outgoing.ledgers) <= 9
    assert len(scene.machine.peers.watches) <= 10
    the_honest_go_on(scene)
