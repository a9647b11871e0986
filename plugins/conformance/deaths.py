"""Connectors in processes that are frozen and killed, as every backend between them survives it.

A part of the contract in :mod:`stagelink.plugins.conformance.connector`, whose fixtures it uses.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stagelink
from stagelink.core.errors import PeerError, StagelinkError
from stagelink.plugins.conformance.elsewhere import Elsewhere
from stagelink.plugins.conformance.kit import (
    AT_ONCE_S,
    LENDS_S,
    PATIENCE_S,
    POOL,
    TIMEOUTS,
    Open,
    Waiter,
    eventually,
    is_linked,
    is_whole,
    same,
    waits,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagelink.connector import Connector

SIZES = [1000, 4 << 20]
WHOLE_S = 2 * AT_ONCE_S
"""So long after a death, at most, nothing of the dead is held any more: sooner than by silence."""


def body(key: str, size: int) -> bytes:
    """The bytes put under *key*, told apart from those of any other."""
    word = f"{key}:{size};".encode()
    return (word * (size // len(word) + 1))[:size]


class Stage:
    """A connector in the other process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._connector = stagelink.open(**settings)
        self._views: dict[str, Any] = {}

    def about(self) -> tuple[str, str]:
        """Where it listens, and the name of its instance."""
        return self._connector.endpoint, self._connector.health()["engine_key"]

    def put(self, key: str, size: int) -> Any:  # noqa: ANN401 - metadata
        """Publish *key* for the stage talker."""
        return self._connector.put(key, memoryview(body(key, size)), to="talker").metadata

    def get(self, key: str, timeout_s: float) -> str:
        """Take *key* and keep viewing it; empty, or the error's class."""
        try:
            self._views[key] = self._connector.get(key, source="thinker", timeout=timeout_s).value
        except StagelinkError as error:
            return type(error).__name__
        return ""

    def views_are_right(self) -> bool:
        """Whether all that it views is what was put."""
        return all(bytes(view) == body(key, len(view)) for key, view in self._views.items())


class DeathsContract:
    """Needs the fixtures of :class:`ConnectorContract`; the backend is installed, or ours."""

    crosses_processes = True

    @pytest.fixture
    def stage(self, backend: str) -> Iterator[Callable[..., tuple[Elsewhere, str]]]:
        """Opens a connector in another process: the process, and where it listens."""
        if not self.crosses_processes:
            pytest.skip("this backend stays within one process")
        usual = {"backend": backend, "pool_bytes": POOL, "timeouts": TIMEOUTS}
        made: list[tuple[Elsewhere, str]] = []

        def open_(**settings: Any) -> tuple[Elsewhere, str]:  # noqa: ANN401
            process = Elsewhere(Stage, {**usual, **settings})
            endpoint, instance = process.ask("about")
            made.append((process, instance))
            return process, endpoint

        yield open_
        for process, _ in made:
            process.end()
        stagelink.open(stage="heir", role="receiver", **usual).close()
        shared = os.listdir("/dev/shm") if Path("/dev/shm").is_dir() else []  # noqa: S108
        left = [name for name in shared if any(instance in name for _, instance in made)]
        assert not left, "the next connector leaves what the dead have left"

    @pytest.fixture
    def far_sender(self, stage: Callable[..., tuple[Elsewhere, str]]) -> tuple[Elsewhere, str]:
        """Stage thinker, in another process."""
        return stage(stage="thinker", role="sender")

    # --- the sender ----------------------------------------------------------------------

    def test_a_killed_sender_is_told_within_a_second(
        self, opened: Open, far_sender: tuple[Elsewhere, str]
    ) -> None:
        """To a get that waits; what was delivered stays, and the pool is whole soon."""
        process, endpoint = far_sender
        receiver = opened(stage="talker", role="receiver", sender=endpoint)
        for size in SIZES:
            process.ask("put", f"k{size}", size)
        views = [receiver.get(f"k{size}", source="thinker", timeout=PATIENCE_S) for size in SIZES]
        viewing = receiver.health()["inbox"]["gets"]
        waiter = Waiter(lambda: receiver.get("never", source="thinker", timeout=2 * PATIENCE_S))
        assert waits(receiver, viewing + 1)
        assert is_linked(receiver)
        process.kill()
        killed_s = time.monotonic()
        assert isinstance(waiter.join(3 * PATIENCE_S).error, PeerError)
        assert time.monotonic() - killed_s < AT_ONCE_S
        for size, view in zip(SIZES, views, strict=True):
            is_right = same(view.value, body(f"k{size}", size))
            assert is_right, "a view changed with its sender's death"
        del view
        views.clear()
        assert eventually(lambda: is_whole(receiver), WHOLE_S)

    def test_a_sender_killed_in_a_transfer_brings_right_bytes_or_an_error(
        self, opened: Open, far_sender: tuple[Elsewhere, str]
    ) -> None:
        """And the memory that it was to write is used again only when nothing can land."""
        process, endpoint = far_sender
        receiver = opened(stage="talker", role="receiver", sender=endpoint)
        process.ask("put", "key", SIZES[-1])
        # Killed before we had met it, it may yet begin, as far as we know: then we wait so long.
        waiter = Waiter(lambda: receiver.get("key", source="thinker", timeout=PATIENCE_S / 2))
        time.sleep(0.002)
        process.kill()
        if waiter.join().error is None:
            is_right = same(waiter.result.value, body("key", SIZES[-1]))
            assert is_right
            waiter.result.close()
        del waiter
        assert eventually(lambda: is_whole(receiver), WHOLE_S)

    def test_a_frozen_sender_costs_a_get_its_deadline_and_no_memory(
        self, opened: Open, far_sender: tuple[Elsewhere, str]
    ) -> None:
        """It may still write what it was asked for: its bytes are right when it goes on."""
        process, endpoint = far_sender
        receiver = opened(stage="talker", role="receiver", sender=endpoint)
        process.ask("put", "first", 1000)
        receiver.get("first", source="thinker", timeout=PATIENCE_S).close()
        process.ask("put", "key", SIZES[-1])
        process.freeze()
        waiter = Waiter(lambda: receiver.get("key", source="thinker", timeout=0.4)).join()
        assert waiter.took_s < 0.4 + AT_ONCE_S
        process.thaw()
        payload = waiter.result or receiver.get("key", source="thinker", timeout=PATIENCE_S)
        is_right = same(payload.value, body("key", SIZES[-1]))
        assert is_right
        del waiter, payload
        assert eventually(lambda: is_whole(receiver))

    # --- the receiver --------------------------------------------------------------------

    def test_a_killed_receiver_leaves_its_sender_whole(
        self, sender: Connector, stage: Callable[..., tuple[Elsewhere, str]], receive: Open
    ) -> None:
        """What it viewed, and what it never took; another one is served."""
        process, _ = stage(stage="talker", role="receiver", sender=sender.endpoint)
        for key in ("viewed", "announced"):
            sender.put(key, memoryview(body(key, SIZES[-1] // 4)), to="talker")
        assert process.ask("get", "viewed", PATIENCE_S) == ""
        process.kill()
        heir = receive()
        payload = heir.get("announced", source="thinker", timeout=PATIENCE_S)
        is_right = same(payload.value, body("announced", SIZES[-1] // 4))
        assert is_right
        payload.close()
        del payload
        sender.withdraw("viewed", to="talker")
        assert eventually(lambda: is_whole(sender) and is_whole(heir), WHOLE_S)

    def test_what_a_frozen_receiver_views_stays_its_own(
        self, sender: Connector, stage: Callable[..., tuple[Elsewhere, str]]
    ) -> None:
        """Puts to others go on and do not touch it."""
        process, _ = stage(stage="talker", role="receiver", sender=sender.endpoint)
        sender.put("key", memoryview(body("key", 512 << 10)), to="talker")
        assert process.ask("get", "key", PATIENCE_S) == ""
        # Where it lends, it has: the next put may be written at once.
        eventually(lambda: sender.health()["credits"]["borrowed_blocks"], LENDS_S)
        process.freeze()
        start_s = time.monotonic()
        for number in range(4):
            sender.put(f"other {number}", memoryview(body("other", 512 << 10)), to="elsewhere")
        sender.put("next", memoryview(body("next", 512 << 10)), to="talker")
        assert time.monotonic() - start_s < AT_ONCE_S, "a put waits for a frozen reader"
        process.thaw()
        assert process.ask("views_are_right")
        assert process.ask("get", "next", PATIENCE_S) == ""
        assert process.ask("views_are_right")

    # --- restarted -----------------------------------------------------------------------

    def test_a_restarted_sender_is_not_the_old_one(
        self, opened: Open, stage: Callable[..., tuple[Elsewhere, str]]
    ) -> None:
        """Its payload of the same key is another: who asks for the old one gets an error."""
        process, endpoint = stage(stage="thinker", role="sender")
        old = process.ask("put", "key", 1000)
        process.kill()
        port = endpoint.rpartition(":")[2]
        where = {"zmq_port": int(port)} if endpoint.startswith("tcp://") else {}
        again, endpoint = stage(stage="thinker", role="sender", **where)
        new = again.ask("put", "key", 2000)
        receiver = opened(stage="talker", role="receiver", sender=endpoint)
        stale = Waiter(partial(receiver.get, "key", metadata=old, timeout=1.0)).join()
        assert stale.error is not None, "an old name brought a new payload"
        payload = receiver.get("key", metadata=new, timeout=PATIENCE_S)
        is_right = same(payload.value, body("key", 2000))
        assert is_right
