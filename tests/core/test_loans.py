"""Loans to readers that speak another protocol, and blocks that such a peer may still write to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.test_endpoint import endpoint, greeting

from stagelink.core import events as ev
from stagelink.core.errors import LeaseError
from stagelink.core.events import Ashore, Complete, Delivery, Failure, Lend, Published, Repay
from stagelink.core.pool import RECEIVE, Block, Refusal
from stagelink.core.values import NO_INSTANCE

if TYPE_CHECKING:
    from stagelink.core.endpoint import Endpoint

TO, ABROAD = "code2wav", "code2wav@abroad"
PAGE = 4096


def put(
    machine: Endpoint, key: str, readers: int | tuple[str, ...] | None = 1, error: str = ""

) -> int:  # fmt: skip
    block = None if error else room(machine, PAGE, use=0)
    command = ev.Publish(1, TO, key, 0 if error else 9, block, b"", error, readers, 300.0, True)
    answers = [a.result for a in machine.handle(command, 0.0) if isinstance(a, Complete)]
    assert isinstance(answers[0], Published)
    return answers[0].generation


def room(machine: Endpoint, size: int, use: int = RECEIVE) -> Block:
    result = answer(machine, ev.Reserve(0, size, 0.0, use))
    assert isinstance(result, Block)
    return result


def answer(machine: Endpoint, event: ev.Event, now_s: float = 0.0) -> Any:
    [found] = [a for a in machine.handle(event, now_s) if isinstance(a, Complete)]
    return found.result


def lend(machine: Endpoint, key: str = "k", reader: str = ABROAD) -> Any:
    return answer(machine, Lend(0, TO, key, reader))


def test_a_loan_pins_the_payload_past_its_withdrawal_until_it_is_repaid() -> None:
    machine = endpoint()
    generation = put(machine, "k")

    loan = lend(machine)
    machine.handle(ev.Withdraw(0, TO, "k"), 1.0)

    assert loan == Delivery(0, generation, 9, NO_INSTANCE, b"", loan.block, None)
    assert machine.pool.stats().held == PAGE
    machine.handle(Repay(TO, generation, ABROAD, taken=False), 2.0)
    assert machine.pool.stats().free == machine.pool.stats().capacity


def test_a_loan_that_was_taken_counts_its_reader_and_frees_the_payload() -> None:
    machine = endpoint()
    generation = put(machine, "k")
    lend(machine)

    machine.handle(Repay(TO, generation, ABROAD, taken=True), 1.0)

    assert lend(machine) is None
    assert machine.pool.stats().free == machine.pool.stats().capacity


def test_a_loan_given_back_may_be_lent_again() -> None:
    machine = endpoint()
    generation = put(machine, "k")
    lend(machine)

    assert lend(machine) is None  # once at a time
    machine.handle(Repay(TO, generation, ABROAD, taken=False), 1.0)
    assert lend(machine).generation == generation


def test_who_took_it_once_gets_it_no_more_while_others_may() -> None:
    machine = endpoint()
    generation = put(machine, "k", readers=None)
    lend(machine)
    machine.handle(Repay(TO, generation, ABROAD, taken=True), 1.0)

    assert lend(machine) is None
    assert lend(machine, reader="another").generation == generation


def test_a_payload_for_named_readers_is_lent_in_the_name_of_the_stage() -> None:
    machine = endpoint()
    put(machine, "mine", readers=(TO,))
    put(machine, "theirs", readers=("other",))

    assert lend(machine, "mine") is not None
    assert lend(machine, "theirs") is None


def test_what_a_reader_of_ours_was_offered_is_not_lent_besides() -> None:
    machine = endpoint()
    machine.handle(greeting(1), 0.0)
    reader = next(iter(machine.outgoing.readers.values()))
    reader.feed.subscribe(0)
    reader.feed.synced()
    put(machine, "k")

    assert lend(machine) is None


def test_a_failure_is_told_with_its_words() -> None:
    machine = endpoint()
    generation = put(machine, "k", error="out of memory")

    assert lend(machine) == Failure("failed", "out of memory", generation=generation)


def test_a_closed_endpoint_lends_nothing_and_takes_loans_back() -> None:
    machine = endpoint()
    generation = put(machine, "k")
    lend(machine)
    machine.handle(ev.Close(), 1.0)

    assert isinstance(lend(machine), Failure)
    machine.handle(Repay(TO, generation, ABROAD, taken=True), 2.0)
    assert machine.pool.stats().free == machine.pool.stats().capacity


def test_loans_survive_freezing() -> None:
    machine = endpoint()
    generation = put(machine, "k")
    lend(machine)

    again = type(machine).thaw(machine.settings, machine.freeze(0.0))

    assert lend(again) is None
    again.handle(Repay(TO, generation, ABROAD, taken=True), 1.0)
    assert again.pool.stats().free == again.pool.stats().capacity


def test_a_stranded_block_is_nobodys_until_its_write_is_over() -> None:
    machine = endpoint()
    block = room(machine, 6 * PAGE)
    machine.handle(ev.Strand(block, -1), 0.0)

    assert isinstance(answer(machine, ev.Reserve(0, PAGE, 0.0, RECEIVE)), Refusal)
    assert not machine.at_rest
    with pytest.raises(LeaseError, match="quarantined"):
        machine.handle(ev.Abandon(block), 0.0)
    machine.handle(Ashore(-2), 0.0)
    assert machine.pool.stats().quarantined == 6 * PAGE
    machine.handle(Ashore(-1), 0.0)
    assert machine.at_rest
    assert room(machine, 6 * PAGE)


def test_who_waits_for_room_is_served_when_a_stranded_block_is_free() -> None:
    machine = endpoint()
    machine.handle(ev.Strand(room(machine, 6 * PAGE), -1), 0.0)
    assert machine.handle(ev.Reserve(7, 6 * PAGE, 9.0), 1.0) == []

    [granted] = machine.handle(Ashore(-1), 2.0)

    assert isinstance(granted, Complete)
    assert granted.ticket == 7


STEPS: Any = st.lists(
    st.tuples(st.sampled_from(["put", "lend", "take", "return", "withdraw"]), st.sampled_from("ab")),
    max_size=25,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(STEPS, st.sampled_from([1, 2, None]))
def test_whatever_happens_no_lent_byte_is_reused_and_nothing_is_left(
    steps: list[tuple[str, str]], readers: int | None
) -> None:
    machine = endpoint()
    loans: dict[tuple[str, int], Block] = {}
    for number, (what, key) in enumerate(steps):
        held = [name for name in loans if name[0] == key]
        if what == "put" and machine.pool.stats().free > 3 * PAGE:
            put(machine, key, readers)
        elif what == "lend":
            found = lend(machine, key)
            if found is not None:
                assert (key, found.generation) not in loans
                loans[key, found.generation] = found.block
        elif what in {"take", "return"} and held:
            loans.pop(held[0])
            machine.handle(Repay(TO, held[0][1], ABROAD, what == "take"), float(number))
        elif what == "withdraw":
            machine.handle(ev.Withdraw(0, TO, key), float(number))
        live = {row[2] for row in machine.pool._blocks.freeze()}
        assert {block.serial for block in loans.values()} <= live
    for _, generation in loans:
        machine.handle(Repay(TO, generation, ABROAD, taken=False), 100.0)
    machine.handle(ev.Close(), 200.0)
    assert machine.pool.stats().free == machine.pool.stats().capacity
