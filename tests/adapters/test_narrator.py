"""What is told is a difference between two glances; here the glances are made by hand."""

from __future__ import annotations

from typing import Any

from stagelink.adapters.threads.narrator import GLANCE_S, IDLE_GLANCE_S, MISSING_S, Narrator
from stagelink.adapters.threads.sightings import Held, Sight, Talk

PEER = b"\x01" * 16


class Told:
    """An event log that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.fields: dict[str, dict[str, object]] = {}

    def debug(self, event: str, /, **fields: object) -> None:
        self._keep("debug", event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._keep("info", event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._keep("warning", event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._keep("error", event, fields)

    def _keep(self, level: str, event: str, fields: dict[str, object]) -> None:
        self.events.append((level, event))
        self.fields[event] = fields


def talk(state: str, number: int = 1) -> dict[tuple[str, str], Talk]:
    row = Talk(state, number, PEER, "thinker", "tcp://a:1", "thinker->talker", "reset")
    return {("in", "tcp://a:1"): row}


def glance(
    narrator: Narrator,
    now_s: float,
    talks: dict[tuple[str, str], Talk] | None = None,
    leases: dict[tuple[str, bytes, int], Held] | None = None,
    quarantined: int = 0,
) -> None:
    seen: Any = Sight(talks or {}, leases or {}, quarantined)
    narrator.look(lambda _: seen, now_s)


def test_a_session_that_comes_back_says_how_long_it_was_away() -> None:
    told = Told()
    narrator = Narrator(told, 10.0)

    for now_s, state, number in [(0.0, "open", 1), (2.0, "dialing", 1), (5.0, "open", 2)]:
        glance(narrator, now_s, talk(state, number))

    assert told.events == [
        ("debug", "session_open"), ("warning", "session_lost"), ("info", "session_back"),
    ]  # fmt: skip
    assert told.fields["session_back"]["elapsed_s"] == 3.0


def test_a_session_that_was_lost_and_is_open_again_at_the_next_glance_is_told() -> None:
    told = Told()
    narrator = Narrator(told, 10.0)

    glance(narrator, 0.0, talk("open", 1))
    glance(narrator, 1.0, talk("open", 2))

    assert told.events[-1] == ("info", "session_back")


def test_a_session_that_stays_as_it_is_says_nothing_more() -> None:
    told = Told()
    narrator = Narrator(told, 10.0)

    for now_s in range(20):
        glance(narrator, float(now_s), talk("open"))

    assert told.events == [("debug", "session_open")]


def test_a_sender_that_is_never_reached_is_worth_one_warning_after_a_while() -> None:
    told = Told()
    narrator = Narrator(told, 10.0)

    glance(narrator, 0.0, talk("dialing"))
    glance(narrator, MISSING_S - 0.1, talk("dialing"))
    assert told.events == []
    for later_s in (0.0, 1.0, 100.0):
        glance(narrator, MISSING_S + later_s, talk("dialing"))

    assert told.events == [("warning", "sender_missing")]


def test_a_lease_is_told_once_with_its_holder_when_it_is_old() -> None:
    told = Told()
    narrator = Narrator(told, 10.0)
    leases = {("out", PEER, 7): Held("req-7", "thinker->talker", "talker/1/0")}

    for now_s in (0.0, 9.9):
        glance(narrator, now_s, leases=leases)
    assert (told.events, narrator.held_long) == ([], 0)
    for now_s in (10.0, 11.0, 30.0):
        glance(narrator, now_s, leases=leases)

    assert told.events == [("warning", "lease_warning")]
    assert told.fields["lease_warning"]["peer"] == "talker/1/0"
    assert narrator.held_long == 1
    glance(narrator, 31.0)
    assert narrator.held_long == 0


def test_quarantine_is_told_when_it_begins_and_when_it_ends() -> None:
    told = Told()
    narrator = Narrator(told, 10.0)

    for now_s, bytes_now in enumerate([0, 4096, 8192, 0, 0]):
        glance(narrator, float(now_s), quarantined=bytes_now)

    assert told.events == [("info", "quarantine_entered"), ("info", "quarantine_left")]


def test_the_next_glance_is_sooner_while_something_is_held() -> None:
    narrator = Narrator(Told(), 10.0)

    glance(narrator, 100.0)
    assert narrator.due_s == 100.0 + IDLE_GLANCE_S
    glance(narrator, 100.0, quarantined=1)
    assert narrator.due_s == 100.0 + GLANCE_S
    narrator.soon()
    assert narrator.due_s <= 0.0


def test_a_peer_has_a_name_also_just_after_it_has_gone() -> None:
    narrator = Narrator(Told(), 10.0)

    glance(narrator, 0.0, talk("open"))
    glance(narrator, 1.0)

    assert narrator.name(PEER) == "thinker"
    assert narrator.name(b"\x02" * 16) == "02" * 6
