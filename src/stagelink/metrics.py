"""Figures of a connector, as plain numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.core.errors import Reason

if TYPE_CHECKING:
    from stagelink.adapters.threads import Driver
    from stagelink.config import Config
    from stagelink.core.endpoint import Endpoint

_TIMEOUTS = (Reason.DEADLINE.value, Reason.BUDGET.value)


def health_of(config: Config, driver: Driver) -> dict[str, Any]:
    """One snapshot; sizes in bytes. ``status`` is ok, degraded (a peer is lost) or closed."""
    parts, counters = driver.parts, driver.counters
    errors = counters.errors()
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
        "puts": counters.puts,
        "gets": counters.gets,
        "bytes_transferred": counters.bytes_put + counters.bytes_got,
        "errors": errors,
        "timeouts": sum(errors.get(cause, 0) for cause in _TIMEOUTS),
        "views": len(driver.views),
        "frames_refused": driver.malformed + parts.channel.dropped,
        **figures,
    }


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
            "writes": outgoing.writing,
            "queued": len(outgoing.queue),
        },
        "inbox": {
            "entries": sum(len(source.inbox) for source in incoming.sources.values()),
            "inline_bytes": sum(s.inbox.inline_bytes for s in incoming.sources.values()),
            "gets": len(incoming.fetches),
            "waits": len(incoming.waits),
            "untaken": len(incoming.shelf),
            "untaken_lost": incoming.untaken_lost,
            "unacknowledged": sum(len(s.consumed) for s in incoming.sources.values()),
        },
        "sessions": _sessions(endpoint),
        "stale_messages": outgoing.stale + incoming.stale,
        "late_messages": incoming.late,
    }


def _sessions(endpoint: Endpoint) -> list[dict[str, Any]]:
    rows = [
        {
            "direction": "in", "peer": source.label, "address": source.address,
            "state": source.session.state, "synced": source.synced,
            "watch": endpoint.peers.state(source.peer), "detail": source.detail,
        }
        for source in endpoint.incoming.sources.values()
    ]  # fmt: skip
    rows += [
        {
            "direction": "out", "peer": reader.name, "address": reader.link,
            "state": reader.session.state, "synced": reader.feed.sync_at < 0,
            "watch": endpoint.peers.state(reader.instance), "detail": "",
        }
        for reader in endpoint.outgoing.readers.values()
    ]  # fmt: skip
    return rows
