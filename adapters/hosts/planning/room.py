"""How much of /dev/shm the pools of a deployment reserve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.adapters.hosts.planning.pools import mib, pool_bytes
from stagelink.adapters.hosts.planning.values import OURS, Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.adapters.hosts.planning.choice import Served
    from stagelink.adapters.hosts.planning.values import Deployment, Stage, Surroundings

_HERE = {"shm": (True,), "shm-write": (True, False)}
"""Backends with pools there, and whose: that of who sends (True), and of who receives."""


def shared_bytes(deployment: Deployment, served: Sequence[Served]) -> int:
    """What the pools take at most: one a process and direction; who maps needs none."""
    return sum(_of(deployment, stage, served) for stage in deployment.stages)


def _of(deployment: Deployment, stage: Stage, served: Sequence[Served]) -> int:
    carried = deployment.carried(stage.number)
    if carried is None or carried.spec.name != OURS:
        return 0
    ways = {
        sends
        for one in served
        for sends in _HERE.get(one.backend, ())
        if stage.number == (one.edge.source if sends else one.edge.target)
    }
    return len(ways) * (pool_bytes(carried.spec) or 0) * stage.ranks * stage.replicas


def check_room(
    deployment: Deployment, served: Sequence[Served], around: Surroundings
) -> list[Finding]:
    """Whether /dev/shm has that much."""
    wanted, free = shared_bytes(deployment, served), around.shared_free
    if free is None or wanted <= free:
        return []
    where = next(one.edge.spec.where for one in served if one.connector == OURS)
    what = (
        f"the pools of all processes take {mib(wanted)} of /dev/shm, and {mib(free)} are available"
    )
    remedy = (
        "raise the mount's size (docker: --shm-size, or --ipc=host), or lower memory_pool_size"
    )
    return [Finding("shared-memory", "error", where, what, remedy)]
