"""Connectors as Prometheus sees them: every figure of ``health()``, read when it is scraped.

Needs the extra ``prometheus``. Importing this module loads nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.core.errors import ConfigError
from stagelink.core.values import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.metrics_core import Metric as Family

    from stagelink.connector import Connector

    Health = dict[str, Any]
    Row = tuple[tuple[str, ...], Any]

COMMON = ("stage", "role", "backend")
"""Labels of every sample: the connector's identity, its role, and the backends it offers."""


class Metric(NamedTuple):
    """One family: ``rows`` reads label values (after the common ones) and figures of a health.

    The figure of a histogram is its buckets (as in ``health()["edges"]``) and its sum in seconds.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    rows: Callable[[Health], Iterable[Row]]


def _one(*path: str) -> Callable[[Health], Iterable[Row]]:
    """The figure at *path*."""

    def rows(health: Health) -> Iterator[Row]:
        value: Any = health
        for step in path:
            value = value[step]
        yield (), value

    return rows


def _edges(call: str, field: str) -> Callable[[Health], Iterable[Row]]:
    return lambda health: (
        ((row["edge"],), row[field]) for row in health["edges"] if row["call"] == call
    )


def _seconds(call: str) -> Callable[[Health], Iterable[Row]]:
    return lambda health: (
        ((row["edge"],), (row["buckets"], row["seconds"]))
        for row in health["edges"]
        if row["call"] == call
    )


def _failures(health: Health) -> Iterator[Row]:
    for row in health["failures"]:
        yield (row["edge"], row["cause"]), row["count"]


def _peers_refused(health: Health) -> Iterator[Row]:
    for cause, count in health["peers_refused"].items():
        yield (cause,), count


def _violations(health: Health) -> Iterator[Row]:
    for cause, count in health["violations"].items():
        yield (cause,), count


def _pool(health: Health) -> Iterator[Row]:
    for state in ("free", "reserved", "held", "quarantined"):
        yield (state,), health["pool"][state]


def _sessions(health: Health) -> Iterator[Row]:
    counts: dict[tuple[str, ...], int] = {}
    for row in health["sessions"]:
        labels = (row["direction"], row["peer"], row["state"], row["backend"])
        counts[labels] = counts.get(labels, 0) + 1
    yield from counts.items()


def _shares(health: Health) -> Iterator[Row]:
    bytes_now: dict[tuple[str, ...], int] = {}
    for row in health["sessions"]:
        labels = (row["direction"], row["peer"])
        bytes_now[labels] = bytes_now.get(labels, 0) + row["share_bytes"]
    yield from bytes_now.items()


def _open(health: Health) -> Iterator[Row]:
    yield (), int(health["status"] != "closed")


def _dialect(health: Health) -> Iterator[Row]:
    for event, count in health["dialect"].items():
        if not event.startswith("stranded"):
            yield (event,), count


def _stranded(health: Health) -> Iterator[Row]:
    if health["dialect"]:
        yield (), health["dialect"]["stranded_bytes"]


METRICS = (
    Metric("stagelink_open", "gauge", (), "1 while the connector is open", _open),
    Metric("stagelink_puts", "counter", ("edge",), "Puts that succeeded", _edges("put", "calls")),
    Metric("stagelink_gets", "counter", ("edge",),
           "Gets and polls that brought a payload", _edges("get", "calls")),
    Metric("stagelink_put_bytes", "counter", ("edge",),
           "Bytes of the payloads put", _edges("put", "bytes")),
    Metric("stagelink_get_bytes", "counter", ("edge",),
           "Bytes of the payloads got", _edges("get", "bytes")),
    Metric("stagelink_put_seconds", "histogram", ("edge",),
           "Seconds that a successful put took, with its wait for room", _seconds("put")),
    Metric("stagelink_get_seconds", "histogram", ("edge",),
           "Seconds that a successful get took, with its wait for the put", _seconds("get")),
    Metric("stagelink_failures", "counter", ("edge", "cause"),
           "Calls that raised, each once, by the reason of the error or its class", _failures),
    Metric("stagelink_late_messages", "counter", (),
           "Answers that came after their get had ended", _one("late_messages")),
    Metric("stagelink_stale_messages", "counter", (),
           "Messages of a conversation that is over, repeated, or out of order",
           _one("stale_messages")),
    Metric("stagelink_frames_refused", "counter", (),
           "What arrived and was no message", _one("frames_refused")),
    Metric("stagelink_peers_refused", "counter", ("cause",),
           "Peers that dialled us and were not let in", _peers_refused),
    Metric("stagelink_violations", "counter", ("cause",),
           "Well-formed messages that said what their sender may not, by cause", _violations),
    Metric("stagelink_writes_failed", "counter", (),
           "Writes that the data plane refused or could not end", _one("writes_failed")),
    Metric("stagelink_messages_dropped", "counter", (),
           "Messages for peers that ask for more than they read", _one("messages_dropped")),
    Metric("stagelink_pool_capacity_bytes", "gauge", (),
           "Bytes of the pool", _one("pool", "capacity")),
    Metric("stagelink_pool_bytes", "gauge", ("state",),
           "Bytes of the pool by state: free, reserved, held, quarantined", _pool),
    Metric("stagelink_pool_largest_free_bytes", "gauge", (),
           "The largest block that could be had now", _one("pool", "largest_free")),
    Metric("stagelink_pool_blocks", "gauge", (),
           "Blocks in use", _one("pool", "blocks")),
    Metric("stagelink_pool_waiting", "gauge", (),
           "Calls that wait for room", _one("pool", "waiting")),
    Metric("stagelink_published", "gauge", (),
           "Payloads published and not yet taken or expired", _one("ledger", "entries")),
    Metric("stagelink_inline_bytes", "gauge", (),
           "Bytes of published payloads that travel inside their announcement",
           _one("ledger", "inline_bytes")),
    Metric("stagelink_leases", "gauge", (),
           "Readers that pin a published payload", _one("ledger", "leases")),
    Metric("stagelink_leases_held_long", "gauge", (),
           "Leases and views older than lease_warning_s", _one("leases_held_long")),
    Metric("stagelink_writes", "gauge", (), "Writes under way", _one("ledger", "writes")),
    Metric("stagelink_writes_queued", "gauge", (),
           "Writes that wait for their turn", _one("ledger", "queued")),
    Metric("stagelink_lent_bytes", "gauge", (),
           "Bytes of the pool that are lent to senders, or hold what nobody has asked for",
           _one("credits", "lent_bytes")),
    Metric("stagelink_credits_used", "counter", (),
           "Puts that were written into a lent block at once", _one("credits", "used")),
    Metric("stagelink_gets_pending", "gauge", (),
           "Gets that wait, and payloads held", _one("inbox", "gets")),
    Metric("stagelink_announced", "gauge", (),
           "Payloads announced to us and not yet got", _one("inbox", "entries")),
    Metric("stagelink_views", "gauge", (), "Payloads with a view alive", _one("views")),
    Metric("stagelink_sessions", "gauge", ("direction", "peer", "state", "plane"),
           "Conversations; plane is the backend really used with that peer", _sessions),
    Metric("stagelink_share_bytes", "gauge", ("direction", "peer"),
           "Bytes of the pool that only this peer can set free; peer_share bounds them", _shares),
    Metric("stagelink_dialect", "counter", ("event",),
           "What the dialect did, by the figures of health()", _dialect),
    Metric("stagelink_dialect_stranded_bytes", "gauge", (),
           "Bytes in quarantine that a sender of the dialect may still write to", _stranded),
)  # fmt: skip


class Collector:
    """A custom collector over connectors, for ``prometheus_client``'s registry.

    ``REGISTRY.register(Collector(connector))`` is all there is to do. A process with several
    connectors gives them all to one collector. It reads ``health()`` when it is scraped and costs
    nothing otherwise.

    Raises:
        ConfigError: prometheus-client is not installed, or two of the connectors have the same
            stage, replica, rank and role.
    """

    def __init__(self, *connectors: Connector) -> None:
        try:
            from prometheus_client import core  # noqa: PLC0415 - an extra
        except ImportError as error:
            msg = f"metrics for Prometheus need prometheus-client: {error}"
            remedy = "pip install 'stagelink[prometheus]'"
            raise ConfigError(msg, remedy=remedy) from error
        self._kinds: dict[str, Any] = {
            "counter": core.CounterMetricFamily,
            "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        self._connectors: dict[tuple[str, str], Connector] = {}
        for connector in connectors:
            self.add(connector)

    def add(self, connector: Connector) -> None:
        """Show *connector* too.

        Raises:
            ConfigError: another one of the same stage, replica, rank and role is shown already.
        """
        config = connector.config
        identity = str(Identity(config.stage, config.replica, config.rank))
        if self._connectors.setdefault((identity, config.role), connector) is not connector:
            msg = f"a connector of stage {identity!r} with role {config.role!r} is shown already"
            raise ConfigError(msg, remedy="give them different replicas or ranks")

    def remove(self, connector: Connector) -> None:
        """Show *connector* no longer; an unknown one is fine."""
        self._connectors = {
            name: known for name, known in self._connectors.items() if known is not connector
        }

    def describe(self) -> Iterable[Family]:
        """The families without samples, so that registering one reads nothing."""
        return [self._family(metric) for metric in METRICS]

    def collect(self) -> Iterator[Family]:
        """Every family with its samples of now."""
        seen = [(who, known.health()) for who, known in list(self._connectors.items())]
        for metric in METRICS:
            family = self._family(metric)
            for (identity, role), health in seen:
                common = (identity, role, "+".join(health["backends"]))
                for labels, value in metric.rows(health):
                    _add(family, metric.kind, (*common, *labels), value)
            yield family

    def _family(self, metric: Metric) -> Any:  # noqa: ANN401 - one of three classes
        return self._kinds[metric.kind](metric.name, metric.help, labels=(*COMMON, *metric.labels))


def _add(family: Any, kind: str, labels: tuple[str, ...], value: Any) -> None:  # noqa: ANN401
    if kind != "histogram":
        family.add_metric(labels, value)
        return
    buckets, seconds = value
    total, cumulative = 0, []
    for bound, count in buckets.items():
        total += count
        cumulative.append(("+Inf" if bound == "inf" else bound, total))
    family.add_metric(labels, cumulative, seconds)
