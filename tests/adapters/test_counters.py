from __future__ import annotations

import threading

from stagelink.adapters.threads.counters import BOUNDS_S, MOST_STAGES, OTHER, Counters, Tallies


def test_calls_are_counted_by_the_stage_on_the_other_side() -> None:
    tallies = Tallies()

    for stage, size, seconds in [("a", 10, 0.5), ("b", 1, 0.25), ("a", 20, 0.25)]:
        tallies.add(stage, size, seconds)

    rows = tallies.rows()
    assert rows["a"][:3] == (2, 30, 0.75)
    assert rows["b"][:3] == (1, 1, 0.25)


def test_a_bucket_takes_what_lasted_at_most_its_bound() -> None:
    tallies = Tallies()

    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.001, BOUNDS_S[-1], BOUNDS_S[-1] + 1):
        tallies.add("a", 0, seconds)

    buckets = tallies.rows()["a"][3]
    assert len(buckets) == len(BOUNDS_S) + 1
    assert (buckets[0], buckets[1], buckets[-2], buckets[-1]) == (2, 1, 1, 1)
    assert sum(buckets) == 5


def test_a_flood_of_stages_costs_no_more_memory_than_some() -> None:
    tallies, counters = Tallies(), Counters()

    for number in range(1000):
        tallies.add(f"stage-{number}", 1, 0.0)
        counters.failed("deadline", f"a->{number}")

    assert len(tallies.rows()) == MOST_STAGES + 1
    assert tallies.rows()[OTHER][0] == 1000 - MOST_STAGES
    assert counters.errors()[OTHER] == {"deadline": 1000 - MOST_STAGES}


def test_no_count_is_lost_between_threads() -> None:
    tallies = Tallies()

    def count() -> None:
        for _ in range(2000):
            tallies.add("a", 3, 0.001)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    calls, size, _, buckets = tallies.rows()["a"]
    assert (calls, size, sum(buckets)) == (8000, 24000, 8000)
