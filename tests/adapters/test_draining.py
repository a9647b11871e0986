"""Taking from a queue so that nothing is lost unnoticed."""

from __future__ import annotations

from collections import deque

import pytest

from stagelink.adapters.threads.draining import drain


def never() -> None:
    pytest.fail("nothing was interrupted")


def test_everything_is_performed_in_order_also_what_comes_meanwhile() -> None:
    queue, seen = deque([1, 2]), []

    def perform(each: int) -> None:
        seen.append(each)
        if each == 2:
            queue.append(3)

    drain(queue, perform, never)

    assert seen == [1, 2, 3]
    assert not queue


def test_an_interruption_in_the_middle_is_told_and_leaves_the_rest() -> None:
    queue, told = deque([1, 2]), []

    def perform(each: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drain(queue, perform, lambda: told.append(True))

    assert told == [True]
    assert list(queue) == [2]


@pytest.mark.parametrize("error", [IndexError, ValueError])
def test_an_error_of_what_is_performed_is_an_error_and_no_interruption(
    error: type[Exception],
) -> None:
    def perform(each: int) -> None:
        raise error

    with pytest.raises(error):
        drain(deque([1]), perform, never)
