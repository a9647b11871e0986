"""The log of an edge, beside a naive one."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stagelink.core.errors import Reason
from stagelink.core.ledger import GONE_LIMIT, Entry, Ledger
from stagelink.core.messages import Gone


def entry(generation: int, key: str, readers: int | tuple[str, ...] | None = 1) -> Entry:
    return Entry(generation, 0, key, 10, None, b"0123456789", "", readers)


def publish(ledger: Ledger, new: Entry) -> Entry:
    """Append *new* under the next number."""
    new.number = ledger.head + 1
    ledger.publish(new)
    return new


def test_a_number_is_taken_by_every_publish_and_every_end() -> None:
    ledger = Ledger()
    publish(ledger, entry(1, "a"))
    publish(ledger, entry(2, "b"))

    removed = ledger.leave(1, Reason.EXPIRED, "late")

    assert removed is not None
    assert list(ledger.records_after(0)) == [(2, 2), (3, Gone(3, "a", 1, "expired", "late"))]


def test_a_leased_entry_outlives_its_end_and_goes_with_the_lease() -> None:
    ledger = Ledger()
    publish(ledger, entry(1, "a"))
    ledger.lease(1, "talker")

    assert ledger.leave(1, Reason.EXPIRED, "") is None
    assert ledger.live("a") is None
    removed = ledger.unlease(1)
    assert removed is not None
    assert removed.gone_number == 2


def test_a_reader_counts_once_and_the_last_one_says_so() -> None:
    ledger = Ledger()
    publish(ledger, entry(1, "a", readers=2))

    assert not ledger.count(1, "talker")
    assert not ledger.count(1, "talker")
    assert ledger.count(1, "talker/1/0")


def test_named_readers_admit_nobody_else_and_nobody_twice() -> None:
    ledger = Ledger()
    published = publish(ledger, entry(1, "a", readers=("x", "y")))

    assert [published.admits(name) for name in ("x", "y", "z")] == [True, True, False]
    ledger.count(1, "x")
    assert not ledger.entries[1].admits("x")


def test_who_takes_it_first_ends_it_however_many_it_was_offered_to() -> None:
    ledger = Ledger()
    published = publish(ledger, entry(1, "a", readers=0))
    ledger.lease(1, "x")

    assert published.admits("y")
    ledger.lease(1, "y")
    assert ledger.count(1, "y")


def test_a_slot_is_free_again_when_its_holder_leaves_uncounted() -> None:
    ledger = Ledger()
    publish(ledger, entry(1, "a"))
    ledger.lease(1, "x")

    assert not ledger.entries[1].admits("y")
    ledger.unlease(1)
    ledger.vacate(1, "x")
    assert ledger.entries[1].admits("y")


def test_gone_records_that_all_readers_know_are_forgotten() -> None:
    ledger = Ledger()
    for generation in (1, 2):
        publish(ledger, entry(generation, "a"))
        ledger.leave(generation, Reason.TAKEN, "")

    ledger.trim(2)

    assert (ledger.trimmed, [number for number, _ in ledger.records_after(0)]) == (2, [4])


def test_a_reader_that_lags_too_far_costs_no_more_than_the_limit() -> None:
    ledger = Ledger()
    for generation in range(1, GONE_LIMIT + 11):
        publish(ledger, entry(generation, "a"))
        ledger.leave(generation, Reason.TAKEN, "")

    ledger.trim(0)

    assert len(list(ledger.records_after(0))) == GONE_LIMIT


KEYS = st.sampled_from(["a", "b", "c"])
NAMES = st.sampled_from(["x", "y"])


class LedgerBesideAModel(RuleBasedStateMachine):
    """Whatever happens, live keys, leases and the log agree with plain sets."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.generation = 0
        self.live: dict[str, int] = {}
        self.leases: dict[int, list[str]] = {}
        self.removed: set[int] = set()

    @rule(key=KEYS)
    def publish(self, key: str) -> None:
        if key in self.live:
            self.end(key)
        self.generation += 1
        publish(self.ledger, entry(self.generation, key, readers=None))
        self.live[key] = self.generation
        self.leases[self.generation] = []

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.live))))

    def end(self, key: str) -> None:
        generation = self.live.pop(key)
        removed = self.ledger.leave(generation, Reason.REPLACED, "")
        assert (removed is not None) == (not self.leases[generation])
        if removed is not None:
            self.removed.add(generation)
        assert self.ledger.leave(generation, Reason.EXPIRED, "") is None  # it leaves once

    @precondition(lambda self: self.live)
    @rule(data=st.data(), name=NAMES)
    def lease(self, data: st.DataObject, name: str) -> None:
        generation = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        self.ledger.lease(generation, name)
        self.leases[generation].append(name)

    @precondition(lambda self: any(self.leases.values()))
    @rule(data=st.data())
    def unlease(self, data: st.DataObject) -> None:
        generation = data.draw(st.sampled_from([g for g, names in self.leases.items() if names]))
        self.leases[generation].pop()
        gone = generation not in self.live.values() and not self.leases[generation]
        assert (self.ledger.unlease(generation) is not None) == gone
        if gone:
            self.removed.add(generation)

    @rule(part=st.floats(0, 1))
    def trim(self, part: float) -> None:
        self.ledger.trim(int(part * self.ledger.head))

    @invariant()
    def agrees(self) -> None:
        present = {g for g in self.leases if g not in self.removed}
        assert set(self.ledger.entries) == present
        assert {g: e.leases for g, e in self.ledger.entries.items()} == {
            g: len(self.leases[g]) for g in present
        }
        numbers = [number for number, _ in self.ledger.records_after(0)]
        assert numbers == sorted(set(numbers))
        records = [record for _, record in self.ledger.records_after(0)]
        assert {r for r in records if isinstance(r, int)} == set(self.live.values())
        assert all(
            n > self.ledger.trimmed for n, r in self.ledger.records_after(0) if isinstance(r, Gone)
        )
        assert Ledger.thaw(self.ledger.freeze()).freeze() == self.ledger.freeze()


TestLedgerBesideAModel = LedgerBesideAModel.TestCase
