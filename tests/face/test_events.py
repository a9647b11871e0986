"""The page of events says what the code tells, and connectors tell what happens to them."""

from __future__ import annotations

import ast
import logging
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stagelink
from stagelink.adapters.memory import Hub
from stagelink.adapters.structlog import LOGGER
from stagelink.core.errors import CapacityError, DeadlineError
from stagelink.plugins.conformance.connector import eventually, is_linked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.connector import Connector

ROOT = Path(__file__).parents[2]
LEVELS = {"debug", "info", "warning", "error"}
QUIET = {"exc_info"}


def told(tree: ast.AST) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Every ``log.level("event", field=…)``: event, level and fields."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = ast.unparse(node.func.value)
        if node.func.attr not in LEVELS or not re.search(r"\b_?log$", owner):
            continue
        assert isinstance(node.args[0], ast.Constant), f"line {node.lineno}: not a constant"
        fields = frozenset(str(word.arg) for word in node.keywords) - QUIET
        yield str(node.args[0].value), node.func.attr, fields


def in_code() -> set[tuple[str, str, frozenset[str]]]:
    folders = ["core", "ports", "adapters", "plugins", "src"]
    files = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {event for path in files for event in told(ast.parse(path.read_text()))}


def on_page() -> set[tuple[str, str, frozenset[str]]]:
    page = (ROOT / "docs/reference/events.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", page, re.M)
    return {(name, level, frozenset(re.findall(r"`(\w+)`", f))) for name, level, f in rows}


def test_the_page_lists_every_event_with_its_level_and_fields() -> None:
    assert len(in_code()) > 15
    assert on_page() == in_code()


def test_no_field_hides_what_a_log_record_has_of_its_own() -> None:
    own = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    assert not own & set().union(*(fields for _, _, fields in in_code()))


def events(lines: list[logging.LogRecord], level: int = logging.DEBUG) -> list[str]:
    return [str(r.__dict__["event"]) for r in lines if r.levelno >= level and r.name == LOGGER]


def the(lines: list[logging.LogRecord], event: str) -> dict[str, Any]:
    return next(r.__dict__ for r in lines if r.__dict__.get("event") == event)


@pytest.fixture
def tx() -> Iterator[Connector]:
    with stagelink.open(stage="thinker", role="sender", backend="memory", pool_bytes="1MiB") as it:
        yield it


@pytest.fixture
def rx(tx: Connector) -> Iterator[Connector]:
    settings = {"stage": "talker", "role": "receiver", "backend": "memory"}
    with stagelink.open(sender=tx.endpoint, pool_bytes="1MiB", **settings) as it:
        yield it


def test_a_thousand_transfers_say_nothing_at_info(
    tx: Connector, rx: Connector, lines: list[logging.LogRecord]
) -> None:
    for number in range(1000):
        tx.put(f"key-{number}", number, to="talker")
        rx.get(f"key-{number}", source="thinker").close()

    assert events(lines, logging.INFO) == []


def test_the_life_of_a_connector_is_told_to_who_debugs(lines: list[logging.LogRecord]) -> None:
    stagelink.open(stage="thinker", role="sender", backend="memory").close()

    assert [e for e in events(lines) if e.startswith("connector")] == [
        "connector_opened",
        "connector_closed",
    ]
    opened = the(lines, "connector_opened")
    assert (opened["stage"], opened["role"], opened["backends"]) == (
        "thinker", "sender", ["memory"],
    )  # fmt: skip


def test_a_session_is_told_when_it_opens_and_when_it_is_lost(
    tx: Connector, rx: Connector, lines: list[logging.LogRecord]
) -> None:
    rx.poll("nothing", source="thinker")
    assert is_linked(rx)
    assert eventually(lambda: events(lines).count("session_open") == 2)

    Hub.default().kill(bytes.fromhex(tx.health()["engine_key"]))

    assert eventually(lambda: "session_lost" in events(lines, logging.WARNING))
    lost = the(lines, "session_lost")
    assert (lost["stage"], lost["edge"], lost["peer"], lost["direction"]) == (
        "talker", "thinker->talker", "thinker", "in",
    )  # fmt: skip
    assert eventually(lambda: {"peer_dead", "peer_fenced"} <= set(events(lines)))
    assert the(lines, "peer_dead")["peer"] == "thinker"


@pytest.mark.parametrize("backend", ["memory", "shm"])
def test_a_goodbye_of_either_end_is_no_warning(
    backend: str, lines: list[logging.LogRecord]
) -> None:
    common = {"backend": backend, "pool_bytes": "1MiB"}
    for ends in ("sender first", "receiver first"):
        lines.clear()
        with (
            stagelink.open(stage="thinker", role="sender", **common) as tx,
            stagelink.open(stage="talker", role="receiver", sender=tx.endpoint, **common) as rx,
        ):
            tx.put("key", bytes(1 << 16), to="talker")
            rx.get("key", source="thinker").close()
            assert eventually(lambda: events(lines).count("session_open") == 2)
            (tx if ends == "sender first" else rx).close()
            assert eventually(lambda: {"session_closed", "peer_closed"} <= set(events(lines)))
            left = rx if ends == "sender first" else tx
            assert eventually(partial(is_rid_of_the_other, left))
        assert events(lines, logging.WARNING) == []
        assert events(lines).count("session_closed") == 1


def is_rid_of_the_other(connector: Connector) -> bool:
    """Whether it has cut off whom it talked with."""
    return all(row["watch"] == "gone" for row in connector.health()["sessions"])


def test_a_failed_call_is_told_with_the_fields_of_its_error(
    rx: Connector, lines: list[logging.LogRecord]
) -> None:
    rx.poll("other", source="thinker")
    assert is_linked(rx)

    with pytest.raises(DeadlineError) as caught:
        rx.get("req-7", source="thinker", timeout=0.0)

    failed, context = the(lines, "call_failed"), caught.value.context
    assert failed["cause"] == "deadline"
    assert failed["remedy"] == caught.value.remedy
    assert (failed["key"], failed["edge"], failed["peer"], failed["elapsed_s"]) == (
        context.key, context.edge, context.peer, context.elapsed_s,
    )  # fmt: skip


def test_an_exhausted_pool_is_told_once_however_often_it_is_tried(
    tx: Connector, lines: list[logging.LogRecord]
) -> None:
    tx.put("first", bytes(700 << 10), to="talker")

    for number in range(100):
        with pytest.raises(CapacityError):
            tx.put(f"key-{number}", bytes(700 << 10), to="talker", timeout=0.0)

    warned = [r for r in lines if r.levelno == logging.WARNING]
    assert [r.__dict__["event"] for r in warned] == ["pool_exhausted"]
    assert "raise pool_bytes" in warned[0].getMessage()
    assert events(lines).count("call_failed") == 100


def test_a_receiver_of_another_name_is_told_that_it_is_declined(
    tx: Connector, lines: list[logging.LogRecord]
) -> None:
    with stagelink.open(
        stage="talker", role="receiver", backend="memory", senders={"vocoder": tx.endpoint}
    ) as rx:
        rx.poll("key", source="vocoder")
        assert eventually(lambda: "session_declined" in events(lines))

    declined = the(lines, "session_declined")
    assert "vocoder" in declined["cause"]
    assert declined["remedy"]
