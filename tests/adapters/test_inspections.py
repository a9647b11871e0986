"""Who asks for figures gets them, but never so many that it costs the connector its time."""

from __future__ import annotations

from stagelink.adapters.threads.inspections import Inspections
from stagelink.core.messages import Figures, Inspect


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def desk(took_s: float = 0.0) -> tuple[Inspections, Clock]:
    clock = Clock()
    inspections = Inspections(clock)

    def figures() -> bytes:
        clock.now_s += took_s
        return b"{}"

    inspections.figures = figures
    return inspections, clock


def ask(inspections: Inspections, times: int) -> int:
    return sum(inspections.answer(Inspect(n)) is not None for n in range(times))


def test_a_question_gets_the_figures_under_its_number() -> None:
    inspections, _ = desk()

    assert inspections.answer(Inspect(7)) == Figures(7, b"{}")
    assert (inspections.answered, inspections.refused) == (1, 0)


def test_beyond_twenty_a_second_questions_are_counted_and_not_answered() -> None:
    inspections, clock = desk()

    assert ask(inspections, 100) == 20
    clock.now_s += 0.5
    assert ask(inspections, 100) == 10
    clock.now_s += 60.0
    assert ask(inspections, 100) == 20
    assert (inspections.answered, inspections.refused) == (50, 250)


def test_answers_that_take_long_take_no_more_than_their_share() -> None:
    inspections, clock = desk(took_s=0.02)
    start_s = clock.now_s

    answered = 0
    while clock.now_s < start_s + 60.0:
        answered += ask(inspections, 1)
        clock.now_s += 0.001

    assert 0.04 * 60 < answered * 0.02 < 0.06 * 60


def test_before_it_can_tell_anything_it_tells_nothing() -> None:
    inspections = Inspections(Clock())

    assert inspections.answer(Inspect(1)) is None


def test_an_answer_is_no_question() -> None:
    inspections, _ = desk()

    assert inspections.answer(Figures(1, b"{}")) is None
    assert inspections.refused == 1
