"""Many edges that offer more than one pool can hold, for as long as is wanted.

One sender connector, 32 receiving stages in another process, a thread at both ends of each edge.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stagelink
from stagelink.bench.consumer import FROM
from stagelink.bench.edges import EDGES, Sending, common_block, left_in, resident, stage_of
from stagelink.bench.options import check_room
from stagelink.bench.partner import Partner
from stagelink.bench.producer import settings
from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagelink.bench.options import Plan
    from stagelink.connector import Connector

POOL_BYTES = 24 << 20
"""Of the sender: three of the largest, for 32 edges that offer without waiting."""

SINK_POOL_BYTES = 12 << 20
MAPPING_POOL_BYTES = 1 << 20
TICKS = 10
SAMPLED = {1: "start", 5: "middle", TICKS: "end"}
"""The first when everything has been used once: what comes later is growth."""


def steps() -> int:
    """How often :func:`run_soak` reports progress."""
    return TICKS + 1


def run_soak(plan: Plan, seconds: float, on_step: Callable[[str], None]) -> dict[str, Any]:
    """Keep 32 edges full for so many seconds, and say what became of it.

    ``ok`` says: every byte right, no error but a full pool, nothing held or left in the end.

    Raises:
        ConfigError: *seconds* is no time, or memory is too small.
        StagelinkError: an end could not be opened, or died.
    """
    if not 0 < seconds < float("inf"):
        msg = f"a soak of {seconds} s does not end, or not begin"
        raise ConfigError(msg, remedy="give --soak a number of seconds above 0")
    sink_bytes = MAPPING_POOL_BYTES if plan.maps else SINK_POOL_BYTES
    if plan.alone:
        need = POOL_BYTES + EDGES * sink_bytes
        check_room(f"the pools of {EDGES} edges", need, plan.shm_dir, "choose the backend shm")
    on_step("starting")
    with ExitStack() as undo:
        partner = undo.enter_context(Partner(alone=plan.alone))
        common_block()
        usual = {**settings(plan, FROM, "sender"), "pool_bytes": POOL_BYTES}
        tx = undo.enter_context(stagelink.open(**usual))
        members = [_member(plan, edge, sink_bytes, tx.endpoint) for edge in range(EDGES)]
        instances = partner.ask("soak", members=members)["instances"]
        instances.append(tx.health()["engine_key"])
        found = _soak(tx, partner, seconds, on_step)
    found["left"]["shm"] = len(_names(plan.shm_dir, instances))
    causes = {cause for side in found["errors"].values() for cause in side}
    bad = found["wrong"] or found["stuck"] or found["lost"] or causes - {"no_room"}
    return {
        "ok": not bad and not any(found["left"].values()),
        "backend": plan.backend,
        "planes": plan.planes,
        "seconds": seconds,
        "edges": EDGES,
        **found,
    }


def _soak(
    tx: Connector, partner: Partner, seconds: float, on_step: Callable[[str], None]
) -> dict[str, Any]:
    sending = Sending(tx)
    start_s = time.monotonic()
    sending.start()
    try:
        memory = _watch(partner, seconds, on_step)
    finally:
        sending.stop()
    sending.finish()
    took_s = time.monotonic() - start_s
    theirs = partner.ask("soaked")
    found = sending.figures(took_s)
    left = left_in(tx)
    return {
        **found,
        "errors": {"source": found["errors"], "sink": theirs["errors"]},
        "wrong": theirs["wrong"],
        "stuck": theirs["stuck"],
        "lost": found["payloads"] - theirs["payloads"],
        "memory": memory,
        "left": {name: left[name] + theirs["left"][name] for name in left},
    }


def _watch(
    partner: Partner, seconds: float, on_step: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """MiB of both processes at the start, in the middle and at the end."""
    memory = {}
    start_s = time.monotonic()
    for tick in range(1, TICKS + 1):
        time.sleep(max(0.0, start_s + seconds * tick / TICKS - time.monotonic()))
        on_step(f"{seconds * tick / TICKS:.0f} of {seconds:.0f} s")
        if tick in SAMPLED:
            memory[SAMPLED[tick]] = {"source": resident(), "sink": partner.ask("resident")}
    return memory


def _member(plan: Plan, edge: int, pool_bytes: int, sender: str) -> dict[str, Any]:
    usual = settings(plan, stage_of(edge), "receiver")
    return {**usual, "pool_bytes": pool_bytes, "sender": sender}


def _names(directory: str, instances: Sequence[str]) -> list[str]:
    """What lies in *directory* in the name of *instances*."""
    found = os.listdir(directory) if Path(directory).is_dir() else []
    return [name for name in found if any(instance in name for instance in instances)]
