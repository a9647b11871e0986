from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from stagelink.adapters.structlog import LOGGER, Log
from stagelink.adapters.structlog.limiter import Limiter

ROOT = Path(__file__).parents[2]


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_event_is_its_name_and_its_fields_in_one_line(lines: list[logging.LogRecord]) -> None:
    log = Log(stage="thinker")

    log.info("session_back", peer="talker", elapsed_s=1 / 3, cause="", key=None)

    assert [r.getMessage() for r in lines] == [
        "session_back stage=thinker peer=talker elapsed_s=0.333"
    ]


def test_the_fields_are_attributes_of_the_record_too(lines: list[logging.LogRecord]) -> None:
    Log(stage="thinker").debug("call_failed", key="req-7", transfer_id=3)

    known = lines[0].__dict__
    assert (known["event"], known["key"], known["transfer_id"]) == ("call_failed", "req-7", 3)


def test_text_of_a_peer_cannot_begin_a_line_or_move_the_cursor(
    lines: list[logging.LogRecord],
) -> None:
    Log().warning("frames_refused", cause="a\nb\x1b[2Jc")

    message = lines[0].getMessage()
    assert message.isprintable()
    assert message.startswith("frames_refused cause=")


def test_the_same_trouble_is_told_once_in_five_seconds_with_a_count(
    lines: list[logging.LogRecord], clock: Clock
) -> None:
    log = Log(clock)

    for _ in range(1000):  # ten seconds of a call that fails every 10 ms
        log.warning("pool_exhausted", edge="a->b")
        clock.now_s += 0.01

    assert 2 <= len(lines) <= 3
    assert sum(getattr(r, "repeated", 0) + 1 for r in lines) > 500


def test_different_peers_do_not_silence_each_other(
    lines: list[logging.LogRecord], clock: Clock
) -> None:
    log = Log(clock)

    for peer in ("talker/0/0", "talker/1/0", "talker/0/0"):
        log.warning("session_lost", peer=peer)

    assert [r.__dict__["peer"] for r in lines] == ["talker/0/0", "talker/1/0"]


def test_a_line_comes_at_the_very_end_of_the_pause() -> None:
    limiter = Limiter(5.0)

    told = [limiter.admit(("event", "peer"), at_s) for at_s in (0.0, 1.0, 4.999, 5.0, 10.0)]

    assert told == [0, None, None, 2, 0]


def test_the_limiter_forgets_the_oldest_subject_rather_than_grow() -> None:
    limiter = Limiter(5.0)

    for number in range(5000):
        limiter.admit(("event", str(number)), 0.0)

    assert len(limiter._last) <= 1024
    assert limiter.admit(("event", "4999"), 1.0) is None


def test_nothing_is_shown_to_who_did_not_ask() -> None:
    code = (
        "from stagelink.adapters.structlog import Log\n"
        "log = Log(stage='a')\n"
        "log.warning('session_lost', peer='b'); log.error('plane_reset'); log.info('x')"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )

    assert (done.stdout, done.stderr) == ("", "")


def test_the_configuration_of_structlog_is_left_alone() -> None:
    before = structlog.is_configured(), structlog.get_config()

    Log(stage="a").debug("connector_opened")

    assert (structlog.is_configured(), structlog.get_config()) == before


def test_json_lines_have_every_field_as_the_how_to_says() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.ExtraAdder(),
                structlog.stdlib.add_log_level,
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    try:
        Log(stage="a").warning("session_lost", peer="b", cause="reset")
    finally:
        logger.removeHandler(handler)

    told = {"event": "session_lost", "stage": "a", "peer": "b", "cause": "reset"}
    assert json.loads(stream.getvalue()) == {**told, "level": "warning"}
