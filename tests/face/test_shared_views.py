"""Who may write to what a get hands out: the only reader, and nobody where several share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import stagelink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.connector import Connector

LARGE = 100_000
BACKENDS = ["shm", "shm-write", "memory"]


@pytest.fixture(params=BACKENDS)
def sender(request: pytest.FixtureRequest) -> Iterator[Connector]:
    with stagelink.open(
        stage="a", role="sender", backend=request.param, pool_bytes=4 << 20
    ) as connector:
        yield connector


def reader(sender: Connector, rank: int = 0, **settings: Any) -> Connector:
    return stagelink.open(
        stage="b", role="receiver", rank=rank, backend=sender.config.backend,
        sender=sender.endpoint, pool_bytes=4 << 20, **settings,
    )  # fmt: skip


def test_the_only_reader_may_write(sender: Connector) -> None:
    with reader(sender) as rx:
        sender.put("k", np.zeros(LARGE, np.uint8), to="b")
        with rx.get("k", source="a") as payload:
            assert payload.writable
            payload.value[:] = 1


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("readers", [2, None])
def test_what_several_readers_share_cannot_be_written(
    sender: Connector, readers: int | None, draft: bool
) -> None:
    maps = sender.config.backend != "shm-write"
    value: Any = np.zeros(LARGE, np.uint8)
    if draft:
        value = sender.alloc((LARGE,), np.dtype("uint8"))
        value.tensor[:] = 0
    with reader(sender, 0) as one, reader(sender, 1) as other:
        sender.put("k", value, to="b", readers=readers)
        with one.get("k", source="a") as first, other.get("k", source="a") as second:
            assert first.writable == second.writable == (not maps)
            assert first.value.flags.writeable == (not maps)
            if not maps:
                first.value[:] = 1
            assert not second.value.any()


def test_small_payloads_are_each_readers_own(sender: Connector) -> None:
    with reader(sender, 0) as one, reader(sender, 1) as other:
        sender.put("k", np.zeros(16, np.uint8), to="b", readers=2)
        with one.get("k", source="a") as first, other.get("k", source="a") as second:
            first.value[:] = 1
            assert not second.value.any()


def test_a_shared_tensor_is_a_copy_unless_views_are_asked_for(sender: Connector) -> None:
    torch = pytest.importorskip("torch")
    with reader(sender, 0) as one, reader(sender, 1, readonly_views=True) as other:
        sender.put("k", torch.zeros(LARGE, dtype=torch.uint8), to="b", readers=2)
        with one.get("k", source="a") as first, other.get("k", source="a") as second:
            second_value = second.value
            first.value.fill_(1)  # its own, whatever the plane
            assert not second_value.any()
