"""Only our own errors leave a decoder, whatever it is given: the beginning of the hunt."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext, encode
from tests.fuzz.decoders import Decoder, decoders
from tests.fuzz.guided import packed, unpacked
from tests.fuzz.hunt import REFUSED, Figures, hunt, throw
from tests.fuzz.mutate import Mutator

from stagelink.adapters.msgspec.wire import KINDS, header

TABLE = decoders()
NAMED = {decoder.name: decoder for decoder in TABLE}
FRAMES = 6000
TREES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    | st.builds(Ext, st.integers(-128, 127), inner.map(encode)),
    max_leaves=20,
)  # fmt: skip


def crash_of(name: str, frames: list[bytes]) -> object:
    """What comes of *frames*, if it is none of our errors."""
    crash = throw(NAMED[name], frames)
    return None if crash is REFUSED else crash


@pytest.mark.parametrize("decoder", TABLE, ids=lambda decoder: decoder.name)
def test_what_the_honest_send_is_taken(decoder: Decoder) -> None:
    for frames in decoder.seeds:
        assert throw(decoder, frames) is None


def test_nothing_but_our_own_errors_leaves_a_decoder() -> None:
    found: Figures = hunt(FRAMES, 1)

    assert found.crashes == []
    assert set(found.by_decoder) == set(NAMED)
    assert FRAMES / 5 < found.refused < FRAMES
    assert found.growth < 32 << 20
    assert found.slowest_ms < 5000


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(KINDS.values())), st.lists(TREES, max_size=12), st.binary(max_size=20)
)
def test_any_fields_under_any_kind_are_a_message_or_refused(
    kind: int, fields: list[Any], rest: bytes
) -> None:
    for frames in ([header(kind) + encode(fields)], [header(kind) + encode(fields), rest]):
        assert crash_of("control", frames) is None


@settings(max_examples=80, deadline=None)
@given(TREES, st.lists(st.integers(0, 300), max_size=4))
def test_any_header_of_a_payload_is_a_value_or_refused(tree: Any, lengths: list[int]) -> None:
    assert crash_of("headers", [encode(tree), encode(lengths)]) is None


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=12) | st.sampled_from(["stage", "role", "timeouts", "senders", "size"]),
        TREES,
        max_size=5,
    )
)
def test_any_settings_and_metadata_are_taken_or_refused(tree: dict[str, Any]) -> None:
    for name in ("settings", "metadata", "figures"):
        assert crash_of(name, [encode({"stage": "a", "role": "peer", **tree})]) is None


STEPS = st.tuples(
    st.booleans(),
    st.sampled_from(sorted(KINDS.values())),
    st.lists(TREES, max_size=8),
    st.just(True),
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_conversation_ends_with_every_byte_free(data: st.DataObject) -> None:
    random = Random(data.draw(st.integers(0, 2**32)))
    mutator, [script, other] = Mutator(random), random.sample(NAMED["conversations"].seeds, 2)

    assert crash_of("conversations", mutator.spoil(script, other, 0)) is None


def test_a_decoder_that_leaks_another_error_is_found() -> None:
    def broken(frames: list[bytes]) -> None:
        if frames and len(frames[0]) % 5 == 3:
            raise KeyError(len(frames))

    found = hunt(200, 3, table=[NAMED["control"]._replace(read=broken)])

    assert found.crashes
    assert "KeyError" in found.crashes[0].error
    assert found.crashes[0].decoder == "control"


def test_a_number_with_more_digits_than_a_float_holds_is_shown() -> None:
    assert crash_of("figures", [b'{"puts": ' + b"9" * 400 + b"}"]) is None


@given(st.integers(0, 10), st.lists(st.binary(max_size=300), min_size=1, max_size=4))
def test_a_guided_hunt_begins_with_what_honest_parties_send(
    number: int, frames: list[bytes]
) -> None:
    assert unpacked(packed(number, frames), 11) == (number, frames)


@given(st.binary(max_size=80))
def test_a_guided_hunt_makes_frames_of_anything(data: bytes) -> None:
    number, frames = unpacked(data, len(TABLE))
    assert TABLE[number]
    assert sum(map(len, frames)) <= len(data)
