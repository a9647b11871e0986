"""Real processes are killed and stopped in every mode; whoever survives keeps its promises.

Right bytes or a typed error before the deadline; after a death the survivor's pool is whole within
two seconds and the dead one's shared memory goes with the next opening; memory that a stopped
process may still touch is not used again before it has spoken.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.chaos.stages import MODES, SOURCES, Call, Mode, Scene, content, eventually, is_whole

from stagelink import PeerError, Reason, StagelinkError
from stagelink.plugins.conformance.kit import AT_ONCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.stages import Process

    from stagelink.connector import Connector

ERRORS = {"PeerError", "GoneError", "TransportError", "DeadlineError"}
WHOLE_S = 2 * AT_ONCE_S
MOMENTS_S = [0.0, 0.002, 0.008, 0.02]
"""When to strike at a transfer of 64 MiB, which takes some tens of milliseconds."""

by_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
by_moment = pytest.mark.parametrize("moment_s", MOMENTS_S)
LONG = MODES["long pull"]


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Where the drama takes place; cleared away afterwards."""
    made = Scene()
    yield made
    made.close()


def whole(*connectors: Connector, within_s: float = WHOLE_S) -> bool:
    """Whether every pool is whole in time."""
    return eventually(lambda: all(is_whole(one.health()) for one in connectors), within_s)


def settled(call: Call) -> bool:
    """Whether a get ended with right bytes or a typed error."""
    return call.join().outcome in {"right", *ERRORS}


def put(sender: Connector, key: str, mode: Mode) -> None:
    """Publish *key* for every receiver of *mode*."""
    value = memoryview(content(key, mode.size))
    sender.put(key, value, to="talker", readers=mode.receivers)


def nothing_left_of_the_dead(scene: Scene, survivors: list[Connector]) -> bool:
    """Whether a new connector has swept all but what the living own."""
    newcomer = scene.connector(MODES["eager"], stage="other", role="receiver")
    own = {one.health()["engine_key"] for one in [*survivors, newcomer]}
    return all(any(owner in name for owner in own) for name in scene.names())


# --- the sender dies -------------------------------------------------------------------------


@by_mode
def test_the_senders_death_reaches_waiting_gets_within_a_second(scene: Scene, mode: Mode) -> None:
    """As the peer's fault, long before their deadline."""
    sender = scene.sender_process(mode)
    receivers = scene.receivers(mode, sender.endpoint)
    calls = [Call(receiver, "never") for receiver in receivers]
    assert eventually(lambda: all(one.health()["inbox"]["gets"] for one in receivers))
    killed_s = time.monotonic()
    sender.kill()
    for call in calls:
        assert isinstance(call.join().error, PeerError)
        assert call.ended_s - killed_s < AT_ONCE_S
    assert whole(*receivers)
    assert nothing_left_of_the_dead(scene, receivers)


@by_mode
def test_what_was_delivered_outlives_its_sender(scene: Scene, mode: Mode) -> None:
    """Views stay right until they go; then the pool is whole."""
    sender = scene.sender_process(mode)
    receivers = scene.receivers(mode, sender.endpoint)
    sender.put("key", mode.size, readers=mode.receivers)
    views = [one.get("key", source="thinker", timeout=10.0).value for one in receivers]
    sender.kill()
    more = [Call(receiver, "more", 0.5) for receiver in receivers]
    assert all(map(settled, more))
    assert nothing_left_of_the_dead(scene, receivers)
    assert all(bytes(view) == content("key", mode.size) for view in views)
    views.clear()
    assert whole(*receivers)


@by_mode
def test_what_was_only_announced_comes_whole_or_not_at_all(scene: Scene, mode: Mode) -> None:
    """A get after the death of the sender."""
    sender = scene.sender_process(mode)
    receivers = scene.receivers(mode, sender.endpoint)
    sender.put("key", mode.size, readers=mode.receivers)
    sender.kill()
    calls = [Call(receiver, "key", 3.0) for receiver in receivers]
    assert all(map(settled, calls))
    assert whole(*receivers)
    assert nothing_left_of_the_dead(scene, receivers)


@by_moment
def test_a_sender_that_dies_in_mid_transfer_ends_it(scene: Scene, moment_s: float) -> None:
    """With the bytes or an error; the half-written block is free soon after."""
    sender = scene.sender_process(LONG)
    (receiver,) = scene.receivers(LONG, sender.endpoint)
    sender.put("key", LONG.size)
    call = Call(receiver, "key")
    time.sleep(moment_s)
    killed_s = time.monotonic()
    sender.kill()
    assert settled(call)
    assert call.ended_s - killed_s < WHOLE_S
    assert whole(receiver)
    assert nothing_left_of_the_dead(scene, [receiver])


def test_a_get_after_a_known_death_is_told_so_long_before_its_deadline(scene: Scene) -> None:
    sender = scene.sender_process(MODES["offer"])
    (receiver,) = scene.receivers(MODES["offer"], sender.endpoint)
    sender.kill()
    with pytest.raises(PeerError):
        receiver.get("key", source="thinker", timeout=10.0)
    asked_s = time.monotonic()
    with pytest.raises(PeerError) as caught:
        receiver.get("key", source="thinker", timeout=10.0)
    assert time.monotonic() - asked_s < AT_ONCE_S
    assert caught.value.reason is Reason.PEER_GONE


def test_a_new_sender_after_a_death_is_found(scene: Scene) -> None:
    """At the same address."""
    mode = MODES["offer"]
    sender = scene.sender_process(mode)
    (receiver,) = scene.receivers(mode, sender.endpoint)
    sender.kill()
    with pytest.raises(PeerError):
        receiver.get("key", source="thinker", timeout=10.0)
    port = int(sender.endpoint.rpartition(":")[2])
    again = scene.process(mode, stage="thinker", role="sender", zmq_port=port)
    again.put("key", mode.size)
    assert eventually(lambda: Call(receiver, "key", 2.0).join().outcome == "right")


# --- a receiver dies ---------------------------------------------------------------------


@by_mode
def test_what_a_dead_receiver_held_is_free_soon(scene: Scene, mode: Mode) -> None:
    """Its leases end with it; what it had not released may go to another reader, or be withdrawn."""
    sender = scene.connector(mode, stage="thinker", role="sender")
    receivers = scene.receiver_processes(mode, sender)
    put(sender, "key", mode)
    for receiver in receivers:
        assert receiver.ask(do="get", key="key", timeout=10.0) == {"got": "key", "right": True}
    for receiver in receivers:
        receiver.kill()
    assert eventually(lambda: not sender.health()["ledger"]["leases"], WHOLE_S)
    sender.withdraw("key", to="talker")
    assert whole(sender)
    assert nothing_left_of_the_dead(scene, [sender])


LAST_VIEW = """
import sys, stagelink
settings = {"stage": "talker", "role": "receiver", "backend": "shm", "pool_bytes": "1MiB"}
settings |= {"sender": sys.argv[1], "shm_dir": sys.argv[2], "timeouts": {"close_s": 0.1}}
with stagelink.open(**settings) as receiver:
    value = receiver.get("key", source="thinker", timeout=10.0).value
"""


def test_what_a_receiver_views_to_its_orderly_end_is_taken(scene: Scene) -> None:
    """It has closed, so nobody comes back for what it had: that need not wait for its ttl."""
    sender = scene.connector(MODES["offer"], stage="thinker", role="sender")
    put(sender, "key", MODES["offer"])
    script = [sys.executable, "-W", "ignore", "-c", LAST_VIEW, sender.endpoint, scene.directory]
    subprocess.run(script, check=True, timeout=30.0, env={**os.environ, "PYTHONPATH": SOURCES})
    assert sender.drain(WHOLE_S)
    assert whole(sender)


@by_mode
def test_after_a_receivers_death_another_gets_the_payload(scene: Scene, mode: Mode) -> None:
    """It had been announced to the dead one, which never took it."""
    sender = scene.connector(mode, stage="thinker", role="sender")
    dying = scene.receiver_processes(mode, sender)
    put(sender, "key", mode)
    for receiver in dying:
        receiver.kill()
    heirs = scene.receivers(mode, sender.endpoint)
    for heir in heirs:
        assert Call(heir, "key", 10.0).join().outcome == "right"
    assert sender.drain(WHOLE_S)
    assert whole(sender, *heirs)
    assert nothing_left_of_the_dead(scene, [sender, *heirs])


@by_moment
def test_a_receiver_that_dies_in_mid_transfer_costs_the_sender_nothing(
    scene: Scene, moment_s: float
) -> None:
    """The write ends, the payload is there for the next."""
    sender = scene.connector(LONG, stage="thinker", role="sender")
    (dying,) = scene.receiver_processes(LONG, sender)
    put(sender, "key", LONG)
    dying.tell(do="get", key="key", timeout=10.0)
    time.sleep(moment_s)
    dying.kill()
    assert eventually(lambda: not sender.health()["ledger"]["writes"], WHOLE_S)
    sender.withdraw("key", to="talker")
    assert whole(sender)
    put(sender, "next", LONG)
    (heir,) = scene.receivers(LONG, sender.endpoint)
    assert Call(heir, "next").join().outcome == "right"
    assert whole(sender, heir)
    assert nothing_left_of_the_dead(scene, [sender, heir])


# --- the sender stops -----------------------------------------------------------------------


@by_mode
def test_a_stopped_sender_costs_a_get_no_more_than_its_deadline(scene: Scene, mode: Mode) -> None:
    """It is not dead; when it goes on, so does everything."""
    sender = scene.sender_process(mode)
    receivers = scene.receivers(mode, sender.endpoint)
    sender.put("key", mode.size, readers=mode.receivers)
    sender.stop()
    start_s = time.monotonic()
    calls = [Call(one, "key", 0.5) for one in receivers]
    vain = [Call(one, "never", 0.5) for one in receivers]
    assert all(map(settled, calls + vain))
    assert all(call.ended_s - start_s < 0.5 + AT_ONCE_S for call in calls + vain)
    sender.go_on()
    for receiver, call in zip(receivers, calls, strict=True):
        assert call.outcome == "right" or Call(receiver, "key").join().outcome == "right"
    for number in range(2):
        sender.put(f"after {number}", mode.size, readers=mode.receivers)
        for receiver in receivers:
            assert Call(receiver, f"after {number}").join().outcome == "right"
    assert whole(*receivers)


@by_moment
def test_memory_that_a_stopped_sender_may_write_is_not_used_again(
    scene: Scene, moment_s: float
) -> None:
    """Not before it goes on and says that it is through."""
    sender = scene.sender_process(LONG)
    (receiver,) = scene.receivers(LONG, sender.endpoint)
    sender.put("key", LONG.size)
    call = Call(receiver, "key", 0.5)
    time.sleep(moment_s)
    sender.stop()
    assert settled(call)
    pool = receiver.health()["pool"]
    assert pool["free"] + pool["quarantined"] + pool["reserved"] == pool["capacity"]
    sender.go_on()
    assert whole(receiver, within_s=5.0)
    assert call.outcome == "right" or Call(receiver, "key").join().outcome == "right"
    sender.put("next", LONG.size)
    assert Call(receiver, "next").join().outcome == "right"
    assert whole(receiver)


# --- a receiver stops ------------------------------------------------------------------------


@by_mode
def test_a_stopped_receiver_stops_nobody_else(scene: Scene, mode: Mode) -> None:
    """Puts return at once; when it goes on it finds what was put for it."""
    sender = scene.connector(mode, stage="thinker", role="sender")
    receivers = scene.receiver_processes(mode, sender)
    receivers[0].stop()
    start_s = time.monotonic()
    put(sender, "key", mode)
    assert time.monotonic() - start_s < AT_ONCE_S
    for receiver in receivers[1:]:
        assert receiver.ask(do="get", key="key", timeout=10.0)["right"]
    receivers[0].go_on()
    assert receivers[0].ask(do="get", key="key", timeout=10.0)["right"]
    everybody_drops(receivers)
    assert sender.drain(WHOLE_S)
    assert whole(sender)


@by_mode
def test_what_a_stopped_receiver_views_is_not_taken_from_it(scene: Scene, mode: Mode) -> None:
    """However much is put meanwhile; it is not dead."""
    sender = scene.connector(mode, stage="thinker", role="sender")
    receivers = scene.receiver_processes(mode, sender)
    put(sender, "key", mode)
    for receiver in receivers:
        assert receiver.ask(do="get", key="key", timeout=10.0)["right"]
    receivers[0].stop()
    held_by_us = mode.backend == "shm" and mode.size > 64 << 10
    time.sleep(0.7)  # longer than the grace that a suspect gets
    assert (sender.health()["pool"]["blocks"] == 1) == held_by_us
    for number in range(3):
        sender.put(f"other {number}", content("other", 1 << 20), to="elsewhere")
    receivers[0].go_on()
    assert receivers[0].ask(do="check")["right"]
    everybody_drops(receivers)


@by_moment
def test_a_receiver_stopped_in_mid_transfer_gets_its_bytes_when_it_goes_on(
    scene: Scene, moment_s: float
) -> None:
    """The sender need not wait for it to write."""
    sender = scene.connector(LONG, stage="thinker", role="sender")
    (receiver,) = scene.receiver_processes(LONG, sender)
    put(sender, "key", LONG)
    receiver.tell(do="get", key="key", timeout=10.0)
    time.sleep(moment_s)
    receiver.stop()
    assert eventually(lambda: not sender.health()["ledger"]["writes"], WHOLE_S)
    receiver.go_on()
    assert receiver.answer() == {"got": "key", "right": True}
    everybody_drops([receiver])
    assert sender.drain(WHOLE_S)
    assert whole(sender)


def everybody_drops(receivers: list[Process]) -> None:
    """The receivers let go of what they view, and are whole themselves."""
    for receiver in receivers:
        assert receiver.ask(do="drop") == {}
        assert eventually(partial(process_is_whole, receiver), WHOLE_S)


def process_is_whole(process: Process) -> bool:
    """Whether its pool is whole."""
    return is_whole(process.ask(do="health"))


def test_every_error_of_the_suite_is_ours() -> None:
    """Names that the tests compare with."""
    assert {kind.__name__ for kind in StagelinkError.__subclasses__()} >= ERRORS
