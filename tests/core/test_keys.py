from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelink.core.errors import ConfigError
from stagelink.core.keys import (
    check_key,
    check_stage,
    parse_wire_key,
    pending_with_same_request,
    wire_key,
)

TEXT = st.text(st.sampled_from("ab_@%245F0"), max_size=8) | st.text(max_size=8)
PARTS = st.tuples(TEXT, TEXT, TEXT)


def test_an_ordinary_key_stays_readable() -> None:
    assert wire_key("chatcmpl-7_0_3", "thinker", "talker") == "chatcmpl-7_0_3@thinker_talker"


@given(PARTS)
def test_a_wire_key_tells_its_parts_again(parts: tuple[str, str, str]) -> None:
    assert parse_wire_key(wire_key(*parts)) == parts


@given(PARTS, PARTS)
def test_two_edges_never_share_a_wire_key(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert (wire_key(*one) == wire_key(*other)) == (one == other)


def test_all_rank_pairs_give_different_wire_keys() -> None:
    pairs = [(f"{a}", f"{b}_{c}") for a in range(4) for b in range(4) for c in range(4)]
    assert len({wire_key("req", a, b) for a, b in pairs}) == len(pairs)


@pytest.mark.parametrize("text", ["", "k", "k@a", "k%@a_b", "k%41@a_b", "k%5F@a_b"])
def test_what_wire_key_does_not_make_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no key of an edge"):
        parse_wire_key(text)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", "must not be empty"),
        (0, "not int"),
        (None, "not NoneType"),
        (b"k", "not bytes"),
        ("k" * 1025, "at most 1024 characters, this one 1025"),
        ("a\0b", "at 1"),
        ("a\nb", "at 1"),
        ("\ud800", "at 0"),
    ],
)
def test_a_bad_key_is_refused_with_its_fault(key: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_key(key)  # type: ignore[arg-type]


def test_keys_and_stages_at_their_limits_pass() -> None:
    assert check_key("0") == "0"
    assert check_key("é" * 1024) == "é" * 1024
    assert check_stage("s" * 256) == "s" * 256
    with pytest.raises(ConfigError, match="stage name has at most 256"):
        check_stage("s" * 257)


def test_keys_of_the_same_request_are_found_the_most_alike_first() -> None:
    keys = ["req-7_0_2", "req-7_1_3", "req-77_0_3", "req-8_0_3", "req-7", "req-7_0_3"]
    assert pending_with_same_request("req-7_0_3", keys) == ["req-7_0_2", "req-7_1_3", "req-7"]


def test_at_most_five_keys_are_listed() -> None:
    assert len(pending_with_same_request("r_99", [f"r_{i}" for i in range(50)])) == 5
