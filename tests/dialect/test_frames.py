"""Every frame of the dialect, byte by byte, and everything that is none."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dialect.theirs import InfoWire, PullWire, QueryWire

from stagelink.adapters.vllm_omni_mori import frames
from stagelink.adapters.vllm_omni_mori.frames import Info, Pull, Query, Word
from stagelink.core.errors import ProtocolViolationError

pack = msgspec.msgpack.encode
NAME = "req-7_0_3@0_1"
# As msgspec writes the structs of vLLM-Omni 0.30.0's mori_transfer_engine_connector.py.
GOLDEN: list[tuple[Any, bytes]] = [
    (
        Pull(NAME, b"\x01engine", b"\x02memory", 8192, 70000),
        b"\x85\xaarequest_id\xadreq-7_0_3@0_1\xb2engine_desc_packed\xc4\x07\x01engine"
        b"\xafmem_desc_packed\xc4\x07\x02memory\xaadst_offset\xcd\x20\x00\xa6length\xce\x00\x01\x11p",
    ),
    (Query(NAME), b"query_info\x81\xaarequest_id\xadreq-7_0_3@0_1"),
    (
        Info(NAME, 70000, is_fast_path=True),
        b"\x83\xaarequest_id\xadreq-7_0_3@0_1\xa9data_size\xce\x00\x01\x11p\xacis_fast_path\xc3",
    ),
    (frames.DONE, b"trans_done"),
    (frames.ERROR, b"trans_error"),
    (frames.NOT_FOUND, b"info_not_found"),
]
NAMES = st.text(
    st.characters(min_codepoint=32, exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60
)
CARDS = st.binary(min_size=1, max_size=300)
SIZES = st.integers(1, frames.MOST)


def decode(message: Any, body: bytes) -> Any:
    asks = isinstance(message, (Pull, Query))
    return frames.decode_request(body) if asks else frames.decode_answer(body)


@pytest.mark.parametrize(("message", "body"), GOLDEN, ids=range(len(GOLDEN)))
def test_each_frame_has_exactly_these_bytes(message: Any, body: bytes) -> None:
    assert frames.encode(message) == body
    assert decode(message, body) == message


@given(NAMES, CARDS, CARDS, st.integers(0, frames.MOST), SIZES)
def test_a_pull_of_theirs_is_read_and_ours_is_what_they_read(
    name: str, engine: bytes, memory: bytes, offset: int, length: int
) -> None:
    wire = pack(PullWire(name, engine, memory, offset, length))
    pull = Pull(name, engine, memory, offset, length)

    assert frames.encode(pull) == wire
    if offset + length <= frames.MOST:
        assert frames.decode_request(wire) == pull
    else:
        with pytest.raises(ProtocolViolationError, match="would end at"):
            frames.decode_request(wire)


@given(NAMES, SIZES, st.booleans())
def test_questions_and_answers_pass_both_ways(name: str, size: int, plain: bool) -> None:
    asked = b"query_info" + pack(QueryWire(name))
    told = pack(InfoWire(name, size, plain))

    assert frames.encode(Query(name)) == asked
    assert frames.decode_request(asked) == Query(name)
    assert frames.encode(Info(name, size, plain)) == told
    assert frames.decode_answer(told) == Info(name, size, plain)


def changed(**fields: Any) -> bytes:
    whole = {
        "request_id": NAME, "engine_desc_packed": b"e", "mem_desc_packed": b"m", "dst_offset": 0,
        "length": 1,
    }  # fmt: skip
    return pack({k: v for k, v in {**whole, **fields}.items() if v is not ...})


@pytest.mark.parametrize(
    "body",
    [
        b"", b"query_info", b"\xc0", b"trans_done", b"query_infox", b"\x91\x01",
        changed(request_id=""), changed(request_id="a\nb"), changed(request_id=b"bytes"),
        changed(request_id="x" * 2000), changed(request_id=...), changed(dst_offset=-1),
        changed(dst_offset=True), changed(dst_offset=1.0), changed(dst_offset=1 << 63),
        changed(length=0), changed(length=-5), changed(length=1 << 63), changed(length="1"),
        changed(length=...), changed(engine_desc_packed=b""), changed(engine_desc_packed="text"),
        changed(mem_desc_packed=b"m" * (16385)), changed(mem_desc_packed=None),
        changed() + b"\0", changed()[:-1], pack([NAME, b"e", b"m", 0, 1]), b"x" * (64 << 10) + b"x",
        b"query_info" + pack({"request_id": 7}), b"query_info" + pack({}), b"\x91" * 5000,
    ],
    ids=range(31),
)  # fmt: skip
def test_what_is_no_request_is_refused_with_one_typed_error(body: bytes) -> None:
    with pytest.raises(ProtocolViolationError, match=r"0\.30\.0"):
        frames.decode_request(body)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"trans_don", b"trans_done ", b"TRANS_DONE", b"\xc0", pack([NAME, 1, True]),
        pack({"request_id": NAME, "data_size": 0, "is_fast_path": True}),
        pack({"request_id": NAME, "data_size": 1, "is_fast_path": 1}),
        pack({"request_id": NAME, "data_size": True, "is_fast_path": True}),
        pack({"request_id": NAME, "data_size": 1}),
        pack({"request_id": "\x1b[2J", "data_size": 1, "is_fast_path": True}),
        b"y" * (64 << 10) + b"y",
    ],
    ids=range(12),
)  # fmt: skip
def test_what_is_no_answer_is_refused_with_one_typed_error(body: bytes) -> None:
    with pytest.raises(ProtocolViolationError):
        frames.decode_answer(body)


def test_a_field_that_a_later_version_adds_is_passed_over() -> None:
    assert isinstance(frames.decode_request(changed(tp_rank=3)), Pull)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | st.sampled_from([b for _, b in GOLDEN]), st.data())
def test_whatever_comes_is_a_frame_or_refused(body: bytes, data: Any) -> None:
    spoilt = bytearray(body)
    for _ in range(data.draw(st.integers(0, 4))):
        if spoilt:
            spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    for read in (frames.decode_request, frames.decode_answer):
        with contextlib.suppress(ProtocolViolationError):
            assert isinstance(read(bytes(spoilt)), (Pull, Query, Info, Word))


def test_a_request_id_is_taken_apart_by_the_names_of_the_edge() -> None:
    stages = frozenset({"1", "code_2_wav", "wav"})

    for key, to in [("k", "1"), ("a@b_c", "1"), ("x", "code_2_wav"), ("e@0_1", "wav")]:
        assert frames.split(frames.request_id(key, "my_stage", to), "my_stage", stages) == (
            key,
            to,
        )
    for text in ["k@my_stage_2", "@my_stage_1", "k@other_1", "k", "", "x" * 1025 + "@my_stage_1"]:
        assert frames.split(text, "my_stage", stages) is None
