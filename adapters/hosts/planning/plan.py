"""The whole plan: what is there, what serves it, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.adapters.hosts.planning.choice import Served, check_choice, serve
from stagelink.adapters.hosts.planning.devices import check_devices
from stagelink.adapters.hosts.planning.keys import check_specs
from stagelink.adapters.hosts.planning.parsing import parse
from stagelink.adapters.hosts.planning.pools import (
    TOKEN_BYTES,
    Load,
    check_pools,
    load_of,
    pool_bytes,
)
from stagelink.adapters.hosts.planning.ports import Bind, binds, check_ports
from stagelink.adapters.hosts.planning.room import check_room, shared_bytes
from stagelink.adapters.hosts.planning.shipped import check_shipped
from stagelink.adapters.hosts.planning.times import check_times
from stagelink.adapters.hosts.planning.wiring import check_wiring

if TYPE_CHECKING:
    from stagelink.adapters.hosts.planning.machines import Machine
    from stagelink.adapters.hosts.planning.values import (
        Deployment,
        Document,
        Finding,
        Place,
        Spec,
        Surroundings,
    )

_ORDER = ("error", "warning", "note")


class Plan(NamedTuple):
    """What will happen to a deployment on a machine.

    Attributes:
        served: for each edge, in its order, what carries its payloads.
        loads: for each edge, what that is, estimated.
        binds: every port that a sender may bind.
        shared_bytes: what all pools together take of /dev/shm at most.
        findings: errors first.
    """

    files: tuple[str, ...]
    machine: Machine
    deployment: Deployment
    served: tuple[Served, ...]
    loads: tuple[Load, ...]
    binds: tuple[Bind, ...]
    shared_bytes: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is an error."""
        return all(finding.severity != "error" for finding in self.findings)

    def plain(self) -> dict[str, Any]:
        """All of it as one JSON object."""
        return {
            "ok": self.ok,
            "files": list(self.files),
            "machine": self.machine.name,
            "falls_back_to_shared_memory": self.deployment.lost,
            "stages": [stage._asdict() for stage in self.deployment.stages],
            "edges": [self._edge(*pair) for pair in zip(self.served, self.loads, strict=True)],
            "shared_memory_bytes": self.shared_bytes,
            "ports": [bind._asdict() for bind in self.binds],
            "findings": [_finding(finding) for finding in self.findings],
        }

    def _edge(self, served: Served, load: Load) -> dict[str, Any]:
        edge = served.edge
        return {
            "from": edge.source, "to": edge.target, "declared": edge.declared,
            "connector": served.connector, "backend": served.backend or None, "why": served.why,
            "carries": load.what, "payload_bytes": load.single,
            "pool_bytes": pool_bytes(edge.spec),
        }  # fmt: skip


def _finding(finding: Finding) -> dict[str, Any]:
    place = finding.place
    told = finding._asdict()
    del told["place"]
    return told | {
        "file": None if place is None else place.file,
        "line": None if place is None else place.line,
    }


def make_plan(
    document: Document, machine: Machine, around: Surroundings, *, token_bytes: int = TOKEN_BYTES
) -> Plan:
    """Everything that can be said of *document* on *machine* before it is started.

    Args:
        document: the deploy file.
        machine: what it will run on.
        around: the environment that it will be started in.
        token_bytes: what one token of hidden states takes, to judge pools by.
    """
    deployment, found = parse(document, machine.platform)
    found += check_specs(_specs(deployment))
    found += check_wiring(deployment, around)
    found += check_choice(deployment, machine)
    found += check_devices(deployment, machine)
    found += check_ports(deployment, document.data, around)
    found += check_pools(deployment, token_bytes)
    found += check_times(deployment, around.env)
    served = serve(deployment, machine)
    found += check_room(deployment, served, around)
    found += check_shipped(deployment)
    placed = [finding._replace(place=_place(document, finding)) for finding in found]
    placed.sort(key=lambda finding: _ORDER.index(finding.severity))
    return Plan(
        document.files,
        machine,
        deployment,
        tuple(served),
        tuple(load_of(deployment, edge, token_bytes) for edge in deployment.edges),
        tuple(binds(deployment, around.env)),
        shared_bytes(deployment, served),
        tuple(placed),
    )


def _specs(deployment: Deployment) -> list[Spec]:
    """Every connector, those that are written within an edge too."""
    all_of = [*deployment.connectors.values(), *(edge.spec for edge in deployment.edges)]
    return list({spec.where: spec for spec in all_of if spec.where}.values())


def _place(document: Document, finding: Finding) -> Place | None:
    """The line of the path, or of what it is in."""
    if finding.place is not None:
        return finding.place
    path = finding.where
    while path:
        if path in document.places:
            return document.places[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return None
