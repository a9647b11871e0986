from __future__ import annotations

import multiprocessing
import os
import re
import secrets
import signal
import socket
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from stagelink.adapters.zmq import direct
from stagelink.adapters.zmq.address import check_dial, tcp_url
from stagelink.adapters.zmq.channel import ZmqChannel
from stagelink.adapters.zmq.guests import Guest, Guests
from stagelink.adapters.zmq.listener import Listener
from stagelink.adapters.zmq.sockets import descriptor_of
from stagelink.core.errors import ClosedError, ConfigError
from stagelink.plugins.conformance.channel import (
    HEADER,
    ControlChannelContract,
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
)  # fmt: skip
from stagelink.plugins.conformance.kit import AT_ONCE_S
from stagelink.ports.channel import LinkDown, LinkUp, Mail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from stagelink.core.values import Link
    from stagelink.plugins.conformance.channel import Maker
    from stagelink.ports.channel import Arrival

    Pair = tuple[ZmqChannel, ZmqChannel]


def over_tcp(address: str = "") -> ZmqChannel:
    """What a maker gives: at *address*, or at a free port."""
    port = int(address.rpartition(":")[2]) if address else 0
    return ZmqChannel("127.0.0.1", port, high_water_mark=200)


def over_ipc(directory: str, address: str = "") -> ZmqChannel:
    """At *address*, or under a fresh name of *directory*."""
    path = address or f"{directory}/{secrets.token_hex(4)}"
    return ZmqChannel(ipc=path, high_water_mark=200)


class TestOverTcp(ControlChannelContract):
    @pytest.fixture
    def make_channel(self) -> Maker:
        return over_tcp


class TestOverIpc(ControlChannelContract):
    @pytest.fixture
    def make_channel(self, tmp_path: Path) -> Maker:
        return partial(over_ipc, str(tmp_path))


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ZmqChannel("127.0.0.1") as here, ZmqChannel("127.0.0.1") as there:
        yield here, there


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_literal_works_with_and_without_brackets(host: str) -> None:
    with ZmqChannel(host) as here, ZmqChannel(host) as there:
        assert there.address.startswith("tcp://[::1]:")
        connect(here, there)


def test_a_name_is_bound_and_the_address_says_which_one_it_was() -> None:
    with ZmqChannel("localhost") as here, ZmqChannel() as there:
        assert here.address.startswith("tcp://127.0.0.1:")
        connect(there, here)


def test_a_taken_port_is_refused_at_once_by_name_and_nothing_is_left() -> None:
    with ZmqChannel("127.0.0.1") as holder:
        port = int(holder.address.rpartition(":")[2])
        before = open_descriptors(), native_threads()
        began_s = time.monotonic()
        with pytest.raises(ConfigError, match=re.escape(f"127.0.0.1:{port}")) as caught:
            ZmqChannel("127.0.0.1", port)
        assert time.monotonic() - began_s < AT_ONCE_S
        assert caught.value.remedy
        assert (open_descriptors(), native_threads()) == before


def test_a_failed_late_bind_leaves_the_channel_usable() -> None:
    with ZmqChannel("127.0.0.1") as holder:
        port = int(holder.address.rpartition(":")[2])
        with ZmqChannel("127.0.0.1", port, bind=False) as late:
            assert late.address == ""
            with pytest.raises(ConfigError):
                late.bind()
            assert late.address == ""
            connect(late, holder)


def test_bind_may_come_later_and_twice() -> None:
    with ZmqChannel("127.0.0.1", bind=False) as late, ZmqChannel() as other:
        late.bind()
        address = late.address
        late.bind()
        assert late.address == address
        connect(other, late)


def test_an_ipc_path_in_use_is_not_taken_over_but_a_stale_one_is(tmp_path: Path) -> None:
    path = str(tmp_path / "link")
    with ZmqChannel(ipc=path) as holder, ZmqChannel() as other:
        with pytest.raises(ConfigError, match="listens"):
            ZmqChannel(ipc=path)
        connect(other, holder)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)  # and never unlinked, as after a kill
    with ZmqChannel(ipc=path) as holder, ZmqChannel() as other:
        connect(other, holder)


def test_an_ipc_path_that_is_a_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        ZmqChannel(ipc=str(path))
    assert path.read_text() == "precious"


def test_a_closed_ipc_channel_leaves_no_file(tmp_path: Path) -> None:
    ZmqChannel(ipc=str(tmp_path / "link")).close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "::", "[::]", "", "0", "::ffff:0.0.0.0"])
def test_a_wildcard_is_refused_with_a_remedy(host: str) -> None:
    with pytest.raises(ConfigError, match="every interface") as caught:
        ZmqChannel(host)
    assert "allow_wildcard" in caught.value.remedy


def test_an_allowed_wildcard_shows_the_advertised_host() -> None:
    with ZmqChannel("0.0.0.0", advertise="127.0.0.1", allow_wildcard=True) as here:
        assert here.address.startswith("tcp://127.0.0.1:")
        with ZmqChannel() as other:
            connect(other, here)


@pytest.mark.parametrize("advertise", [None, "0.0.0.0", "*"])
def test_a_wildcard_is_never_advertised(advertise: str | None) -> None:
    with pytest.raises(ConfigError, match="wildcard"):
        ZmqChannel("0.0.0.0", advertise=advertise, allow_wildcard=True)


@pytest.mark.parametrize(
    "arguments",
    [
        {"host": "192.0.2.1"},
        {"host": "no.such.host.invalid"},
        {"host": "127.0.0.1", "port": 65536},
        {"host": "127.0.0.1", "ipc": "/tmp/x"},
        {"ipc": "/tmp/" + "x" * 200},
        {"ipc": ""},
    ],
)
def test_what_cannot_be_bound_is_a_config_error_with_a_remedy(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        ZmqChannel(**arguments)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "address",
    [
        "tcp://0.0.0.0:5000", "tcp://[::]:5000", "tcp://*:5000", "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:65536", "tcp://127.0.0.1", "tcp://a;b:1", "tcp://[name]:1",
        "inproc://x", "ipc://", "tcp://::1:80", "tcp://h:1\n",
    ],
)  # fmt: skip
def test_addresses_that_nobody_can_dial_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"dial|ipc"):
        check_dial(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "fe80::1%eth0", "a-name.example"])
def test_a_written_address_can_be_dialled(host: str) -> None:
    assert check_dial(tcp_url(host, 5000)) == (":" in host)


def test_64_channels_at_port_0_are_all_distinct() -> None:
    channels = [ZmqChannel("127.0.0.1") for _ in range(64)]
    try:
        assert len({channel.address for channel in channels}) == 64
    finally:
        for channel in channels:
            channel.close()


def test_an_oversized_frame_ends_the_senders_connection_and_is_not_delivered() -> None:
    with ZmqChannel("127.0.0.1", max_frame_bytes=1000) as here, ZmqChannel() as there:
        back = connect(there, here)
        assert there.send(here.address, [HEADER, b"x" * 1001])
        arrivals = until_down(here, back)
        assert not mails(arrivals)
        until_down(there, here.address)


def test_a_message_of_more_than_four_frames_is_dropped_and_counted(pair: Pair) -> None:
    here, there = pair
    back = connect(here, there)
    here.send(there.address, [HEADER, b"", b"", b"", b"five"])
    here.send(there.address, [HEADER, b"", b"", b"four"])
    assert take_mail(there)[0].frames[-1] == b"four"
    there.send(back, [HEADER] * 9)
    there.send(back, [HEADER])
    assert take_mail(here)[0].frames == [HEADER]
    assert (here.dropped, there.dropped) == (1, 1)


def serve_until_killed(pipe: Connection) -> None:
    with ZmqChannel("127.0.0.1") as channel:
        channel.dial(pipe.recv())
        pipe.send(channel.address)
        while True:
            for arrival in drain_until(channel, bool, 30):
                if not isinstance(arrival, LinkDown):
                    channel.send(arrival.link, [HEADER, b"here"])


def test_a_killed_process_is_told_within_a_second_on_both_links() -> None:
    context = multiprocessing.get_context("spawn")
    pipe, far = context.Pipe()
    process = context.Process(target=serve_until_killed, args=(far,))
    process.start()
    with ZmqChannel("127.0.0.1") as here:
        pipe.send(here.address)
        address = pipe.recv()
        here.dial(address)
        arrivals = drain_until(here, lambda seen: LinkUp(address) in seen and bool(mails(seen)))
        accepted = next(mail.link for mail in mails(arrivals) if mail.link != address)
        here.send(address, [HEADER, b"there?"])
        drain_until(here, lambda seen: any(mail.link == address for mail in mails(seen)))
        began_s = time.monotonic()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        drain_until(here, lambda seen: {address, accepted} <= downs(seen))
        assert time.monotonic() - began_s < AT_ONCE_S
    process.join()


def downs(arrivals: Sequence[Arrival]) -> set[Link]:
    return {arrival.link for arrival in arrivals if isinstance(arrival, LinkDown)}


def any_down(arrivals: Sequence[Arrival]) -> bool:
    return bool(downs(arrivals))


def test_a_peer_that_came_and_went_unread_is_still_told_to_be_gone(pair: Pair) -> None:
    here, _ = pair
    assert not drain(here)
    with ZmqChannel() as brief:
        brief.dial(here.address)
        until_up(brief, here.address)
        assert brief.send(here.address, [HEADER, b"brief"])
        is_readable(here, 5)
        time.sleep(0.05)  # its mail is in our queue before it goes
    time.sleep(0.05)
    arrivals = drain_until(here, any_down)
    assert [type(arrival) for arrival in arrivals] == [Mail, LinkDown]


def test_last_words_go_before_the_news_that_their_sender_left(pair: Pair) -> None:
    """Even when the news of its end is looked at before its mail."""
    here, _ = pair
    with ZmqChannel() as brief:
        connect(brief, here)
        assert not drain(here)
        assert brief.send(here.address, [HEADER, b"last words"])
    listener = here._listener
    assert listener is not None
    deadline_s = time.monotonic() + 5
    while not listener._leaving and time.monotonic() < deadline_s:
        time.sleep(0.01)
        listener.read_news()

    arrivals = drain_until(here, any_down)
    assert [type(arrival) for arrival in arrivals] == [Mail, LinkDown]
    assert arrivals[0].link == arrivals[1].link


def test_a_socket_whose_reading_was_interrupted_is_read_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    connect(there, here)
    assert not drain(here)

    def interrupted(_: Listener) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Listener, "take", interrupted)
    assert there.send(here.address, [HEADER, b"first"])
    assert is_readable(here, 5.0)
    with pytest.raises(KeyboardInterrupt):
        here.receive()
    monkeypatch.undo()

    assert there.send(here.address, [HEADER, b"second"])
    assert [mail.frames[-1] for mail in take_mail(here, 2)] == [b"first", b"second"]


def test_a_suspect_is_asked_again_until_the_proof_is_there(pair: Pair) -> None:
    here, _ = pair
    with ZmqChannel() as brief:
        link = connect(brief, here)
        listener = here._listener
        assert listener is not None
        assert listener.monitor is not None
        here._sources._epoll.unregister(
            descriptor_of(listener.monitor)
        )  # only the timer tells now
        listener._suspect([listener._guests.by_link[link]])
        assert is_readable(here, 1)
        assert not drain(here)
        assert not drain(brief)
    assert downs(drain_until(here, any_down, 1)) == {link}


def test_a_live_suspect_is_soon_left_alone_and_hears_nothing(pair: Pair) -> None:
    here, there = pair
    link = connect(here, there)
    listener = there._listener
    assert listener is not None
    listener._suspect([listener._guests.by_link[link]])
    while listener._suspects:
        assert is_readable(there, 1)
        assert not drain(there)
    assert there.send(link, [HEADER, b"after the pings"])
    arrivals = drain_until(here, bool)
    assert [mail.frames[1] for mail in mails(arrivals)] == [b"after the pings"]
    assert len(arrivals) == 1
    assert here.dropped == 0


def test_others_stay_when_descriptors_are_reused(pair: Pair) -> None:
    here, stays = pair
    kept = connect(stays, here)
    for _ in range(10):
        with ZmqChannel() as brief:
            link = connect(brief, here)
        arrivals = until_down(here, link)
        assert downs(arrivals) == {link}
    here.send(kept, [HEADER, b"still"])
    assert take_mail(stays)[0].frames[1] == b"still"
    assert drain(stays) == []


def test_close_is_bounded_with_unsent_data() -> None:
    with ZmqChannel("127.0.0.1") as there:
        here = ZmqChannel()
        connect(here, there)
        while here.send(there.address, [HEADER, b"x" * 60_000]):
            pass
        began_s = time.monotonic()
        here.close()
        assert time.monotonic() - began_s < AT_ONCE_S


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.0\r\n\r\n" * 10,
        b"\xff\0\0\0\0\0\0\0\1\x7f" + b"\3" * 300,
        b"\0" * 4096,
        b"\xff" * 4096,
        os.urandom(5000),
    ],
)
def test_garbage_from_a_raw_socket_does_no_harm(pair: Pair, garbage: bytes) -> None:
    here, there = pair
    back = connect(here, there)
    host, port = there.address[len("tcp://") :].split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(garbage)
        is_readable(there, 0.1)
        drain(there)
    assert here.send(there.address, [HEADER, b"well"])
    seen = drain_until(there, lambda seen: any(mail.link == back for mail in mails(seen)))
    assert [mail.frames[1] for mail in mails(seen) if mail.link == back] == [b"well"]


def test_a_handshake_that_is_none_is_counted(pair: Pair) -> None:
    here, _ = pair
    host, port = here.address[len("tcp://") :].split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"\xff\0\0\0\0\0\0\0\1\x7f" + b"\3" * 300)
        while not here.dropped:
            assert is_readable(here, 5)
            drain(here)


def test_a_child_process_cannot_close_its_parents_channel(pair: Pair) -> None:
    here, there = pair
    back = connect(here, there)
    child = os.fork()
    if not child:
        here.close()
        there.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    there.send(back, [HEADER, b"unharmed"])
    assert take_mail(here)[0].frames[1] == b"unharmed"


def test_a_closed_channel_refuses_to_dial_and_bind() -> None:
    channel = ZmqChannel("127.0.0.1", bind=False)
    channel.close()
    with pytest.raises(ClosedError):
        channel.dial("tcp://127.0.0.1:1")
    with pytest.raises(ClosedError):
        channel.bind()
    assert channel.fileno() == -1


def test_an_unclosed_channel_warns() -> None:
    channel = ZmqChannel("127.0.0.1")
    with pytest.warns(ResourceWarning, match="unclosed"):
        channel.__del__()
    channel.close()


def test_a_full_table_of_guests_gives_up_the_oldest_idle_one() -> None:
    guests = Guests(limit=3)
    busy, idle, third = (Guest(b"%d" % number, number) for number in range(3))
    assert [guests.admit(guest) for guest in (busy, idle, third)] == [None] * 3
    busy.active = True
    assert guests.admit(Guest(b"new", 9)) is idle
    assert set(guests.by_id) == {b"0", b"2", b"new"}
    assert guests.of_descriptor(1) == []


def test_a_bounded_table_tells_whom_it_gave_up_and_knows_them_again() -> None:
    with ZmqChannel("127.0.0.1", max_links=2) as here:
        peers = [ZmqChannel() for _ in range(3)]
        first = connect(peers[0], here)
        connect(peers[1], here)
        peers[2].dial(here.address)
        until_up(peers[2], here.address)
        peers[2].send(here.address, [HEADER, b"third"])
        assert downs(drain_until(here, any_down)) == {first}
        assert peers[0].send(here.address, [HEADER, b"back"])
        assert take_mail(here)[0].link == first
        for peer in peers:
            peer.close()


def test_the_package_does_not_hide_the_real_zmq() -> None:
    assert "stagelink" not in Path(zmq.__file__).parts
    assert hasattr(zmq, "ROUTER")


@pytest.mark.parametrize("put", [direct.put, direct.put_by_pyzmq])
def test_either_way_of_sending_copies_a_message_or_says_that_it_cannot(put: Any) -> None:
    with zmq.Context() as context:
        listener, dialler, alone = (context.socket(k) for k in (zmq.PAIR, zmq.PAIR, zmq.DEALER))
        port = listener.bind_to_random_port("tcp://127.0.0.1")
        dialler.connect(f"tcp://127.0.0.1:{port}")
        assert dialler.poll(10_000, zmq.POLLOUT)

        put(dialler, [b"\0head", bytes(9000)])
        assert listener.poll(10_000)
        assert listener.recv_multipart() == [b"\0head", bytes(9000)]
        with pytest.raises(zmq.Again):
            put(alone, [b"nobody"])
        context.destroy(linger=0)
