from __future__ import annotations

import contextlib
import pickle
import re
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelink.adapters.msgspec.wire import (
    HEADER_BYTES,
    KINDS,
    VersionMismatchError,
    WireCodec,
    header,
)
from stagelink.core import messages as m
from stagelink.core.errors import ProtocolViolationError
from stagelink.core.source import HELD_LIMIT, NOTICES_LIMIT
from stagelink.core.values import HostCard, Identity, PlaneCard, RegionRef

CODEC = WireCodec()
ME, YOU = bytes(range(16)), bytes(16)
WHO = Identity("thinker", 1, 2)
HOST = HostCard("host-1", "lock:/run/x")
REPORT = m.Report(7, (8, 9), 120, (3,))
PLANE = PlaneCard("shm", "map", b"\x01\x02")
REGION = RegionRef(1, 4096, 64)


def down(message: Any) -> m.Packet:
    return m.Packet(5, 6, None, message)


def up(message: Any) -> m.Packet:
    return m.Packet(5, 6, REPORT, message)


SAMPLES: list[Any] = [
    m.Hello(5, ME, WHO, "encoder", YOU, REPORT, HOST, (PLANE, PLANE)),
    m.Hello(5, ME, WHO, "encoder", b"", REPORT, HOST, ()),
    m.Hello(5, ME, WHO, "encoder", b"", REPORT, HOST, (), ("zstd", "zip")),
    m.Declined(5, "declined", "nobody of that name"),
    m.Lost(5),
    m.Inspect(7),
    m.Figures(7, b'{"status": "ok"}'),
    up(m.Subscribe()),
    up(m.Query("k")),
    up(m.Pull(1, 2, REGION, 1.5)),
    up(m.Pull(1, 2, None, 0.0)),
    up(m.Cancel(1)),
    up(m.Ack(())),
    up(m.Grants((m.Granted(1, REGION), m.Granted(2, REGION)))),
    up(m.Ack((1, 2**63 - 1))),
    up(m.Bye()),
    up(m.Bye((1, 2**63 - 1))),
    down(m.Bye()),
    down(m.Welcome(YOU, WHO, HOST, PLANE, True)),
    down(m.Welcome(YOU, WHO, HOST, PLANE, False, True)),
    down(m.Synced(9)),
    down(m.Landed(9, "k", 3, 64, 1, True, b"head")),
    down(m.Announce(9, "k", 3, 4, m.INLINE, None, b"body")),
    down(m.Announce(9, "k", 3, 0, m.INLINE, None, b"")),
    down(m.Announce(9, "k", 3, 64, m.OFFER, REGION, b"")),
    down(m.Announce(9, "k", 3, 64, m.CLAIM, None, b"")),
    down(m.Announce(9, "k", 3, 64, m.PULL, None, b"")),
    down(m.Announce(9, "k", 3, 64, m.PULL, None, b"head")),
    down(m.Announce(9, "k", 3, 64, m.OFFER, REGION, b"head")),
    down(m.Announce(9, "k", 3, 0, m.ERROR, None, b"ValueError: no")),
    down(m.Ended((m.Gone(10, "k", 3, "expired", "after 5 s"), m.Gone(11, "l", 4, "taken", "")))),
    down(m.Offer(1, 3, REGION, b"")),
    down(m.Offer(1, 3, REGION, b"head")),
    down(m.Offer(1, 3, None, b"bytes")),
    down(m.Done(1, 3, 64)),
    down(m.Refused(1, "unknown", "")),
]


@pytest.mark.parametrize("message", SAMPLES, ids=map(str, count()))
def test_a_message_is_the_same_on_the_other_side(message: Any) -> None:
    frames = CODEC.encode(message)
    again = CODEC.decode(frames)

    assert again == message
    assert type(again) is type(message)
    if isinstance(message, m.Packet):
        assert isinstance(again, m.Packet)
        assert type(again.message) is type(message.message)
        assert type(again.report) is type(message.report)
    assert len(frames) <= 2


def test_every_kind_has_a_sample() -> None:
    inner = {type(s.message) if isinstance(s, m.Packet) else type(s) for s in SAMPLES}
    assert inner == set(KINDS)


@pytest.mark.parametrize(("size", "frames"), [(0, 1), (8192, 1), (8193, 2)])
def test_many_inline_bytes_are_a_frame_that_is_not_copied(size: int, frames: int) -> None:
    body = bytes(size)
    sent = CODEC.encode(down(m.Announce(9, "k", 3, size, m.INLINE, None, body)))

    assert len(sent) == frames
    packet = CODEC.decode(sent)
    assert isinstance(packet, m.Packet)
    assert isinstance(packet.message, m.Announce)
    assert packet.message.body == body
    assert frames == 1 or packet.message.body is sent[1] is body


def cut(frame: bytes) -> tuple[bytes, bytes]:
    """Header and fields."""
    return frame[:HEADER_BYTES], frame[HEADER_BYTES:]


@pytest.mark.parametrize("message", SAMPLES, ids=map(str, count()))
def test_trailing_fields_of_a_later_minor_are_ignored(message: Any) -> None:
    first, *rest = CODEC.encode(message)
    head, fields = cut(first)
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(fields), {"new": [1]}, "more"])

    assert CODEC.decode([head[:5] + b"\x09" + head[6:] + longer, *rest]) == message


@pytest.mark.parametrize("message", SAMPLES, ids=map(str, count()))
def test_a_missing_field_or_a_surplus_frame_is_refused(message: Any) -> None:
    first, *rest = CODEC.encode(message)
    head, fields = cut(first)
    values = msgspec.msgpack.decode(fields)
    inner = message.message if isinstance(message, m.Packet) else message
    later = isinstance(inner, m.Welcome)  # whether it takes credits
    needed = 8 if isinstance(message, m.Hello) else len(values) - later  # compressors, too
    shorter = msgspec.msgpack.encode(values[: needed - 1])

    for bad in (
        [head + shorter, *rest],
        [first + b"\0", *rest],
        [first, *rest, b"x", b"y"],
        [head],
        [first[:7]],
        [],
    ):
        with pytest.raises(ProtocolViolationError):
            CODEC.decode(bad)


def test_inline_bytes_come_in_one_place_only() -> None:
    sent = CODEC.encode(down(m.Announce(9, "k", 3, 4, m.INLINE, None, b"near")))
    with pytest.raises(ProtocolViolationError, match="4 inline bytes in the fields and 3"):
        CODEC.decode([*sent, b"far"])


BIG = 1 << 63
BAD: list[Any] = [
    m.Lost(-1),
    m.Lost(BIG),
    m.Lost(True),
    m.Lost("1"),  # type: ignore[arg-type]
    m.Inspect(-1),
    m.Figures(1, bytes(m.FIGURES_LIMIT + 1)),
    m.Figures(1, "{}"),  # type: ignore[arg-type]
    m.Hello(5, ME[:15], WHO, "e", b"", REPORT, HOST, ()),
    m.Hello(5, b"", WHO, "e", b"", REPORT, HOST, ()),
    m.Hello(5, ME, WHO, "e", b"x", REPORT, HOST, ()),
    m.Hello(5, ME, WHO, "e" * 257, b"", REPORT, HOST, ()),
    m.Hello(5, ME, Identity("", 0, 0), "e", b"", REPORT, HOST, ()),
    m.Hello(5, ME, Identity("e", -1, 0), "e", b"", REPORT, HOST, ()),
    m.Hello(5, ME, WHO, "e", b"", REPORT, HOST, (PLANE,) * 17),
    m.Hello(5, ME, WHO, "e", b"", REPORT, HOST, (PlaneCard("p", "map", bytes(4097)),)),
    m.Hello(5, ME, WHO, "e", b"", REPORT, HOST, (), ("z" * 65,)),
    m.Hello(5, ME, WHO, "e", b"", REPORT, HOST, (), ("z",) * 65),
    m.Packet(5, 6, None, m.Cancel(1)),
    m.Packet(5, 6, REPORT, m.Done(1, 2, 3)),
    m.Packet(5, 6, m.Report(7, tuple(range(65)), 1, ()), m.Cancel(1)),
    m.Packet(5, 6, m.Report(7, (), 1, tuple(range(65_537))), m.Cancel(1)),
    m.Packet(5, -6, REPORT, m.Cancel(1)),
    up(m.Ack(tuple(range(65_537)))),
    up(m.Bye(tuple(range(65_537)))),
    up(m.Grants((m.Granted(1, REGION),) * 65)),
    up(m.Grants((m.Granted(1, None),))),  # type: ignore[arg-type]
    up(m.Grants((m.Granted(1, RegionRef(1, 0, -4)),))),
    up(m.Query("")),
    up(m.Query("k" * 1089)),
    up(m.Query(b"k")),  # type: ignore[arg-type]
    up(m.Pull(1, 2, RegionRef(1, -1, 4), 1.0)),
    up(m.Pull(1, 2, RegionRef(1, 0, BIG), 1.0)),
    up(m.Pull(1, 2, None, -1.0)),
    up(m.Pull(1, 2, None, float("inf"))),
    up(m.Pull(1, 2, None, float("nan"))),
    down(m.Announce(9, "k", 3, 5, m.INLINE, None, b"body")),
    down(m.Announce(9, "k", 3, 4, m.INLINE, REGION, b"body")),
    down(m.Announce(9, "k", 3, 4, m.OFFER, None, b"")),
    down(m.Announce(9, "k", 3, 4, m.OFFER, REGION, b"more than 4")),
    down(m.Announce(9, "k", 3, 4, m.PULL, None, b"more than 4")),
    down(m.Announce(9, "k", 3, 9999, m.PULL, None, bytes(m.HEAD_LIMIT + 1))),
    down(m.Announce(9, "k", 3, 4, m.CLAIM, REGION, b"")),
    down(m.Announce(9, "k", 3, 0, m.ERROR, REGION, b"")),
    down(m.Announce(9, "k", 3, 4, 5, None, b"")),
    down(m.Announce(9, "k", 3, 4, -1, None, b"")),
    down(m.Landed(9, "k", 3, -1, 1, True, b"")),
    down(m.Landed(9, "k", 3, 4, 1, True, b"more than 4")),
    down(m.Landed(9, "k", 3, 4, 1, 1, b"")),  # type: ignore[arg-type]
    down(m.Offer(1, 3, REGION, bytes(REGION.size + 1))),
    down(m.Ended((m.Gone(1, "k", 3, "bored", ""),))),
    down(m.Ended((m.Gone(1, "k", 3, "taken", ""),) * 65)),
    down(m.Welcome(YOU, WHO, HOST, PLANE, 1)),  # type: ignore[arg-type]
    down(m.Welcome(b"", WHO, HOST, PLANE, True)),
]


@pytest.mark.parametrize("message", BAD, ids=map(str, count()))
def test_a_field_out_of_its_bounds_is_refused(message: Any) -> None:
    frames = CODEC.encode(message)
    with pytest.raises(ProtocolViolationError, match="malformed"):
        CODEC.decode(frames)


def test_a_greeting_that_names_no_compressors_has_none() -> None:
    hello = m.Hello(5, ME, WHO, "e", b"", REPORT, HOST, (PLANE,), ("zstd",))
    head, fields = cut(CODEC.encode(hello)[0])
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(fields)[:-1])

    assert CODEC.decode([head + older]) == hello._replace(codecs=())


def test_limits_themselves_pass() -> None:
    report = m.Report(0, tuple(range(64)), 0, tuple(range(65_536)))
    cards = (PlaneCard("p" * 64, "map", bytes(4096)),) * 16
    for message in (
        m.Hello(
            BIG - 1,
            ME,
            Identity("s" * 256),
            "é" * 256,
            b"",
            report,
            HOST,
            cards,
            ("z" * 64,) * 64,
        ),
        m.Packet(0, 0, report, m.Query("k" * 1088)),
    ):
        assert CODEC.decode(CODEC.encode(message)) == message


def test_the_longest_report_and_count_of_what_was_consumed_fit_the_smallest_frame() -> None:
    told = m.Ack(tuple(range(BIG - NOTICES_LIMIT, BIG)))

    report = m.Report(BIG - 1, (BIG - 1,) * 64, BIG - 1, (BIG - 1,) * HELD_LIMIT)
    frames = CODEC.encode(m.Packet(BIG - 1, BIG - 1, report, told))

    assert sum(map(len, frames)) < 120 << 10  # of 128 KiB, where nothing is eager


def test_a_detail_of_anything_is_made_fit() -> None:
    again = CODEC.decode(CODEC.encode(m.Declined(1, "declined", "\ud800" + "x" * 5000)))
    assert again == m.Declined(1, "declined", ("\\ud800" + "x" * 5000)[:4096])


def test_a_hello_of_another_major_gets_an_answer_it_can_read() -> None:
    fields = msgspec.msgpack.encode([77, {"what": "ever"}])
    with pytest.raises(VersionMismatchError, match=r"2\.3 meets 1\.0") as caught:
        CODEC.decode([header(1, (2, 3)) + fields])

    assert caught.value.theirs == (2, 3)
    assert caught.value.answer is not None
    (told,) = CODEC.encode(caught.value.answer)
    theirs = [told[:4] + bytes((9, 9)) + told[6:]]  # any version reads a Declined
    declined = CODEC.decode(theirs)
    assert isinstance(declined, m.Declined)
    assert declined.session == 77
    assert declined.reason == "mismatch"


@pytest.mark.parametrize("frame", [header(18, (2, 0)), header(1, (0, 1)) + b"\xc1"])
def test_other_mail_of_another_major_gets_no_answer(frame: bytes) -> None:
    with pytest.raises(VersionMismatchError) as caught:
        CODEC.decode([frame])
    assert caught.value.answer is None


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    made = tmp_path / "made"

    class Bomb:
        def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
            return Path.touch, (made,)

    blob = pickle.dumps(Bomb())
    for frames in ([blob], [blob, blob], [header(18) + blob], [header(34) + blob, blob]):
        with pytest.raises(ProtocolViolationError):
            CODEC.decode(frames)
    assert not made.exists()


def test_nesting_bombs_and_huge_claims_are_refused() -> None:
    head, fields = cut(CODEC.encode(m.Lost(1))[0])
    assert fields == b"\x91\x01"
    for bomb in (b"\x91" * 200_000, b"\xdd\xff\xff\xff\xff", b"\x92\x01" + b"\x91" * 200_000):
        with pytest.raises(ProtocolViolationError):
            CODEC.decode([head + bomb])


KIND_FRAMES = st.sampled_from([header(kind) for kind in KINDS.values()])


@given(st.lists(st.binary(max_size=40), max_size=5), KIND_FRAMES)
def test_random_frames_raise_nothing_else(frames: list[bytes], first: bytes) -> None:
    for mail in (frames, [first, *frames], [first + b"".join(frames)]):
        with contextlib.suppress(ProtocolViolationError):
            CODEC.decode(mail)


@given(st.sampled_from(SAMPLES), st.data())
def test_a_mutated_message_is_refused_or_decodes(message: Any, data: st.DataObject) -> None:
    frames = [bytearray(frame) for frame in CODEC.encode(message)]
    frame = frames[data.draw(st.integers(0, len(frames) - 1))]
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))

    try:
        again = CODEC.decode([bytes(frame) for frame in frames])
    except ProtocolViolationError:
        return
    assert CODEC.decode(CODEC.encode(again)) == again


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "wire.md"


def test_the_page_shows_what_the_codec_sends() -> None:
    shown = re.findall(r"```hex\n(.*?)```", PAGE.read_text(), re.DOTALL)
    packet = m.Packet(3, 5, None, m.Announce(9, "req-7", 12, 4, m.INLINE, None, b"\1\2\3\4"))

    assert shown[0].split() == [frame.hex() for frame in CODEC.encode(packet)]


def test_the_page_lists_every_kind_with_its_number() -> None:
    text = PAGE.read_text()
    for kind, number in KINDS.items():
        assert f"| {number} | {kind.__name__} |" in text
