from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from stagelink.adapters.local import LocalChannel, address, channel
from stagelink.adapters.local.packets import Malformed, Packets
from stagelink.adapters.zmq.channel import ZmqChannel
from stagelink.plugins.conformance.channel import (
    HEADER,
    PATIENCE_S,
    ControlChannelContract,
    connect,
    drain,
    drain_until,
    is_readable,
    mails,
    take_mail,
    until_down,
    until_up,
)  # fmt: skip
from stagelink.plugins.conformance.kit import AT_ONCE_S
from stagelink.ports.channel import LinkDown, LinkUp, Mail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from stagelink.plugins.conformance.channel import Maker
    from stagelink.ports.channel import Arrival

LONGEST = 128 << 10

Pair = tuple[LocalChannel, LocalChannel]


def opened(address: str = "", host: str = "127.0.0.1") -> LocalChannel:
    port = int(address.rpartition(":")[2]) if address else 0
    return LocalChannel(ZmqChannel(host, port, high_water_mark=200), longest=LONGEST)


class TestContract(ControlChannelContract):
    @pytest.fixture
    def make_channel(self) -> Maker:
        return opened


@pytest.fixture
def pair() -> Iterator[Pair]:
    with opened() as here, opened() as there:
        yield here, there


def is_short(link: str) -> bool:
    """Whether the accepted *link* is a shortcut."""
    return link.startswith("local:")


def called(there: LocalChannel) -> socket.socket:
    """A raw connection to the shortcut of *there*."""
    raw = address.connect(there.address, 0)
    assert raw is not None
    return raw


def again_up(here: LocalChannel, link: str) -> None:
    """Wait until *link* has been down and is up again."""

    def is_up_again(seen: Sequence[Arrival]) -> bool:
        kinds = [type(arrival) for arrival in seen if arrival.link == link]
        return kinds[-2:] == [LinkDown, LinkUp]

    drain_until(here, is_up_again)


# --- which way mail goes ------------------------------------------------------------------


def test_two_processes_of_one_host_take_the_shortcut(pair: Pair) -> None:
    assert is_short(connect(*pair))


def test_a_name_of_loopback_finds_the_shortcut_too(pair: Pair) -> None:
    here, there = pair
    here.dial(there.address.replace("127.0.0.1", "localhost"))
    drain_until(here, bool)
    assert here.send(there.address.replace("127.0.0.1", "localhost"), [HEADER])
    assert is_short(take_mail(there)[0].link)


def test_a_listener_that_comes_later_is_reached_by_the_shortcut() -> None:
    with ZmqChannel("127.0.0.1") as first:
        taken = first.address
    with opened() as here:
        here.dial(taken)
        assert not drain(here)
        with opened(taken) as there:
            until_up(here, taken)
            assert here.send(taken, [HEADER])
            assert is_short(take_mail(there)[0].link)


def test_who_listens_without_a_shortcut_is_reached_all_the_same() -> None:
    with opened() as here, ZmqChannel("127.0.0.1") as there:
        back = connect(here, there)
        assert there.send(back, [HEADER, b"back"])
        assert take_mail(here)[0].frames == [HEADER, b"back"]


def test_who_dials_without_a_shortcut_is_heard_all_the_same() -> None:
    with ZmqChannel() as here, opened() as there:
        assert not is_short(connect(here, there))


def test_a_local_socket_of_zeromq_has_no_shortcut(tmp_path: object) -> None:
    where = f"{tmp_path}/it"
    with LocalChannel(ZmqChannel(ipc=where), longest=LONGEST) as there, opened() as here:
        assert not is_short(connect(here, there))


def test_a_name_that_is_taken_leaves_the_inner_channel() -> None:
    with ZmqChannel("127.0.0.1") as inner:
        squatter = address.listen(inner.address)
        assert squatter is not None
        with squatter, LocalChannel(inner, longest=LONGEST) as there:
            assert address.listen(inner.address) is None
            with ZmqChannel() as here:
                assert not is_short(connect(here, there))


@pytest.mark.parametrize("side", ["who dials", "who listens"])
def test_strangers_are_not_trusted(pair: Pair, monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    here, there = pair
    asked: list[bool] = []

    def is_ours(_: socket.socket) -> bool:
        asked.append(True)  # the dialler asks first, the listener second
        return side == "who listens" and len(asked) % 2 == 1

    monkeypatch.setattr(address, "is_ours", is_ours)
    here.dial(there.address)
    if side == "who listens":
        until_up(here, there.address)
        drain_until(there, lambda _: there.dropped > 0)
        again_up(here, there.address)  # which is not tried again, or it would never end
    else:
        until_up(here, there.address)
    assert here.send(there.address, [HEADER])
    assert not is_short(take_mail(there)[0].link)


def test_a_process_of_another_user_is_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, two:
        assert address.is_ours(one)
        us = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: us + 1)
        assert not address.is_ours(one)


def test_a_full_link_tells_when_it_has_room_again(pair: Pair) -> None:
    here, there = pair
    connect(here, there)
    while here.send(there.address, [HEADER, bytes(4096)]):
        pass
    assert not drain(here)
    assert not is_readable(here)
    drain(there)
    assert is_readable(here, PATIENCE_S)
    assert not drain(here)
    assert not is_readable(here)
    assert here.send(there.address, [HEADER])


def test_a_full_table_sends_further_callers_to_the_inner_channel() -> None:
    with LocalChannel(ZmqChannel("127.0.0.1"), longest=LONGEST, max_lanes=2) as there:
        here = [opened() for _ in range(4)]
        assert [is_short(connect(one, there)) for one in here] == [True, True, False, False]
        for one in here:
            one.close()


def test_a_process_without_descriptors_sends_callers_to_the_inner_channel(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair

    def accept(_: socket.socket) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(channel, "accept", accept)
    here.dial(there.address)
    until_up(here, there.address)
    drain(there)
    again_up(here, there.address)
    assert here.send(there.address, [HEADER])
    assert not is_short(take_mail(there)[0].link)


# --- what comes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "packet",
    [
        b"\0",
        b"\5" + bytes(40),
        b"\2",
        b"\2\1\0\0",
        b"\2\4\0\0\0abc",
        b"\3\1\0\0\0\xff\xff\xff\xffab",
    ],
)
def test_a_packet_that_is_no_message_ends_its_connection(pair: Pair, packet: bytes) -> None:
    here, there = pair
    connect(here, there)
    with called(there) as raw:
        raw.send(packet)
        arrivals = drain_until(there, lambda seen: any(isinstance(a, LinkDown) for a in seen))
        assert not mails(arrivals)
        assert there.dropped == 1
    assert here.send(there.address, [HEADER, b"still here"])
    assert take_mail(there)[0].frames[1] == b"still here"


def test_a_message_longer_than_agreed_ends_its_connection(pair: Pair) -> None:
    here, there = pair
    connect(here, there)
    with called(there) as raw:
        raw.send(b"\1" + bytes(LONGEST))
        drain_until(there, lambda seen: any(isinstance(a, LinkDown) for a in seen))
    assert here.send(there.address, [HEADER, bytes(4 << 20)])  # more than any socket takes
    arrivals = drain_until(here, lambda seen: LinkUp(there.address) in seen)
    assert [type(arrival) for arrival in arrivals] == [LinkDown, LinkUp]


def test_the_longest_message_fits(pair: Pair) -> None:
    here, there = pair
    connect(here, there)
    body = os.urandom(LONGEST - len(HEADER) - 5)
    assert here.send(there.address, [HEADER, body])
    assert take_mail(there)[0].frames == [HEADER, body]


def test_last_words_are_heard_although_their_speaker_left_mail_unread(pair: Pair) -> None:
    here, there = pair
    back = connect(here, there)
    assert there.send(back, [HEADER, b"never read"])  # which makes the kernel say "reset"
    assert here.send(there.address, [HEADER, b"last"])
    here.close()
    arrivals = until_down(there, back)
    assert [type(arrival) for arrival in arrivals] == [Mail, LinkDown]


def test_sending_to_who_has_gone_leaves_its_mail_to_be_read(pair: Pair) -> None:
    here, there = pair
    back = connect(here, there)
    assert here.send(there.address, [HEADER, b"last"])
    here.close()
    assert there.send(back, [HEADER, b"into the void"])
    assert [type(arrival) for arrival in until_down(there, back)] == [Mail, LinkDown]


def test_packets_of_every_number_of_frames_come_back_as_they_were() -> None:
    packets, (one, two) = Packets(1000), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, two:
        for frames in ([b""], [b"a"], [b"", b""], [b"a", b"", b"bc"], [b"1", b"22", b"", b"4444"]):
            assert packets.send(one.fileno(), frames)
            assert packets.receive(two.fileno()) == frames
        assert packets.receive(two.fileno()) is None
        one.send(b"\2abc")
        with pytest.raises(Malformed):
            packets.receive(two.fileno())
        one.close()
        assert packets.receive(two.fileno()) == []


# --- deaths -----------------------------------------------------------------------------------


def serve_until_killed(pipe: Connection) -> None:
    with opened() as there:
        there.dial(pipe.recv())
        pipe.send(there.address)
        while True:
            for arrival in drain_until(there, bool, 30):
                if not isinstance(arrival, LinkDown):
                    there.send(arrival.link, [HEADER, b"here"])


def fork_and_serve(pipe: Connection) -> None:
    """Like the former, with a child that outlives it and holds copies of all it has open."""
    with opened() as there:
        address = pipe.recv()
        there.dial(address)
        until_up(there, address)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        there.send(address, [HEADER, b"here"])
        pipe.send(child)
        time.sleep(60)


def test_a_killed_process_is_told_within_a_second_on_both_links() -> None:
    context = multiprocessing.get_context("spawn")
    pipe, far = context.Pipe()
    process = context.Process(target=serve_until_killed, args=(far,))
    process.start()
    with opened() as here:
        pipe.send(here.address)
        dialled = pipe.recv()
        here.dial(dialled)
        met = drain_until(here, lambda seen: bool(mails(seen)) and LinkUp(dialled) in seen)
        (accepted,) = {mail.link for mail in mails(met)}
        here.send(dialled, [HEADER, b"there?"])  # before it is up this would be forgotten
        drain_until(here, lambda seen: any(mail.link == dialled for mail in mails(seen)))
        began_s = time.monotonic()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        drain_until(
            here, lambda seen: {dialled, accepted} <= {a.link for a in seen if type(a) is LinkDown}
        )
        assert time.monotonic() - began_s < AT_ONCE_S
    process.join()


def test_a_killed_process_is_told_although_its_forked_child_lives() -> None:
    context = multiprocessing.get_context("spawn")
    pipe, far = context.Pipe()
    process = context.Process(target=fork_and_serve, args=(far,))
    process.start()
    with opened() as here:
        pipe.send(here.address)
        accepted = take_mail(here)[0].link
        child = pipe.recv()
        try:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            began_s = time.monotonic()
            until_down(here, accepted)
            assert time.monotonic() - began_s < AT_ONCE_S
        finally:
            os.kill(child, signal.SIGKILL)
    process.join()
