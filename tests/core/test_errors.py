from __future__ import annotations

import pytest

from stagelink.core import errors
from stagelink.core.errors import (
    CapacityError,
    ConfigError,
    Context,
    DeadlineError,
    Reason,
    StagelinkError,
    TransportError,
    translating,
)

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_is_caught_at_the_edge(kind: type[Exception]) -> None:
    assert issubclass(kind, StagelinkError)


def test_a_message_says_what_where_and_what_to_do_on_one_line() -> None:
    where = Context(key="req-7", edge="a->b", elapsed_s=1.23456)

    error = ConfigError("port 5 is taken", context=where, remedy="use port 0")

    assert str(error) == "port 5 is taken [key=req-7 edge=a->b elapsed_s=1.235]; use port 0"


def test_a_bare_message_stays_bare() -> None:
    assert str(StagelinkError("so it is")) == "so it is"


def test_zero_is_a_known_field() -> None:
    assert str(Context(transfer_id=0, elapsed_s=0.0)) == "transfer_id=0 elapsed_s=0.000"


@pytest.mark.parametrize(
    ("never_fits", "reason"), [(True, Reason.NEVER_FITS), (False, Reason.NO_ROOM)]
)
def test_a_capacity_error_says_whether_waiting_helps(never_fits: bool, reason: Reason) -> None:
    error = CapacityError("full", never_fits=never_fits, numbers={"free": 3})

    assert (error.never_fits, error.reason, error.numbers) == (never_fits, reason, {"free": 3})


def test_a_deadline_is_a_timeout_to_those_who_do_not_know_us() -> None:
    with pytest.raises(TimeoutError):
        raise DeadlineError("too late", reason=Reason.DEADLINE)


def test_a_foreign_error_is_translated_once_and_kept_as_the_cause() -> None:
    foreign = OSError("no such device")

    with pytest.raises(TransportError) as caught, translating(OSError, "attach", "plug it in"):
        raise foreign

    assert caught.value.__cause__ is foreign
    assert caught.value.reason is Reason.TRANSFER_FAILED
    assert str(caught.value) == "attach: no such device; plug it in"


def test_other_errors_pass_untranslated() -> None:
    with pytest.raises(KeyError), translating(OSError, "attach"):
        raise KeyError("bug")


def test_a_reason_is_its_word_on_the_wire() -> None:
    assert Reason("peer_gone") is Reason.PEER_GONE
    assert len({reason.value for reason in Reason}) == len(Reason)
