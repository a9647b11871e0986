"""CURVE in the ZeroMQ channel: who gets in, who does not, and what is told of it."""

from __future__ import annotations

import gc
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import zmq

from stagelink.adapters.zmq.callers import Callers
from stagelink.adapters.zmq.channel import ZmqChannel
from stagelink.adapters.zmq.keyfiles import KeyPair
from stagelink.adapters.zmq.keyring import Keyring
from stagelink.core.errors import ConfigError
from stagelink.plugins.conformance.channel import (
    HEADER,
    ControlChannelContract,
    connect,
    drain,
    drain_until,
    is_readable,
    native_threads,
    open_descriptors,
    take_mail,
    until_up,
)  # fmt: skip
from stagelink.ports.channel import LinkDown, LinkUp, PeerRefused

if TYPE_CHECKING:
    from pathlib import Path

    from stagelink.plugins.conformance.channel import Maker
    from stagelink.ports.channel import Arrival

SERVER, CLIENT, STRANGER = (KeyPair(*zmq.curve_keypair()) for _ in range(3))
REDIAL_S = 0.05


def ring(own: KeyPair, *others: KeyPair) -> Keyring:
    return Keyring(own, {str(number): pair.public for number, pair in enumerate(others)})


def server(*let_in: KeyPair, port: int = 0) -> ZmqChannel:
    return ZmqChannel("127.0.0.1", port, keyring=ring(SERVER, *let_in))


def client(own: KeyPair | None, expected: KeyPair = SERVER) -> ZmqChannel:
    keyring = None if own is None else ring(own, expected)
    return ZmqChannel(keyring=keyring, reconnect_max_s=REDIAL_S)


def refusals(channel: ZmqChannel, cause: str) -> list[PeerRefused]:
    """The first refusals for *cause*, waited for."""

    def of_cause(seen: list[Arrival]) -> list[PeerRefused]:
        return [one for one in seen if isinstance(one, PeerRefused) and one.cause == cause]

    return of_cause(drain_until(channel, lambda seen: bool(of_cause(seen))))


def refused(channel: ZmqChannel) -> LinkDown:
    """What a channel hears that is not let in, waited for."""

    def told(seen: list[Arrival]) -> list[LinkDown]:
        return [one for one in seen if isinstance(one, LinkDown) and one.refused]

    return told(drain_until(channel, lambda seen: bool(told(seen))))[0]


class TestOverCurve(ControlChannelContract):
    @pytest.fixture
    def make_channel(self) -> Maker:
        def make(address: str = "") -> ZmqChannel:
            port = int(address.rpartition(":")[2]) if address else 0
            return ZmqChannel("127.0.0.1", port, high_water_mark=200, keyring=ring(SERVER))

        return make


class TestOverCurveAndIpc(ControlChannelContract):
    @pytest.fixture
    def make_channel(self, tmp_path: Path) -> Maker:
        names = iter(range(1000))
        return lambda address="": ZmqChannel(
            ipc=address or str(tmp_path / f"{next(names)}"),
            high_water_mark=200,
            keyring=ring(SERVER),
        )


def test_two_that_know_each_other_talk_both_ways_small_and_large() -> None:
    with server(CLIENT) as here, client(CLIENT) as there:
        back = connect(there, here)
        largest = b"x" * (64 << 10)
        assert here.send(back, [HEADER, largest])
        assert take_mail(there)[0].frames == [HEADER, largest]
        assert there.send(here.address, [HEADER, largest])
        assert take_mail(here)[0].frames == [HEADER, largest]


def test_what_is_sent_cannot_be_read_on_the_way() -> None:
    with server(CLIENT) as here, client(CLIENT) as there, socket.socket() as tap:
        tap.bind(("127.0.0.1", 0))
        tap.listen()
        there.dial(f"tcp://127.0.0.1:{tap.getsockname()[1]}")
        near, _ = tap.accept()
        host, port = here.address[len("tcp://") :].split(":")
        with near, socket.create_connection((host, int(port))) as far:
            heard = relay(near, far, there)
        assert take_mail(here)
        assert b"CURVE" in heard
        assert b"a secret of ours" not in heard


def relay(near: socket.socket, far: socket.socket, dialler: ZmqChannel) -> bytes:
    """Carry bytes to and fro until *dialler* has said its secret; all that was carried."""
    heard, said_at = b"", 0.0
    near.setblocking(False)
    far.setblocking(False)
    while not said_at or time.monotonic() - said_at < 0.2:
        for one, other in ((near, far), (far, near)):
            try:
                data = one.recv(1 << 16)
            except BlockingIOError:
                continue
            heard += data
            other.sendall(data)
        for arrival in drain(dialler):
            if isinstance(arrival, LinkUp):
                assert dialler.send(arrival.link, [HEADER, b"a secret of ours" * 10])
                said_at = time.monotonic()
    return heard


def test_a_key_that_is_not_on_the_list_is_turned_away_and_both_sides_are_told() -> None:
    with server(CLIENT) as here, client(STRANGER) as there:
        there.dial(here.address)
        told = refused(there)
        assert told.link == here.address
        assert "does not know our key" in told.detail
        seen = refusals(here, "unknown_key")[0]
        assert seen.link == "127.0.0.1"
        assert STRANGER.public.decode() in seen.detail


def test_who_has_been_turned_away_can_send_nothing() -> None:
    with server(CLIENT) as here, client(STRANGER) as there:
        there.dial(here.address)
        refused(there)
        assert there.send(here.address, [HEADER, b"let me in"])
        refusals(here, "unknown_key")
        refused(there)  # again, as it dials again
        assert all(isinstance(arrival, PeerRefused) for arrival in drain(here))


def test_a_server_with_another_key_than_expected_is_not_talked_to() -> None:
    with server(CLIENT) as here, client(CLIENT, expected=STRANGER) as there:
        there.dial(here.address)
        refusals(here, "wrong_server_key")
        arrivals = drain_until(there, bool)
        assert isinstance(arrivals[0], LinkDown)
        assert "compare the key files" in arrivals[0].detail


def test_a_plain_peer_is_not_let_in_and_hears_why() -> None:
    with server(CLIENT) as here, client(None) as there:
        there.dial(here.address)
        assert "wants CURVE" in refused(there).detail
        refusals_of_any_kind(here)


def refusals_of_any_kind(channel: ZmqChannel) -> None:
    """Either side may be the first to see that the mechanisms differ, and hang up."""
    causes = {"wrong_mechanism", "broken_off"}
    drain_until(
        channel,
        lambda seen: any(isinstance(one, PeerRefused) and one.cause in causes for one in seen),
    )


def test_a_plain_greeting_counts_as_the_wrong_mechanism() -> None:
    with server(CLIENT) as here, raw(here) as plain:
        plain.sendall(b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL".ljust(64, b"\0"))
        assert refusals(here, "wrong_mechanism")


def test_a_curve_peer_does_not_talk_to_a_plain_server() -> None:
    with ZmqChannel("127.0.0.1") as here, client(CLIENT) as there:
        there.dial(here.address)
        assert "does not use CURVE" in refused(there).detail
        refusals_of_any_kind(here)


def test_a_greeting_of_curve_and_then_garbage_is_malformed() -> None:
    with server(CLIENT) as here, raw(here) as odd:
        odd.sendall(b"\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE".ljust(64, b"\0"))
        odd.sendall(b"\4\x06\5HELLO")
        assert refusals(here, "malformed")


def test_where_a_malformed_handshake_came_from_is_told_if_it_is_certain() -> None:
    with server(CLIENT) as here, raw(here) as odd:
        listener = here._listener
        assert listener is not None
        while not listener._callers._known:
            assert is_readable(here, 5)
            drain(here)
        odd.sendall(b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL".ljust(64, b"\0"))
        assert refusals(here, "wrong_mechanism")[0].link == "127.0.0.1"


def test_a_descriptor_that_may_be_somebody_elses_by_now_names_nobody() -> None:
    callers = Callers()

    def told(descriptor: int, *, heard: bool) -> str | None:
        callers.accepted(descriptor)
        callers.failed = "malformed", ""
        if heard:
            callers.all_heard()
        refused = callers.ended(descriptor)
        return None if refused is None else refused.link

    with server(CLIENT) as here, raw(here) as first:
        assert told(first.fileno(), heard=False) == ""  # it may have been closed before
        assert told(first.fileno(), heard=True) == "127.0.0.1"
        assert told(here.fileno(), heard=True) == ""  # no socket
        assert callers.ended(first.fileno()) is None  # nothing had failed


def raw(channel: ZmqChannel) -> socket.socket:
    host, port = channel.address[len("tcp://") :].split(":")
    return socket.create_connection((host, int(port)))


def test_who_was_turned_away_gets_in_once_somebody_knows_it_there() -> None:
    here = server(CLIENT)
    port = int(here.address.rpartition(":")[2])
    with client(STRANGER) as there:
        there.dial(here.address)
        refused(there)
        here.close()
        with server(STRANGER, port=port) as again:
            until_up(there, again.address)
            assert there.send(again.address, [HEADER, b"hello"])
            assert take_mail(again)


def test_a_plain_peer_gets_in_once_the_server_is_plain_too() -> None:
    here = server(CLIENT)
    port = int(here.address.rpartition(":")[2])
    with client(None) as there:
        there.dial(here.address)
        refused(there)
        here.close()
        with ZmqChannel("127.0.0.1", port) as again:
            until_up(there, again.address)


def test_a_restarted_server_of_the_same_key_is_met_again() -> None:
    here = server(CLIENT)
    port = int(here.address.rpartition(":")[2])
    with client(CLIENT) as there:
        connect(there, here)
        here.close()
        with server(CLIENT, port=port) as again:
            until_up(there, again.address)
            assert there.send(again.address, [HEADER, b"again"])
            assert take_mail(again)[0].frames[1] == b"again"


def test_who_was_turned_away_can_be_hung_up_on() -> None:
    with server(CLIENT) as here, client(STRANGER) as there:
        there.dial(here.address)
        refused(there)
        there.hang_up(here.address)
        refusals(here, "unknown_key")
        assert not is_readable(there, 3 * REDIAL_S) or not drain(there)


def test_many_clients_are_let_in_at_once_and_told_apart() -> None:
    pairs = [KeyPair(*zmq.curve_keypair()) for _ in range(24)]
    with server(*pairs) as here, ExitStack() as opened:
        clients = [opened.enter_context(client(pair)) for pair in pairs]
        for one in clients:
            one.dial(here.address)
        for number, one in enumerate(clients):
            until_up(one, here.address)
            assert one.send(here.address, [HEADER, b"%d" % number])
        got = take_mail(here, len(pairs))
        assert len({mail.link for mail in got}) == len(pairs)
        for mail in got:
            assert here.send(mail.link, mail.frames)
        for number, one in enumerate(clients):
            assert take_mail(one)[0].frames[1] == b"%d" % number


def test_a_crowd_of_strangers_leaves_nothing_and_keeps_nobody_out() -> None:
    with server(CLIENT) as here, client(CLIENT) as known:
        connect(known, here)
        turn_away(here, 5)
        before = open_descriptors(), native_threads()
        turn_away(here, 60)
        assert known.send(here.address, [HEADER, b"still here"])
        assert take_mail(here)[0].frames[1] == b"still here"
        listener = here._listener
        assert listener is not None
        assert listener._guard is not None
        assert len(listener._guests.by_id) == 1
        assert not list(listener._guard.refused())
        assert (open_descriptors(), native_threads()) == before


def turn_away(here: ZmqChannel, count: int) -> None:
    """Have *count* strangers refused, one after the other."""
    for _ in range(count):
        with client(STRANGER) as there:
            there.dial(here.address)
            refused(there)
        refusals(here, "unknown_key")
    drain(here)


def test_what_the_guard_remembers_is_bounded_while_nobody_listens() -> None:
    with server(CLIENT) as here:
        listener = here._listener
        assert listener is not None
        assert listener._guard is not None
        question = [b"1.0", b"1", b"stagelink", b"192.0.2.1", b"", b"CURVE", b"k" * 32]
        answers = [listener._guard._answer(question)[2] for _ in range(5000)]
        assert set(answers) == {b"400"}
        assert len(list(listener._guard.refused())) == 1024


@pytest.mark.parametrize("mechanism", [b"NULL", b"PLAIN", b"GSSAPI", b""])
def test_the_guard_lets_nobody_in_by_another_mechanism(mechanism: bytes) -> None:
    with server(CLIENT) as here:
        listener = here._listener
        assert listener is not None
        assert listener._guard is not None
        known = next(iter(ring(CLIENT).allowed))
        question = [b"1.0", b"7", b"stagelink", b"192.0.2.1", b"", mechanism]
        for credentials in ([], [known], [b"user", b"password"]):
            answer = listener._guard._answer([*question, *credentials])
            assert (answer[1], answer[2]) == (b"7", b"400")


def test_without_its_guard_a_listener_lets_nobody_in() -> None:
    with server(CLIENT) as here, client(CLIENT) as there:
        listener = here._listener
        assert listener is not None
        assert listener._guard is not None
        listener._guard.close()
        listener._guard = None
        there.dial(here.address)
        until_s = time.monotonic() + 0.3
        while (left_s := until_s - time.monotonic()) > 0:
            is_readable(there, left_s)
            assert not any(isinstance(arrival, LinkUp) for arrival in drain(there))


def test_nothing_is_left_when_a_guarded_channel_is_closed_or_cannot_be_bound() -> None:
    with server(CLIENT) as holder:
        port = int(holder.address.rpartition(":")[2])
        before = open_descriptors(), native_threads()
        server(CLIENT).close()
        with pytest.raises(ConfigError):
            server(CLIENT, port=port)
        gc.collect()
        assert (open_descriptors(), native_threads()) == before


def test_an_address_whose_key_is_not_known_is_not_dialled() -> None:
    keyring = Keyring(
        CLIENT, {"a": SERVER.public, "b": STRANGER.public}, {"tcp://10.0.0.7:1": "c"}
    )
    with ZmqChannel("127.0.0.1", keyring=keyring) as here:
        here.check(here.address)
        with pytest.raises(ConfigError, match=r"stage 'c' at tcp://10.0.0.7:1; at hand: a, b"):
            here.check("tcp://10.0.0.7:1")
        with pytest.raises(ConfigError, match=r"the sender at tcp://10.0.0.8:1"):
            here.dial("tcp://10.0.0.8:1")
