"""Which backend serves an edge, and why: the decision of the connector, told beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagelink.adapters.hosts.planning.values import MORI, OURS, SHARED, Finding

if TYPE_CHECKING:
    from stagelink.adapters.hosts.planning.machines import Machine
    from stagelink.adapters.hosts.planning.values import Deployment, Edge, Spec

MORIS = {"xgmi": "mori-xgmi", "rdma": "mori-rdma"}
"""Mori's words in ``backend_type``, and the backends they mean here; others mean themselves."""
BACKENDS = ("shm", "shm-write", "device_ipc", *MORIS.values())
_OTHERS = {
    SHARED: "files in /dev/shm, one host; every value is serialized and copied twice",
    MORI: "AMD's Mori by itself",
}
ON_GPU = ("device_ipc", "mori-xgmi")
"""What auto tries for a pool on a GPU, best first."""


class Served(NamedTuple):
    """How one edge will be served.

    Attributes:
        backend: stagelink's backend; empty where another connector serves, or nothing can.
        why: the reason, in words.
    """

    edge: Edge
    connector: str
    backend: str
    why: str


def backend_type(spec: Spec) -> str:
    """What the configuration asks for, in lower case; Mori's own default is RDMA."""
    return str(spec.extra.get("backend_type") or ("auto" if spec.name == OURS else "rdma")).lower()


def on_gpu(spec: Spec) -> bool:
    """Whether the pool lies on a GPU; it lies on the host unless the configuration says so."""
    return str(spec.extra.get("memory_pool_device") or "cpu").lower() != "cpu"


def serve(deployment: Deployment, machine: Machine) -> list[Served]:
    """For each edge, what carries its payloads there."""
    found = []
    for edge in deployment.edges:
        carried = deployment.carried(edge.source)
        spec = (carried or edge).spec
        if spec.name != OURS:
            why = _OTHERS.get(spec.name, "not ours")
            if not edge.declared:
                why = f"nothing is said, so vLLM-Omni's default: {why}"
            found.append(Served(edge, spec.name, "", why))
        else:
            found.append(Served(edge, spec.name, *choose(spec, machine)))
    return found


def choose(spec: Spec, machine: Machine) -> tuple[str, str]:
    """The backend, empty if there is none, and why."""
    asked = backend_type(spec)
    if asked != "auto":
        backend = MORIS.get(asked, asked)
        why = machine.why_not(backend)
        return ("", why) if why else (backend, f"named: backend_type is {asked!r}")
    if machine.backends is None:
        return "", "auto: depends on the machine (--assume)"
    passed = []
    for backend in ON_GPU if on_gpu(spec) else ():
        why = machine.why_not(backend)
        if not why:
            return backend, _because(spec, backend)
        passed.append(f"{backend}: {why}")
    because = "auto: one machine, and the pool is on the host"
    if on_gpu(spec):
        device = spec.extra["memory_pool_device"]
        because = (
            f"auto: the pool is on the host and not on {device}, because of {'; '.join(passed)}"
        )
    why = machine.why_not("shm")
    return ("", f"shm: {why}") if why else ("shm", because)


def _because(spec: Spec, backend: str) -> str:
    device = spec.extra["memory_pool_device"]
    words = {
        "device_ipc": "readers use the sender's GPU memory where it lies",
        "mori-xgmi": "the sender's GPU writes into the reader's",
    }
    return f"auto: the pool is on {device}; {words[backend]}"


def check_choice(deployment: Deployment, machine: Machine) -> list[Finding]:
    """Edges that nothing can serve as they are configured, or not where their pool is to lie."""
    found = []
    specs = {edge.spec.where: edge.spec for edge in deployment.edges if edge.spec.name == OURS}
    for spec in specs.values():
        asked = backend_type(spec)
        backend, why = choose(spec, machine)
        where, on = spec.at("backend_type"), f"on this machine ({machine.name})"
        if _unknown(asked, machine):
            what = f"stagelink has no backend {asked!r}"
            remedy = f"known are auto, {', '.join((*MORIS, *BACKENDS))}"
            found.append(Finding("unknown-backend", "error", where, what, remedy))
        elif not backend and machine.backends is not None:
            what = f"{asked!r} cannot work {on}: {why}"
            remedy = "use backend_type: auto, or name another"
            found.append(Finding("no-backend", "error", where, what, remedy))
        elif asked == "auto" and on_gpu(spec) and backend == "shm":
            what = f"no backend can have its pool on a GPU {on}: {why}"
            remedy = "leave memory_pool_device out, or set it to cpu"
            found.append(
                Finding("pool-device", "warning", spec.at("memory_pool_device"), what, remedy)
            )
    return found


def _unknown(asked: str, machine: Machine) -> bool:
    return asked not in {"auto", *MORIS, *BACKENDS, *(machine.backends or ())}
