"""``stagelink top``: a running connector, watched from outside."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import stagelink
from stagelink import commands, metrics
from stagelink.adapters.msgspec.wire import WireCodec
from stagelink.adapters.zmq.channel import ZmqChannel
from stagelink.core.errors import PeerError, ProtocolViolationError
from stagelink.core.messages import FIGURES_LIMIT, Figures, Inspect
from stagelink.inspect.client import Onlooker
from stagelink.inspect.rates import Rates, rates_between
from stagelink.ports.channel import LinkUp, Mail
from stagelink.terminal.top import view

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 10.0
POOL = 4 << 20


@pytest.fixture
def sender() -> Iterator[stagelink.Connector]:
    with stagelink.open(stage="thinker", role="sender", backend="shm", pool_bytes=POOL) as opened:
        yield opened


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """Something that speaks our framing, and answers with *answer* or not at all."""
    codec, done = WireCodec(), Event()
    with ZmqChannel("127.0.0.1") as channel:

        def serve() -> None:
            while not done.wait(0.001):
                while (arrival := channel.receive()) is not None:
                    if isinstance(arrival, Mail) and answer is not None:
                        message = codec.decode(arrival.frames)
                        assert isinstance(message, Inspect)
                        channel.send(arrival.link, codec.encode(Figures(message.number, answer)))

        thread = Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield channel.address
        finally:
            done.set()
            thread.join(PATIENCE_S)


def shown(health: dict[str, Any], rates: Rates | None = None) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(view(health, rates))
    return capture.get()


def test_json_is_the_health_that_the_connector_tells_of_itself(
    sender: stagelink.Connector,
) -> None:
    sender.put("req-1", bytes(100_000), to="talker")

    result = CliRunner().invoke(commands.app, ["top", sender.endpoint, "--once", "--json"])

    told, known = json.loads(result.stdout), sender.health()
    assert result.exit_code == 0
    assert {**told, "inspections": 1} == known
    assert (told["puts"], told["stage"], told["sessions"]) == (1, "thinker", [])


def test_once_shows_the_pool_the_totals_and_the_sessions(sender: stagelink.Connector) -> None:
    sender.put("req-1", bytes(2 << 20), to="talker")

    result = CliRunner().invoke(commands.app, ["top", sender.endpoint, "--once"])

    assert result.exit_code == 0
    for words in ("ok thinker (sender)", "50% of 4 MiB", "Sessions: 0", sender.endpoint):
        assert words in result.stdout


def test_looking_changes_nothing_but_its_own_count(sender: stagelink.Connector) -> None:
    before = sender.health()

    with Onlooker(sender.endpoint) as onlooker:
        for _ in range(5):
            onlooker.look(PATIENCE_S)

    assert sender.health() == {**before, "inspections": 5}


def test_many_that_ask_at_once_all_get_an_answer_in_the_end(sender: stagelink.Connector) -> None:
    found: list[str] = []

    def look() -> None:
        with Onlooker(sender.endpoint) as onlooker:
            found.extend(onlooker.look(PATIENCE_S)["stage"] for _ in range(12))

    threads = [Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert found == ["thinker"] * 36
    assert sender.health()["inspections"] == 36


def test_unasked_figures_do_a_connector_no_harm(sender: stagelink.Connector) -> None:
    with ZmqChannel(None) as channel:
        channel.dial(sender.endpoint)
        while not isinstance(channel.receive(), LinkUp):
            pass
        for message in (Figures(1, b"{}"), Inspect(2)):  # in this order: one link keeps it
            channel.send(sender.endpoint, WireCodec().encode(message))
        while not isinstance(arrival := channel.receive(), Mail):
            pass

    answer = WireCodec().decode(arrival.frames)
    assert isinstance(answer, Figures)
    assert json.loads(answer.body)["inspections_refused"] == 1
    assert sender.health()["status"] == "ok"
    sender.put("req-1", bytes(10), to="talker")


def test_figures_too_large_for_one_answer_leave_the_sessions_out(
    sender: stagelink.Connector, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = {"direction": "out", "peer": "talker", "state": "open", "detail": "x" * 100}
    many = {**sender.health(), "sessions": [session] * 1000}
    monkeypatch.setattr(metrics, "health_of", lambda *_: many)

    with Onlooker(sender.endpoint) as onlooker:
        told = onlooker.look(PATIENCE_S)

    assert len(json.dumps(many)) > FIGURES_LIMIT
    assert told == {**many, "sessions": [], "sessions_left_out": 1000}
    assert "Sessions: 1,000" in shown(told)


def test_where_nobody_listens_it_says_so_and_what_to_check() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, never listening: nobody else gets the port
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"

        result = CliRunner().invoke(commands.app, ["top", endpoint, "--timeout", "0.2", "--json"])

    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert not found["ok"]
    assert f"nothing answers at {endpoint}" in found["error"]
    assert "check that the connector runs" in found["error"]


def test_what_listens_but_does_not_answer_is_told_apart() -> None:
    with (
        listening(None) as address,
        Onlooker(address) as onlooker,
        pytest.raises(PeerError, match="is connected, but does not answer") as caught,
    ):
        onlooker.look(0.5)

    assert "of this version" in caught.value.remedy


@pytest.mark.parametrize("garbage", [b"", b"[1]", b"\xff", b"[" * 60_000, b"null"])
def test_figures_that_are_no_object_are_refused(garbage: bytes) -> None:
    with (
        listening(garbage) as address,
        Onlooker(address) as onlooker,
        pytest.raises(ProtocolViolationError, match="no JSON object"),
    ):
        onlooker.look(PATIENCE_S)


@pytest.mark.parametrize("endpoint", ["nonsense", "tcp://0.0.0.0:5000", "memory://x"])
def test_an_endpoint_that_cannot_be_dialled_is_refused_at_once(endpoint: str) -> None:
    result = CliRunner().invoke(commands.app, ["top", endpoint])

    assert result.exit_code == 1
    assert "cannot dial" in result.stderr


def test_figures_of_another_version_are_shown_as_far_as_they_go() -> None:
    odd = {"status": "fine", "pool": [], "sessions": [1, {"peer": "b"}], "errors": {"x": "many"}}

    assert "fine" in shown(odd)
    assert "Sessions: 1" in shown(odd)
    assert "0% of 0 MiB" in shown({})


def test_nothing_that_a_connector_says_can_steer_the_terminal() -> None:
    evil = {"status": "ok", "stage": "\x1b[2J", "sessions": [{"peer": "\x1b]0;owned\a"}]}

    assert "\x1b" not in shown(evil)
    assert "[bold]" in shown({"stage": "[bold]"})


def test_errors_are_listed_by_cause_most_frequent_first() -> None:
    told = shown({"errors": {"deadline": 2, "peer_gone": 7}})

    assert told.index("peer_gone") < told.index("deadline")


def test_rates_are_differences_by_time() -> None:
    before = {"engine_key": "a", "puts": 10, "gets": 4, "bytes_transferred": 0, "errors": {}}
    after = {
        "engine_key": "a", "puts": 30, "gets": 4, "bytes_transferred": 4_000_000,
        "errors": {"deadline": 1},
    }  # fmt: skip

    assert rates_between(before, after, 2.0) == Rates(10.0, 0.0, 2.0, 0.5)
    assert "10.0/s" in shown(after, rates_between(before, after, 2.0))


def test_there_are_no_rates_across_a_restart_or_within_no_time() -> None:
    assert rates_between({"engine_key": "a"}, {"engine_key": "b"}, 1.0) is None
    assert rates_between({}, {}, 0.0) is None


def test_interrupting_the_live_view_ends_it_cleanly(sender: stagelink.Connector) -> None:
    ours, theirs = os.openpty()
    env = os.environ | {"PYTHONPATH": str(Path(stagelink.__file__).parents[1]), "TERM": "xterm"}
    command = [sys.executable, "-m", "stagelink.cli", "top", sender.endpoint, "--interval", "0.1"]
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=env)
    os.close(theirs)
    try:
        seen = b""
        while seen.count(b"thinker (sender)") < 2:  # so it is live, and not just once
            seen += os.read(ours, 4096)
        child.send_signal(signal.SIGINT)
        drain = Thread(target=_read_to_the_end, args=(ours,))  # it must be able to say goodbye
        drain.start()
        _, errors = child.communicate(timeout=PATIENCE_S)
        drain.join(PATIENCE_S)
    finally:
        child.kill()
        child.wait()
        os.close(ours)

    assert child.returncode == 0
    assert errors == b""


def _read_to_the_end(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except OSError:  # a terminal whose other end has closed
        return
