"""What every control channel promises, as tests. Subclass, give ``make_channel``, run pytest.

def make(address=""):
    return MyChannel(address or "mine://fresh")

class TestMine(ControlChannelContract):
    @pytest.fixture
    def make_channel(self):
        return make

Some channels are made in another process, to be frozen and killed there: so ``make`` stands at the
top of a module that can be imported. ``crosses_processes = False`` leaves those tests out.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from stagelink.core.errors import ConfigError
from stagelink.plugins.conformance.channel_deaths import ChannelDeathsContract
from stagelink.plugins.conformance.kit import AT_ONCE_S, same
from stagelink.plugins.conformance.listening import (
    HEADER,
    MOST_QUEUED,
    PATIENCE_S,
    Maker,
    connect,
    drain,
    drain_until,
    is_readable,
    mails,
    native_threads,
    open_descriptors,
    take_mail,
    until_down,
    until_up,
)
from stagelink.ports.channel import LinkDown, LinkUp, Mail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.core.values import Link
    from stagelink.ports.channel import ControlChannel

__all__ = [
    "HEADER", "MOST_QUEUED", "PATIENCE_S", "ControlChannelContract", "Maker", "connect",
    "drain", "drain_until", "is_readable", "mails", "native_threads", "open_descriptors",
    "take_mail", "until_down", "until_up",
]  # fmt: skip


class ControlChannelContract(ChannelDeathsContract):
    """The promises of :class:`stagelink.ports.ControlChannel`.

    ``reopens`` says whether a channel may listen where a closed one has listened before, and
    ``crosses_processes`` whether it reaches other processes.
    """

    reopens = True

    @pytest.fixture
    def make_channel(self) -> Maker:
        """To override: opens a channel that listens; its queues hold 100 to some 1000 messages."""
        raise NotImplementedError

    @pytest.fixture
    def open_channel(self, make_channel: Maker) -> Iterator[Maker]:
        """``make_channel``, and everything it made is closed after the test."""
        opened = []

        def open_one(address: str = "") -> ControlChannel:
            opened.append(make_channel(address))
            return opened[-1]

        yield open_one
        for channel in opened:
            channel.close()

    def test_a_dialled_link_comes_up_under_its_address(self, open_channel: Maker) -> None:
        """Once, however often it is dialled; the other side hears nothing before mail."""
        here, there = open_channel(), open_channel()
        here.dial(there.address)
        here.dial(there.address)
        assert is_readable(here, PATIENCE_S)
        assert until_up(here, there.address) == [LinkUp(there.address)]
        assert not is_readable(here)
        assert not drain(there)

    def test_messages_arrive_whole_and_in_order_both_ways(self, open_channel: Maker) -> None:
        """Frame borders are kept, empty frames too."""
        here, there = open_channel(), open_channel()
        back = connect(here, there)
        sent = [[HEADER, b"%d" % number, b"", b"x" * number] for number in range(90)]
        for frames in sent:
            assert here.send(there.address, frames)
            assert there.send(back, frames)
        assert [mail.frames for mail in take_mail(there, len(sent))] == sent
        got = take_mail(here, len(sent))
        assert [mail.frames for mail in got] == sent
        assert here.dropped == there.dropped == 0
        assert {mail.link for mail in got} == {there.address}

    def test_what_was_sent_may_be_changed_afterwards(self, open_channel: Maker) -> None:
        """Frames are copied by send."""
        here, there = open_channel(), open_channel()
        connect(here, there)
        before = b"before" * 4000
        frame = bytearray(before)
        assert here.send(there.address, [HEADER, memoryview(frame)])  # type: ignore[list-item]
        frame[:] = b"after!" * 4000
        assert same(take_mail(there)[0].frames[1], before)

    def test_an_accepted_link_is_never_named_like_an_address(self, open_channel: Maker) -> None:
        """It cannot be dialled either; both sides may dial one another."""
        here, there = open_channel(), open_channel()
        names = {connect(here, there), connect(there, here), here.address, there.address}
        assert len(names) == 4  # noqa: PLR2004 - two addresses, two accepted links
        for name in names - {here.address, there.address}:
            with pytest.raises(ConfigError):
                here.dial(name)

    def test_many_links_are_told_apart(self, open_channel: Maker) -> None:
        """Each answer goes to who asked."""
        server, clients = open_channel(), [open_channel() for _ in range(12)]
        links = [connect(client, server) for client in clients]
        assert len(set(links)) == len(clients)
        for number, link in enumerate(links):
            assert server.send(link, [HEADER, b"%d" % number])
        for number, client in enumerate(clients):
            assert take_mail(client)[0].frames[1] == b"%d" % number

    def test_a_loud_link_does_not_drown_a_quiet_one(self, open_channel: Maker) -> None:
        """Links are served in turn: it is heard though there is always more of the noise."""
        here, loud, quiet = open_channel(), open_channel(), open_channel()
        noise, signal = connect(here, loud), connect(here, quiet)
        for _ in range(400):
            loud.send(noise, [HEADER, b"noise"])
        assert quiet.send(signal, [HEADER, b"signal"])
        deadline_s = time.monotonic() + PATIENCE_S
        heard = b""
        while heard != b"signal" and time.monotonic() < deadline_s:
            arrival = here.receive()
            if isinstance(arrival, Mail):
                heard = arrival.frames[1]
                loud.send(noise, [HEADER, b"noise"])
        assert heard == b"signal"

    @pytest.mark.parametrize("direction", ["dialled", "accepted"])
    def test_a_full_link_says_so_and_loses_nothing(
        self, open_channel: Maker, direction: str
    ) -> None:
        """False means not taken: whatever was taken arrives, in order, once the peer reads."""
        here, there = open_channel(), open_channel()
        back = connect(here, there)
        sender, link, reader = (here, there.address, there)
        if direction == "accepted":
            sender, link, reader = (there, back, here)
        taken = 0
        while taken < MOST_QUEUED and sender.send(link, [HEADER, b"%d" % taken, b"x" * 4096]):
            taken += 1
        assert 0 < taken < MOST_QUEUED
        got = [int(mail.frames[1]) for mail in take_mail(reader, taken)]
        assert got == list(range(taken))
        drain(sender)
        deadline_s = time.monotonic() + PATIENCE_S
        while not sender.send(link, [HEADER, b"last"]):
            assert time.monotonic() < deadline_s
            is_readable(sender, 0.005)
            drain(sender)
        assert take_mail(reader)[0].frames[1] == b"last"

    @pytest.mark.parametrize("direction", ["dialled", "accepted"])
    def test_the_end_of_a_peer_is_told_at_once(self, open_channel: Maker, direction: str) -> None:
        """By one LinkDown, within a second; what is sent afterwards is forgotten."""
        here, there = open_channel(), open_channel()
        back = connect(here, there)
        stays, link, ends = (here, there.address, there)
        if direction == "accepted":
            stays, link, ends = (there, back, here)
        ends.close()
        began_s = time.monotonic()
        arrivals = until_down(stays, link)
        assert time.monotonic() - began_s < AT_ONCE_S
        assert [arrival.link for arrival in arrivals if isinstance(arrival, LinkDown)] == [link]
        for _ in range(3):
            assert stays.send(link, [HEADER, b"into the void"])

    def test_a_link_comes_up_again_by_itself(self, open_channel: Maker) -> None:
        """Down, then up, and only then mail of the new connection; nothing old is delivered."""
        if not self.reopens:
            pytest.skip("this channel cannot listen where another has listened")
        here, there = open_channel(), open_channel()
        connect(here, there)
        address = there.address
        there.close()
        until_down(here, address)
        assert here.send(address, [HEADER, b"while it was down"])
        again = open_channel(address)
        assert until_up(here, address) == [LinkUp(address)]
        assert here.send(address, [HEADER, b"new"])
        assert [mail.frames[1] for mail in take_mail(again)] == [b"new"]

    def test_unknown_links_take_and_forget(self, open_channel: Maker) -> None:
        """Neither an error nor a wait."""
        here = open_channel()
        assert here.send("nobody", [HEADER, b"lost"])
        here.hang_up("nobody")
        assert here.receive() is None

    def test_what_is_no_address_is_refused(self, open_channel: Maker) -> None:
        """As a ConfigError, and the channel lives on."""
        here, there = open_channel(), open_channel()
        for garbage in ("", "nonsense", "http://example.com", "tcp://", "\0"):
            with pytest.raises(ConfigError):
                here.check(garbage)
            with pytest.raises(ConfigError):
                here.dial(garbage)
        here.check(there.address)
        assert not drain(here)
        connect(here, there)

    def test_after_hanging_up_nothing_comes_from_there(self, open_channel: Maker) -> None:
        """No mail, no LinkDown; the other side hears, and the address may be dialled again."""
        here, there = open_channel(), open_channel()
        back = connect(here, there)
        assert there.send(back, [HEADER, b"too late"])
        here.hang_up(there.address)
        assert here.send(there.address, [HEADER, b"forgotten"])
        until_down(there, back)
        assert drain(here) == []
        assert connect(here, there) != back

    def test_a_drained_channel_is_quiet_and_the_next_arrival_wakes_it(
        self, open_channel: Maker
    ) -> None:
        """Time and again."""
        here, there = open_channel(), open_channel()
        connect(here, there)
        for number in range(100):
            assert not drain(there)
            assert not is_readable(there)
            assert here.send(there.address, [HEADER, b"%d" % number])
            assert is_readable(there, PATIENCE_S), "not woken"
            assert take_mail(there)[0].frames[1] == b"%d" % number

    def test_no_wake_up_is_lost_to_a_send(self, open_channel: Maker) -> None:
        """Two threads throw messages at one another; each sends, drains, then sleeps."""
        here, there = open_channel(), open_channel()
        back = connect(here, there)
        rounds, burst = 400, 5
        failures: list[BaseException] = []

        def play(channel: ControlChannel, link: Link) -> None:
            try:
                seen = 0
                for turn in range(1, rounds + 1):
                    for _ in range(burst):
                        assert channel.send(link, [HEADER, b"ball"])
                    while seen < turn * burst:
                        want = turn * burst - seen
                        seen += len(take_mail(channel, min(want, 1)))
            except BaseException as error:  # noqa: BLE001 - told to the test's own thread
                failures.append(error)

        other = threading.Thread(target=play, args=(there, back))
        other.start()
        play(here, there.address)
        other.join()
        assert not failures

    def test_mail_that_came_before_a_send_is_not_slept_through(self, open_channel: Maker) -> None:
        """The trap itself: mail arrives, a send swallows its wake-up, receive() still has it."""
        here, there = open_channel(), open_channel()
        back = connect(here, there)
        for number in range(100):
            assert here.send(there.address, [HEADER, b"%d" % number])
            assert is_readable(there, PATIENCE_S)
            assert there.send(back, [HEADER, b"swallows the wake-up"])
            assert take_mail(there)[0].frames[1] == b"%d" % number
        assert len(take_mail(here, 100)) == 100  # noqa: PLR2004 - one for each

    def test_who_sends_finds_what_the_send_may_have_hidden(self, open_channel: Maker) -> None:
        """With receive(look=False); whatever that leaves, the descriptor still tells of."""
        here, there = open_channel(), open_channel()
        back = connect(here, there)
        for number in range(100):
            assert here.send(there.address, [HEADER, b"%d" % number])
            assert is_readable(there, PATIENCE_S)
            assert there.send(back, [HEADER, b"hides it"])
            found = []
            while (arrival := there.receive(look=False)) is not None:
                found.append(arrival)
            if not found:
                assert is_readable(there, PATIENCE_S), "neither found nor told of"
                found += take_mail(there)
            assert [mail.frames[1] for mail in mails(found)] == [b"%d" % number]
        assert len(take_mail(here, 100)) == 100  # noqa: PLR2004 - one for each

    def test_the_descriptor_stays_the_same(self, open_channel: Maker) -> None:
        """A poller registers it once."""
        here, there = open_channel(), open_channel()
        before = here.fileno()
        connect(here, there)
        here.hang_up(there.address)
        assert here.fileno() == before

    def test_close_twice_is_fast_and_leaves_nothing(self, make_channel: Maker) -> None:
        """No descriptor and no thread, with mail unsent and unread."""
        make_channel().close()  # what is opened once per process is open from here on
        before = open_descriptors(), native_threads()
        here, there = make_channel(), make_channel()
        back = connect(here, there)
        for _ in range(50):
            here.send(there.address, [HEADER, b"unread"])
            there.send(back, [HEADER, b"unsent"])
        began_s = time.monotonic()
        for channel in (here, there, here, there):
            channel.close()
        assert time.monotonic() - began_s < AT_ONCE_S
        assert (open_descriptors(), native_threads()) == before

    def test_a_closed_channel_gives_nothing_and_takes_nothing(self, open_channel: Maker) -> None:
        """A late call in a teardown does no harm."""
        here, there = open_channel(), open_channel()
        connect(here, there)
        address = there.address
        here.close()
        assert here.receive() is None
        assert here.send(address, [HEADER, b"late"])
        here.hang_up(address)
