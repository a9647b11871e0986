"""What the connectors that vLLM-Omni 0.30.0 ships cannot do, where a deployment needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.adapters.hosts.planning.values import MOONCAKE, MORI, OURS, Finding
from stagelink.adapters.hosts.planning.wiring import middle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.adapters.hosts.planning.values import Deployment, Edge

REMEDY = f"name: {OURS} keeps the other keys"


def check_shipped(deployment: Deployment) -> list[Finding]:
    """One finding for each thing that is needed and not there, on the first edge that needs it."""
    found: dict[str, Finding] = {}
    for edge in deployment.edges:
        spec = (deployment.carried(edge.source) or edge).spec
        if spec.name == MORI:
            faults = _mori(deployment, edge)
        elif spec.name == MOONCAKE:
            faults = _mooncake(deployment, edge)
        else:
            continue
        for code, what in faults:
            where = f"{spec.where}.name"
            found.setdefault(code, Finding(code, "warning", where, what, REMEDY))
    return list(found.values())


def _mori(deployment: Deployment, edge: Edge) -> Iterator[tuple[str, str]]:
    source, target = deployment.stage(edge.source), deployment.stage(edge.target)
    chunks = source is not None and source.async_chunk
    if chunks and deployment.model_runner == "v1" and not middle(deployment, edge):
        yield (
            "mori-built-twice",
            (
                f"stage {edge.source} builds {MORI} twice in one process (runner and scheduler): "
                "the second one cannot bind the port, and the stage does not start"
            ),
        )
    yield (
        "mori-endpoint-only",
        (
            f"stage {edge.target} is told host and port of the sender and nothing else: "
            f"{MORI} reads that as a payload of 0 bytes and never gets one"
        ),
    )
    if middle(deployment, edge):
        yield (
            "mori-middle-stage",
            (
                f"stage {edge.source} receives and sends, and its one {MORI} is a receiver: "
                "every put fails"
            ),
        )
    if not chunks:
        yield "mori-deadline", f"{MORI} has no get_with_deadline, which diffusion stages wait by"
    yield (
        "mori-dead-sender",
        (
            f"a sender that is gone blocks each poll of {MORI} for 5 s, "
            "on the one thread of all requests"
        ),
    )
    if any(stage is not None and stage.ranks > 1 for stage in (source, target)):
        yield "mori-many-ranks", f"{MORI} hands over KV caches between single ranks only"


def _mooncake(deployment: Deployment, edge: Edge) -> Iterator[tuple[str, str]]:
    if middle(deployment, edge):
        yield (
            "mooncake-middle-stage",
            (
                f"stage {edge.source} receives and sends, and its one {MOONCAKE} is a receiver: "
                "every put fails"
            ),
        )
