"""Taking from a queue what must not be lost, whatever a signal's handler raises meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

T = TypeVar("T")


def drain(
    queue: deque[T], perform: Callable[[T], object], interrupted: Callable[[], object]
) -> None:
    """Call *perform* with each of *queue*, which other threads may drain too.

    The ``for`` loop takes them, for no interruption parts what that takes from its taker, as it
    may behind a call. ``interrupted`` is called if one came before *perform* was through: nobody
    else knows of what was taken, and it may have been performed halfway.
    """
    in_hand: T | None = None
    try:
        for each in iter(queue.popleft, None):
            in_hand = each
            perform(each)
            in_hand = None
    except IndexError:
        if in_hand is not None:
            raise  # it is not the queue that told of its end
    except Exception:
        raise
    except BaseException:
        if in_hand is not None:
            interrupted()
        raise
