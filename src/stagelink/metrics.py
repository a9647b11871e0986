"""Figures of a connector, as plain numbers."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from stagelink.adapters.threads.counters import BOUNDS_S
from stagelink.core.errors import Reason
from stagelink.core.messages import FIGURES_LIMIT
from stagelink.core.violations import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.adapters.threads import Counters, Driver
    from stagelink.adapters.wrap import Wrapping
    from stagelink.config import Config
    from stagelink.core.endpoint import Endpoint
    from stagelink.foreign import Foreign

_NO_ROWS: dict[str, list[object]] = {"sessions": [], "edges": [], "failures": []}
_TIMEOUTS = (Reason.DEADLINE.value, Reason.BUDGET.value)


def health_of(
    config: Config, driver: Driver, wrapping: Wrapping, foreign: Foreign | None = None
) -> dict[str, Any]:  # fmt: skip
    """One snapshot; sizes in bytes. ``status`` is ok, degraded (a peer is lost) or closed."""
    parts, counters = driver.parts, driver.counters
    edges, failures = _edges(config.stage, counters), _failures(counters)
    errors: Counter[str] = Counter()
    for row in failures:
        errors[row["cause"]] += row["count"]
    figures = driver.look(_figures)
    lost = any(row["state"] != "open" for row in figures["sessions"])
    status = "closed" if driver.closed else "degraded" if lost else "ok"
    return {
        "status": status,
        "stage": config.stage,
        "role": config.role,
        "host": parts.channel.address,
        "backends": sorted(parts.planes),
        "pool_device": "cpu",
        "pool_size": figures["pool"]["capacity"],
        "engine_key": parts.endpoint.settings.instance.hex(),
        "puts": sum(row["calls"] for row in edges if row["call"] == "put"),
        "gets": sum(row["calls"] for row in edges if row["call"] == "get"),
        "bytes_transferred": sum(row["bytes"] for row in edges),
        "errors": dict(sorted(errors.items())),
        "timeouts": sum(errors[cause] for cause in _TIMEOUTS),
        "views": len(driver.views),
        "leases_held_long": driver.narrator.held_long,
        "inspections": driver.exchange.inspections.answered,
        "inspections_refused": driver.exchange.inspections.refused,
        "peers_refused": dict(driver.exchange.peers_refused),
        "frames_refused": driver.malformed + parts.channel.dropped,
        "messages_dropped": driver.exchange.overflowed,
        "compression": wrapping.compression.figures(),
        "dialect": foreign.figures() if foreign is not None else {},
        "edges": edges,
        "failures": failures,
        **figures,
    }


def _edges(stage: str, counters: Counters) -> list[dict[str, Any]]:
    """What succeeded, a row for each edge and direction; ``buckets`` by upper bound, seconds."""
    return [*_rows("put", stage, counters), *_rows("get", stage, counters)]


def _rows(call: str, stage: str, counters: Counters) -> Iterator[dict[str, Any]]:
    tallies = counters.puts if call == "put" else counters.gets
    for other, (calls, size, seconds, buckets) in tallies.rows().items():
        edge = f"{stage}->{other}" if call == "put" else f"{other}->{stage}"
        named = dict(zip([*map(str, BOUNDS_S), "inf"], buckets, strict=True))
        yield {
            "edge": edge, "call": call, "calls": calls, "bytes": size, "seconds": seconds,
            "buckets": named,
        }  # fmt: skip


def _failures(counters: Counters) -> list[dict[str, Any]]:
    """What failed, a row for each edge and cause."""
    return [
        {"edge": edge, "cause": cause, "count": count}
        for edge, causes in counters.errors().items()
        for cause, count in causes.items()
    ]


def figures_of(
    config: Config, driver: Driver, wrapping: Wrapping, foreign: Foreign | None = None
) -> bytes:  # fmt: skip
    """:func:`health_of` as JSON, at most ``FIGURES_LIMIT`` bytes, for who asks over the wire.

    Too many rows are left out, those of edges with them; ``sessions_left_out`` says how many.
    """
    health = health_of(config, driver, wrapping, foreign)
    body = json.dumps(health).encode()
    if len(body) > FIGURES_LIMIT:
        left_out = len(health["sessions"])
        body = json.dumps(health | _NO_ROWS | {"sessions_left_out": left_out}).encode()
    assert len(body) <= FIGURES_LIMIT, f"{len(body)} bytes without sessions"
    return body


def _figures(endpoint: Endpoint) -> dict[str, Any]:
    outgoing, incoming = endpoint.outgoing, endpoint.incoming
    entries = [e for ledger in outgoing.ledgers.values() for e in ledger.entries.values()]
    return {
        "pool": endpoint.pool.stats()._asdict(),
        "ledger": {
            "entries": len(entries),
            "leaving": sum(1 for entry in entries if entry.leaving),
            "leases": sum(entry.leases for entry in entries),
            "inline_bytes": outgoing.inline_bytes,
            "writes": outgoing.transfers.writing,
            "queued": len(outgoing.transfers.queue),
        },
        "inbox": {
            "entries": sum(len(source.inbox) for source in incoming.sources.values()),
            "inline_bytes": sum(s.inbox.inline_bytes for s in incoming.sources.values()),
            "gets": len(incoming.fetches) - _lent(endpoint),
            "waits": len(incoming.waits),
            "untaken": len(incoming.shelf),
            "untaken_lost": incoming.deliveries.lost,
            "unacknowledged": sum(len(s.consumed) for s in incoming.sources.values()),
        },
        "credits": _credits(endpoint),
        "sessions": _sessions(endpoint),
        "stale_messages": outgoing.stale + incoming.stale,
        "late_messages": incoming.arrivals.late,
        "violations": _violations(endpoint),
        "writes_failed": outgoing.transfers.failed,
    }


def _lent(endpoint: Endpoint) -> int:
    """Blocks that are lent, or were and hold what nobody has asked for."""
    fetches = endpoint.incoming.fetches
    return sum(len(fetches.lent_to(peer)) for peer in fetches.borrowers)


def _credits(endpoint: Endpoint) -> dict[str, int]:
    """What is lent on either side, and how many puts have made use of it."""
    outgoing, sources = endpoint.outgoing, endpoint.incoming.sources.values()
    return {
        "takers": sum(source.grants.agreed for source in sources),
        "lent_blocks": _lent(endpoint),
        "lent_bytes": endpoint.incoming.fetches.lent_bytes,
        "borrowed_blocks": sum(len(r.grants.free) for r in outgoing.readers.values()),
        "used": outgoing.transfers.credited,
    }


def _violations(endpoint: Endpoint) -> dict[str, int]:
    """What peers said that they may not, by cause; every cause is there."""
    ours, theirs = endpoint.outgoing.violations, endpoint.incoming.violations
    return {cause.value: ours[cause] + theirs[cause] for cause in Violation}


def _sessions(endpoint: Endpoint) -> list[dict[str, Any]]:
    incoming = endpoint.incoming
    rows = [
        {
            "direction": "in", "peer": source.label, "address": source.address,
            "state": source.session.state, "synced": source.synced, "backend": source.plane,
            "watch": endpoint.peers.state(source.peer), "detail": source.detail,
            "share_bytes": incoming.fetches.reached.get(source.peer, 0),
        }
        for source in incoming.sources.values()
    ]  # fmt: skip
    rows += [
        {
            "direction": "out", "peer": reader.name, "address": reader.link,
            "state": reader.session.state, "synced": reader.feed.sync_at < 0,
            "backend": reader.plane.card.name if reader.plane else "",
            "watch": endpoint.peers.state(reader.instance), "detail": "",
            "share_bytes": reader.leases.pinned,
        }
        for reader in endpoint.outgoing.readers.values()
    ]  # fmt: skip
    return rows
