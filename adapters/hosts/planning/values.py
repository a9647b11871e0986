"""The words of a plan: what a deployment is made of, and what can be found wrong with it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

OURS = "StagelinkConnector"
SHARED = "SharedMemoryConnector"
"""What vLLM-Omni takes where nothing else is said, and when it cannot read what is said."""
MORI = "MoriTransferEngineConnector"
MOONCAKE = "MooncakeTransferEngineConnector"
NIXL = "NixlConnector"
YUANRONG = "YuanrongTransferEngineConnector"

Severity = Literal["error", "warning", "note"]


def severity(*, bad: bool) -> Severity:
    """An error if it is *bad*, else a warning."""
    return "error" if bad else "warning"


class Place(NamedTuple):
    """A line of a file, the first being 1."""

    file: str
    line: int


class Finding(NamedTuple):
    """One thing that somebody should know before the deployment is started.

    Attributes:
        code: a short name that does not change between releases.
        severity: ``error``: it will not do what the file says; ``warning``: it may not, or not
            well; ``note``: worth knowing.
        where: the path in the file, for example ``connectors.mori.extra.zmq_port``.
        what: the fact, with its values.
        remedy: what to do about it; empty when there is nothing to be done.
        place: the line that *where* stands on; None if that is in no file.
    """

    code: str
    severity: Severity
    where: str
    what: str
    remedy: str = ""
    place: Place | None = None


class Document(NamedTuple):
    """A deploy file with those that it is based on.

    Attributes:
        data: what vLLM-Omni makes of them.
        places: where each path was written last; stages are named by their id.
        files: all that were read, the one that was asked for first.
        findings: what vLLM-Omni would refuse already while it reads.
    """

    data: dict[str, Any]
    places: dict[str, Place]
    files: tuple[str, ...]
    findings: tuple[Finding, ...] = ()


class Spec(NamedTuple):
    """A connector as an edge names it: its class, its configuration, and where it is written."""

    name: str
    extra: dict[str, Any]
    where: str

    def at(self, key: str) -> str:
        """The path of one key of the configuration."""
        return f"{self.where}.extra.{key}"


class Stage(NamedTuple):
    """One stage, as it will be started on the platform that is planned for.

    Attributes:
        devices: those of one replica or of all, as the file lists them; empty: not said.
        ranks: processes of one replica that bind ports of their own (tensor parallelism).
        replicas, engines: how many of it there are, and data-parallel engines of each.
        world: devices of one replica; 0: a diffusion stage, whose own code counts them.
        async_chunk: whether it takes and gives chunks while requests run.
        sends_kv, takes_kv: whether the file says that it hands over KV caches.
        sequences, tokens: ``max_num_seqs`` and ``max_num_batched_tokens``; 0: not said.
        recv_timeout_s: how long it waits for a KV cache.
        env: variables of its own.
        where: its path.
    """

    number: int
    devices: tuple[str, ...]
    ranks: int
    replicas: int
    engines: int
    world: int
    async_chunk: bool
    sends_kv: bool
    takes_kv: bool
    sequences: int
    tokens: int
    recv_timeout_s: float
    env: dict[str, str]
    where: str

    @property
    def seen(self) -> int:
        """How many devices one process sees; 0: not said."""
        count = len(self.devices)
        return count // self.replicas if count == self.replicas * self.world else count


class Edge(NamedTuple):
    """One edge; *declared* is False where only the order of the stages suggests it."""

    source: int
    target: int
    spec: Spec
    where: str
    declared: bool = True

    @property
    def name(self) -> str:
        """As people write it."""
        return f"{self.source} -> {self.target}"


class Deployment(NamedTuple):
    """What vLLM-Omni makes of a document.

    Attributes:
        edges: in the order in which vLLM-Omni registers them, which decides which one counts.
        connectors: every connector that is defined, by its alias.
        model_runner: ``v1`` or ``v2``.
        lost: whether the connectors cannot be parsed, so that every stage gets shared memory.
    """

    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    connectors: dict[str, Spec]
    model_runner: str
    lost: bool

    def stage(self, number: int) -> Stage | None:
        """The stage of that id."""
        return next((stage for stage in self.stages if stage.number == number), None)

    def incoming(self, number: int) -> list[Edge]:
        """Edges that end there."""
        return [edge for edge in self.edges if edge.target == number]

    def outgoing(self, number: int) -> list[Edge]:
        """Edges that begin there."""
        return [edge for edge in self.edges if edge.source == number]

    def carried(self, number: int) -> Edge | None:
        """The edge whose connector the stage takes for *all* its payloads.

        vLLM-Omni gives a stage one connector: that of its first incoming edge, and only if there
        is none, that of its first outgoing one.
        """
        edges = self.incoming(number) + self.outgoing(number)
        return next((edge for edge in edges if edge.declared), edges[0] if edges else None)


class Surroundings(NamedTuple):
    """What the environment adds.

    Attributes:
        env: its variables.
        listening: ports that somebody listens on already.
        shared_free: bytes that are available in /dev/shm; None: not known.
    """

    env: dict[str, str]
    listening: frozenset[int] = frozenset()
    shared_free: int | None = None
