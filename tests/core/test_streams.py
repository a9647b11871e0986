"""Names, numbers and last words of streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelink.core.errors import ConfigError
from stagelink.core.keys import KEY_LIMIT, check_key
from stagelink.core.streams import (
    DERIVED_LIMIT,
    REASON_LIMIT,
    End,
    Progress,
    first_key,
    is_entry,
    is_first,
    is_stream,
    named,
    parse_end,
    reason_text,
    shown,
    stream_of,
)

KEYS = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=40)
GENERATIONS = st.integers(1, (1 << 63) - 1)


def test_chunks_are_counted_and_named_after_the_generation_of_the_first() -> None:
    stream = Progress("k")

    assert stream.next_key == stream.name == first_key("k")
    stream = stream.after(7, 100)
    assert (stream.next_key, stream.name) == ("k\x1f7\x1f1", "k\x1f7")
    assert stream.after(9, 20) == Progress("k", 7, 2, 120)


@given(KEYS, KEYS, GENERATIONS, GENERATIONS)
def test_entries_of_different_streams_never_share_a_name(
    one: str, other: str, first: int, second: int
) -> None:
    entries = [
        entry
        for key in {one, other}
        for generation in {first, second}
        for entry in (Progress(key, generation, 1).next_key, Progress(key, generation, 2).next_key)
    ]

    assert len(set(entries)) == len(entries)
    assert not {first_key(one), one} & set(entries)


@given(KEYS, GENERATIONS, st.integers(1, 1 << 40))
def test_a_later_chunk_tells_its_stream(key: str, first: int, number: int) -> None:
    stream = Progress(key, first, number)

    assert stream_of(stream.next_key) == stream.name == named(first_key(key), first)
    assert is_stream(stream.name)
    assert not is_first(stream.name)
    assert not is_stream(stream.next_key)
    assert not is_first(stream.next_key)


@given(KEYS, KEYS, GENERATIONS)
def test_an_entry_is_of_the_streams_of_its_own_key_only(key: str, other: str, first: int) -> None:
    for derived in (first_key(key), Progress(key, first, 3).next_key):
        assert is_entry(derived, key)
        assert is_entry(derived, other) == (key == other)
    assert not is_entry(key, key)


@given(KEYS)
def test_chunk_0_and_ordinary_keys_are_of_no_stream_yet(key: str) -> None:
    assert stream_of(key) == stream_of(first_key(key)) == ""
    assert is_first(first_key(key))
    assert not is_first(key)
    assert not is_stream(key)
    assert not is_stream(first_key(key))


@given(KEYS, GENERATIONS, st.integers(0, 1 << 40))
def test_no_user_can_put_an_entry_of_a_stream(key: str, first: int, number: int) -> None:
    with pytest.raises(ConfigError):
        check_key(Progress(key, first, number).next_key)


def test_the_longest_derived_key_fits_its_limit() -> None:
    largest = (1 << 63) - 1

    assert len(Progress("k" * KEY_LIMIT, largest, largest).next_key) <= DERIVED_LIMIT


def test_people_see_the_key_and_the_number() -> None:
    assert [shown(key) for key in ("k", first_key("k"), "k\x1f7\x1f12")] == ["k", "k[0]", "k[12]"]


@given(st.integers(0, 1 << 62), st.integers(0, 1 << 62))
def test_an_end_is_read_as_it_was_said(chunks: int, size: int) -> None:
    assert parse_end(End(chunks, size).text) == End(chunks, size)


@given(st.text())
def test_no_reason_is_taken_for_an_end(reason: str) -> None:
    assert parse_end(reason_text(reason)) is None
    assert parse_end(reason_text(End(3, 4).text + reason)) is None
    assert parse_end(reason_text(End(3, 4).text)) is None


def test_a_reason_always_has_words_that_can_be_sent() -> None:
    assert reason_text("") == reason_text("  ") == "aborted"
    assert reason_text("half \ud800").encode()
    assert len(reason_text("x" * 9999)) == REASON_LIMIT
