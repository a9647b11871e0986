"""KV caches go through the real manager, whatever each side's tensor parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.vllm_omni import acts, caches
from tests.vllm_omni.stages import OURS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.vllm_omni.stages import Stage

REQUESTS = [f"q{number}" for number in range(6)]


def ranks_of(
    stage: Callable[..., Stage], port: int, number: int, tp: tuple[int, int]
) -> list[Stage]:
    """The workers of stage *number*, one for each rank."""
    made = [stage(environ={"LOCAL_RANK": str(rank)}) for rank in range(tp[number])]
    for rank, one in enumerate(made):
        assert one.do(caches.begin, port, number, tp) == (rank, tp[number])
    return made


@pytest.mark.parametrize(
    "tp", [(1, 1), (2, 2), (2, 4), (4, 2)], ids=lambda tp: "{}to{}".format(*tp)
)
def test_every_rank_is_served_once(
    stage: Callable[..., Stage], port: int, tp: tuple[int, int]
) -> None:
    senders, receivers = (ranks_of(stage, port, number, tp) for number in (0, 1))
    told = receivers[0].do(caches.told, port)

    for rank, one in enumerate(senders):
        one.tell(caches.send, REQUESTS, rank, tp[0])
    keys: list[list[str]] = [one.answer() for one in senders]
    for rank, one in enumerate(receivers):
        one.tell(caches.receive, REQUESTS, rank, tp[1], told)
    served: list[Any] = [one.answer() for one in receivers]

    assert served == [REQUESTS] * tp[1]
    assert sum(map(len, keys)) == max(tp) * len(REQUESTS)
    form = "omni_0_to_1_kv_cache_q0" if tp == (1, 1) else "q0_0_0_0_0"
    assert keys[0][0] == form
    for rank, mine in enumerate(keys):
        assert receivers[0].do(caches.again, mine[0], told, rank) is None


def test_a_receiver_may_be_there_before_its_sender(stage: Callable[..., Stage], port: int) -> None:
    receiver, sender = stage(), stage()
    receiver.do(caches.begin, port, 1, (1, 1))
    told = receiver.do(caches.told, port)

    receiver.tell(caches.receive, REQUESTS, 0, 1, told)
    sender.do(caches.begin, port, 0, (1, 1))
    sender.do(caches.send, REQUESTS, 0, 1)

    assert receiver.answer() == REQUESTS


def test_each_request_may_come_from_another_replica(
    stage: Callable[..., Stage], port: int
) -> None:
    receiver = stage()
    receiver.do(caches.begin, port, 1, (1, 1))
    senders = [stage(environ={"VLLM_OMNI_REPLICA_ID": str(number)}) for number in (0, 1)]
    half = [REQUESTS[:3], REQUESTS[3:]]

    for one, mine in zip(senders, half, strict=True):
        one.do(caches.begin, port, 0, (1, 1))
        one.do(caches.send, mine, 0, 1)

    for number in (1, 0):
        told = receiver.do(caches.told, port, number)
        assert receiver.do(_receive_each, half[number], told) == half[number]


def _receive_each(requests: list[str], told: Any) -> Any:
    return caches.receive(requests, 0, 1, told, each=True)


def test_replicas_of_a_stage_put_the_same_keys_side_by_side(
    stage: Callable[..., Stage], port: int
) -> None:
    receiver = stage()
    receiver.do(acts.connect, "c", OURS, port, 1)
    for number in (0, 1):
        sender = stage(environ={"VLLM_OMNI_REPLICA_ID": str(number)})
        sender.do(acts.connect, "c", OURS, port, 0)
        assert sender.do(acts.put, "c", ("0", "1"), "k_0_0", number)[0]

    for number in (1, 0):
        told = receiver.do(acts.told, OURS, port, 0, number)
        found = receiver.do(acts.get, "c", ("0", "1"), "k_0_0", told)
        assert found["number"] == number


def test_caches_and_payloads_of_one_stage_do_not_meet(
    stage: Callable[..., Stage], port: int
) -> None:
    sender, receiver = stage(), stage()
    for number, one in enumerate((sender, receiver)):
        one.do(caches.begin, port, number, (1, 1))
        one.do(acts.connect, "c", OURS, port, number)

    assert sender.do(acts.put, "c", ("0", "1"), "k_0_0", 9)[0]
    sender.do(caches.send, REQUESTS[:2], 0, 1)

    told = receiver.do(caches.told, port)
    assert receiver.do(caches.receive, REQUESTS[:2], 0, 1, told) == REQUESTS[:2]
    told = receiver.do(acts.told, OURS, port, 0)
    assert receiver.do(acts.get, "c", ("0", "1"), "k_0_0", told)["number"] == 9
