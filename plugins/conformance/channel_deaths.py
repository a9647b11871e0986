"""Frozen and killed peers, as every control channel between processes survives them.

A part of the contract in :mod:`stagelink.plugins.conformance.channel`, whose fixtures it uses.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from stagelink.plugins.conformance.elsewhere import Elsewhere
from stagelink.plugins.conformance.kit import AT_ONCE_S
from stagelink.plugins.conformance.listening import (
    HEADER,
    MOST_QUEUED,
    Maker,
    connect,
    drain,
    drain_until,
    take_mail,
    until_up,
)  # fmt: skip
from stagelink.ports.channel import LinkDown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.core.values import Link
    from stagelink.ports.channel import ControlChannel


class Speaker:
    """A channel in the other process."""

    def __init__(self, make_channel: Maker) -> None:
        self._channel = make_channel()
        self._address = ""

    def address(self) -> str:
        """Where it listens."""
        return self._channel.address

    def call(self, address: str) -> None:
        """Dial *address* and say hello."""
        self._address = address
        self._channel.dial(address)
        until_up(self._channel, address)
        self._channel.send(address, [HEADER, b"hello"])

    def hear(self, count: int) -> list[int]:
        """The numbers in the next *count* messages."""
        return [int(mail.frames[1]) for mail in take_mail(self._channel, count)]

    def say(self, count: int) -> None:
        """Send so many numbers to whom it has dialled."""
        for number in range(count):
            while not self._channel.send(self._address, [HEADER, b"%d" % number]):
                time.sleep(0.001)
                drain(self._channel)


class ChannelDeathsContract:
    """Needs ``make_channel`` to be a function that another process can import."""

    crosses_processes = True

    @pytest.fixture
    def speaker(self, make_channel: Maker) -> Iterator[Elsewhere]:
        """A channel in another process."""
        if not self.crosses_processes:
            pytest.skip("this channel stays within one process")
        process = Elsewhere(Speaker, make_channel)
        yield process
        process.end()

    def test_the_death_of_a_process_is_told_at_once(
        self, open_channel: Maker, speaker: Elsewhere
    ) -> None:
        """By one LinkDown for each link, within a second, after what it had said."""
        here = open_channel()
        dialled, accepted = _join(here, speaker)
        speaker.ask("say", 50)
        speaker.kill()
        killed_s = time.monotonic()
        arrivals = drain_until(here, lambda seen: _downs(seen) >= {dialled, accepted})
        assert time.monotonic() - killed_s < AT_ONCE_S
        arrivals += drain(here)
        ends = [arrival.link for arrival in arrivals if isinstance(arrival, LinkDown)]
        assert sorted(ends) == sorted([dialled, accepted])
        said = [int(mail.frames[1]) for mail in arrivals if not isinstance(mail, LinkDown)]  # type: ignore[union-attr]
        assert said == list(range(len(said))), "what came before the end has a gap"
        for link in (dialled, accepted):
            assert here.send(link, [HEADER, b"into the void"])

    def test_a_frozen_process_makes_nobody_wait_and_loses_nothing(
        self, open_channel: Maker, speaker: Elsewhere
    ) -> None:
        """A send says that the link is full; others are served; all that was taken arrives."""
        here, other = open_channel(), open_channel()
        frozen, _ = _join(here, speaker)
        connect(here, other)
        speaker.freeze()
        taken, longest_s = 0, 0.0
        while taken < MOST_QUEUED:
            began_s = time.monotonic()
            went = here.send(frozen, [HEADER, b"%d" % taken, b"x" * 4096])
            longest_s = max(longest_s, time.monotonic() - began_s)
            if not went:
                break
            taken += 1
        assert 0 < taken < MOST_QUEUED, "the link of a frozen process is never full"
        assert longest_s < AT_ONCE_S, "a send waits for the peer"
        assert here.send(other.address, [HEADER, b"meanwhile"])
        assert take_mail(other)[0].frames[1] == b"meanwhile"
        assert not _downs(drain(here)), "a frozen process is not dead"
        speaker.thaw()
        assert speaker.ask("hear", taken) == list(range(taken))


def _join(here: ControlChannel, speaker: Elsewhere) -> tuple[Link, Link]:
    """Two links between the two: dialled by us, and by the other process."""
    address = str(speaker.ask("address"))
    speaker.tell("hear", 1)
    here.dial(address)
    until_up(here, address)
    assert here.send(address, [HEADER, b"0"])
    assert speaker.answer() == [0]
    speaker.tell("call", here.address)
    accepted = next(mail.link for mail in take_mail(here))
    speaker.answer()
    return address, accepted


def _downs(arrivals: object) -> set[Link]:
    """The links that have ended."""
    assert isinstance(arrivals, (list, tuple))
    return {arrival.link for arrival in arrivals if isinstance(arrival, LinkDown)}
