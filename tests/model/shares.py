"""What one peer may keep of a pool is within its share, in every state of every world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.state import Violation

from stagelink.core.handshake.fetch import DRAINING, GRANTED, PULLING

if TYPE_CHECKING:
    from stagelink.core.endpoint import Endpoint


def nobody_has_more_than_a_share(endpoint: Endpoint) -> None:
    """16: what only one peer can set free is within its share, or one block."""
    share, capacity = endpoint.settings.peer_share, endpoint.pool.stats().capacity
    lent = endpoint.incoming.fetches.lent_bytes
    if lent != sum(f.block.size for f in endpoint.incoming.fetches.all() if f.lent and f.block):
        raise Violation(f"16 {lent} bytes are not what is lent")
    for peer in endpoint.incoming.fetches.borrowers:
        to_peer = sum(f.block.size for f in endpoint.incoming.fetches.lent_to(peer) if f.block)
        if 2 * to_peer > endpoint.settings.credit_share * capacity:
            raise Violation(f"16 {to_peer} bytes of {capacity} are lent to {peer!r}")
    for peer, blocks in (*_written(endpoint).items(), *_offered(endpoint).items()):
        if len(blocks) > 1 and sum(blocks) > share * capacity:
            raise Violation(f"16 {peer!r} has blocks of {blocks} bytes out of {capacity}")


def _written(endpoint: Endpoint) -> dict[bytes, list[int]]:
    """The blocks that each sender may write to; what is counted must be as much, at least."""
    found: dict[bytes, list[int]] = {}
    fetches = endpoint.incoming.fetches
    for fetch in fetches.all():
        if fetch.block and fetch.state in {GRANTED, PULLING, DRAINING}:
            found.setdefault(fetch.peer, []).append(fetch.block.size)
    for peer, blocks in found.items():
        if fetches.reached.get(peer, 0) < sum(blocks):
            raise Violation(f"16 {peer!r} has {blocks}, counted are {fetches.reached}")
    return found


def _offered(endpoint: Endpoint) -> dict[bytes, list[int]]:
    """The blocks that each reader was offered unasked, where that bounds what it has."""
    found: dict[bytes, list[int]] = {}
    for reader in endpoint.outgoing.readers.values():
        entries = endpoint.outgoing.ledgers[reader.identity.stage].entries
        leased = [entries[generation].block for generation in reader.leases.offers]
        sizes = [block.size for block in leased if block]
        claimed = sum(lease.pinned for lease in reader.leases.transfers.values())
        if reader.leases.pinned != sum(sizes) + claimed:
            raise Violation(f"16 {reader.name} has {sizes}, pinned are {reader.leases.pinned}")
        found[reader.instance] = sizes
    return found
