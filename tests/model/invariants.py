"""What must hold in every state. Each function raises a :class:`Violation` that names its number.

The first group looks at one endpoint and is asked once for each endpoint state; the second looks
at the world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.machines import PAGE, name
from tests.model.shares import nobody_has_more_than_a_share
from tests.model.state import Violation

from stagelink.core.blocks import HELD, QUARANTINED, RESERVED, SEND
from stagelink.core.endpoint import Endpoint
from stagelink.core.handshake import fetch as gets
from stagelink.core.handshake.lease import DRAINING, OFFERED, QUEUED, WRITING
from stagelink.core.prospects import is_there

if TYPE_CHECKING:
    from tests.model.state import State
    from tests.model.world import World

    from stagelink.core.handshake.fetch import Fetch
    from stagelink.core.ledger import Entry
    from stagelink.core.reader import Reader
    from stagelink.core.source import Source


def rows(endpoint: Endpoint) -> dict[int, tuple[Any, ...]]:
    """The live blocks of a pool by offset: (serial, state, ids)."""
    return {row[0]: (row[2], row[4], row[6]) for row in endpoint.pool.freeze(0.0)[2]}


def entries(sender: Endpoint) -> dict[int, Entry]:
    """Every entry of the one edge, by generation."""
    for ledger in sender.outgoing.ledgers.values():
        return ledger.entries
    return {}


def source_of(receiver: Endpoint) -> Source | None:
    """What the receiver knows of the sender's address."""
    return next(iter(receiver.incoming.sources.values()), None)


# --- one endpoint --------------------------------------------------------------------------


def pool_adds_up(endpoint: Endpoint) -> None:
    """2: each byte is in exactly one state."""
    stats = endpoint.pool.stats()
    if stats.free + stats.reserved + stats.held + stats.quarantined != stats.capacity:
        raise Violation(f"2 the pool does not add up: {stats}")


def blocks_are_owned(endpoint: Endpoint) -> None:
    """2: each block belongs to one entry or one get, in the state that its owner implies."""
    owned: list[tuple[int, int]] = []
    for entry in entries(endpoint).values():
        if entry.block:
            owned.append((entry.block.serial, HELD))
    states = {gets.PULLING: RESERVED, gets.GRANTED: RESERVED, gets.DRAINING: QUARANTINED}
    for fetch in endpoint.incoming.fetches.all():
        if fetch.block:
            owned.append((fetch.block.serial, states.get(fetch.state, HELD)))
    live = sorted(
        (row[2], row[4])
        for row in endpoint.pool.freeze(0.0)[2]
        if (row[4], row[5]) != (RESERVED, SEND)  # a caller that is about to publish
    )
    if sorted(owned) != live:
        raise Violation(f"2 blocks (serial, state) {live} are owned as {sorted(owned)}")


def quarantine_names_its_transfer(endpoint: Endpoint) -> None:
    """2: a draining get's block waits for exactly that transfer."""
    found = rows(endpoint)
    for fetch in endpoint.incoming.fetches.all():
        if fetch.state == gets.DRAINING and fetch.block:
            if found[fetch.block.offset][2] != (fetch.transfer,):
                raise Violation(f"2 {fetch} drains, its block waits for {found}")


def leases_match(endpoint: Endpoint) -> None:
    """6: leases are of existing entries, which count them exactly."""
    count = dict.fromkeys(entries(endpoint), 0)
    for reader in endpoint.outgoing.readers.values():
        leased = list(reader.leases.offers)
        leased += [lease.generation for lease in reader.leases.transfers.values()]
        for generation in leased:
            if generation not in count:
                raise Violation(f"6 a lease on generation {generation}, which was freed")
            count[generation] += 1
    for generation, entry in entries(endpoint).items():
        if entry.leases != count[generation]:
            raise Violation(f"6 {entry} has {count[generation]} leases")
        if entry.leaving and not entry.leases:
            raise Violation(f"6 {entry} has left but is not freed")


def slots_match(endpoint: Endpoint) -> None:
    """6: a reader's slot is held only for a lease or a Done that is not closed yet."""
    for entry in entries(endpoint).values():
        for holder in entry.holders:
            same = [r for r in endpoint.outgoing.readers.values() if r.name == holder]
            if not any(reader.leases.holds_slot(entry.generation) for reader in same):
                raise Violation(f"6 {entry}: {holder} holds a slot for nothing")


def the_first_ends_it(endpoint: Endpoint) -> None:
    """18: what was for whoever takes it first is over once somebody has been counted."""
    for entry in entries(endpoint).values():
        if entry.readers == 0 and entry.counted and not entry.leaving:
            raise Violation(f"18 {entry} is still there for others")


def writes_are_counted(endpoint: Endpoint) -> None:
    """11: the queue and the count of writes agree with the leases, within their limits."""
    leases = [
        (reader.instance, transfer, lease.state)
        for reader in endpoint.outgoing.readers.values()
        for transfer, lease in reader.leases.transfers.items()
    ]
    queued = sorted(lease[:2] for lease in leases if lease[2] == QUEUED)
    writing = [lease for lease in leases if lease[2] in {WRITING, DRAINING}]
    transfers = endpoint.outgoing.transfers
    if sorted(transfers.queue) != queued or transfers.writing != len(writing):
        raise Violation(
            f"11 queue {transfers.queue}, writing {transfers.writing}, leases {leases}"
        )
    if transfers.writing > endpoint.settings.max_writes:
        raise Violation(f"11 {transfers.writing} writes at once")


def one_get_per_announcement(endpoint: Endpoint) -> None:
    """9: an inbox entry is worked on by the get it names, and by no other."""
    source = source_of(endpoint)
    if source is None:
        return
    for known in source.inbox.freeze()[0]:
        fetch = endpoint.incoming.fetches.get(known.fetch)
        if known.fetch and (fetch is None or fetch.generation != known.generation):
            raise Violation(f"9 {known} is said to be worked on by {fetch}")
    working = [
        (fetch.peer, fetch.generation)
        for fetch in endpoint.incoming.fetches.all()
        if fetch.state in {gets.QUEUED, gets.PULLING, gets.LANDED, gets.HELD}
    ]
    if len(working) != len(set(working)):
        raise Violation(f"9 two gets work on one payload: {working}")


def thaws_to_itself(endpoint: Endpoint) -> None:
    """8: freezing loses nothing that freezing shows."""
    frozen = endpoint.freeze()
    if Endpoint.thaw(endpoint.settings, frozen).freeze() != frozen:
        raise Violation("8 an endpoint does not thaw to itself")


OF_AN_ENDPOINT = (
    pool_adds_up, blocks_are_owned, quarantine_names_its_transfer, leases_match, slots_match,
    the_first_ends_it, writes_are_counted, one_get_per_announcement, thaws_to_itself, nobody_has_more_than_a_share,
)  # fmt: skip


# --- the world -----------------------------------------------------------------------------


def no_write_reaches_another_block(world: World, state: State) -> None:
    """1: what a posted write may touch still belongs to its transfer, on both sides."""
    for write in state.writes:
        if write.doomed:
            continue
        receiver = _living(world, state, write.receiver)
        if receiver is not None:
            fetch = receiver.incoming.fetches.of_transfer(write.sender, write.transfer)
            if not fetch or not fetch.block or fetch.block.offset != write.target:
                raise Violation(f"1 {write} may land in memory that is not its transfer's")
            if fetch.state not in {gets.GRANTED, gets.PULLING, gets.DRAINING}:
                raise Violation(f"1 {write} may land while the get is {fetch.state}")
        _still_published(world, state, write.sender, write.source, write.content, write, "reads")


def _living(world: World, state: State, instance: bytes) -> Endpoint | None:
    """The endpoint of that instance, if it lives."""
    for place, life, node in zip(world.places, state.lives, state.nodes, strict=True):
        if node and name(place, life) == instance:
            return world.machines.look(node)
    return None


def views_keep_their_bytes(world: World, state: State) -> None:
    """1: what a caller looks at does not change under it."""
    for view in state.views:
        at = world.places.index(view.place)
        if view.block >= 0:
            block = rows(world.machines.look(state.nodes[at])).get(view.block)
            if block is None or block[1] != HELD:
                raise Violation(f"1 {view} looks at a block that is {block}")
            if state.memory[at][view.block // PAGE] != view.content:
                raise Violation(f"1 the bytes changed under {view}")
        elif view.where >= 0:
            _still_published(world, state, view.peer, view.where, view.content, view, "looks at")


def _still_published(
    world: World, state: State, owner: bytes, offset: int, content: int, who: Any, what: str
) -> None:
    sender = _living(world, state, owner)
    if sender is None:
        return
    truth = [put for put in state.published if put.content == content]
    entry = entries(sender).get(truth[0].generation)
    if entry is None or entry.block is None or entry.block.offset != offset:
        raise Violation(f"1 {who} {what} a block of the sender that is free")
    if state.memory[world.places.index(owner[:1].decode())][offset // PAGE] != content:
        raise Violation(f"1 {who} {what} bytes that changed")


def no_put_is_left_half_done(world: World, state: State) -> None:
    """2: publishing, or its refusal, takes the block over."""
    for place, node in zip(world.places, state.nodes, strict=True):
        if node and place in world.listeners:
            for row in world.machines.blocks(node):
                if (row[4], row[5]) == (RESERVED, SEND):
                    raise Violation(f"2 a put has left its block behind: {row}")


def calm_is_calm(world: World, state: State) -> None:
    """10, 15: when nothing is under way, nobody waits for, keeps or lacks anything."""
    if state.tasks or state.writes:
        return
    for wire in state.wires:
        if wire.link and not wire.to_listener and not wire.to_dialer:
            _calm(world, state, wire.dialer, wire.listener)


def _calm(world: World, state: State, dialer: str, listener: str) -> None:
    here, there = world.places.index(dialer), world.places.index(listener)
    if not (state.nodes[here] and state.nodes[there]):
        return
    sender = world.machines.look(state.nodes[there])
    receiver = world.machines.look(state.nodes[here])
    us, peer = name(dialer, state.lives[here]), name(listener, state.lives[there])
    source, reader = source_of(receiver), sender.outgoing.readers.get(us)
    if source is None or reader is None or not _in_touch(sender, receiver, source, reader):
        return
    if source.cursor != reader.feed.cursor:
        known = f"the receiver knows the log up to {source.cursor}"
        raise Violation(f"10 {known}, it was told up to {reader.feed.cursor}")
    if not receiver.closed:
        _nobody_waits(receiver, sender, source, reader)
    _nothing_is_kept(receiver, sender, source, reader)
    _both_know_what_is_lent(receiver, source, reader)
    looking = {v.generation for v in state.views if v.place == dialer and v.where >= 0}
    for taker, giver, generation in state.delivered:
        entry = entries(sender).get(generation)
        if (taker, giver) != (us, peer) or entry is None or entry.leaving:
            continue
        if reader.name not in entry.counted and generation not in looking:
            raise Violation(f"15 generation {generation} was delivered and never counted")


def _in_touch(sender: Endpoint, receiver: Endpoint, source: Source, reader: Reader) -> bool:
    head = next((ledger.head for ledger in sender.outgoing.ledgers.values()), 0)
    return (
        source.open
        and reader.open
        and source.session.number == reader.session.number
        and source.session.taken == reader.session.sent  # else a loss shows at the next message
        and reader.session.taken == source.session.sent
        and reader.feed.subscribed
        and reader.feed.cursor == head
        and not any(timer[0] == "ack" for timer in receiver.timers.armed())
        and not any(lease.state == QUEUED for lease in reader.leases.transfers.values())
    )


def _nobody_waits(receiver: Endpoint, sender: Endpoint, source: Source, reader: Reader) -> None:
    live = {e.key: e for e in entries(sender).values() if not e.leaving}
    fetches = receiver.incoming.fetches.all()
    for fetch in fetches:
        if fetch.state in {gets.PULLING, gets.DRAINING} and fetch.peer == source.peer:
            raise Violation(f"15 {fetch} waits, with nothing on its way")
        if fetch.state == gets.QUEUED and receiver.pool.stats().free >= fetch.size:
            raise Violation(f"15 {fetch} waits for room, and there is room")
        stalls = fetch.key in source.stalled and receiver.incoming.fetches.open_ids(source.peer)
        if fetch.state != gets.WAITING or fetch.key not in live or stalls:
            continue
        entry = live[fetch.key]
        busy = any(_works_on(f, source, entry.generation) for f in fetches)
        anybody = entry.readers == 0 and not entry.counted
        if (
            (anybody or entry.admits(reader.name))
            and not busy
            and entry.generation not in source.consumed
        ):
            raise Violation(f"10 {fetch} waits, and {entry} is there")
    for wait in receiver.incoming.waits.all():
        for key in wait.keys:
            if is_there(receiver.incoming._gets, source, key):
                raise Violation(f"10 {wait} waits, and {key!r} is there")


def _works_on(fetch: Fetch, source: Source, generation: int) -> bool:
    working = fetch.state not in {gets.WAITING, gets.DRAINING, gets.GRANTED}
    return working and (fetch.peer, fetch.generation) == (source.peer, generation)


def _nothing_is_kept(receiver: Endpoint, sender: Endpoint, source: Source, reader: Reader) -> None:
    fetches = receiver.incoming.fetches.all()
    viewed = {f.generation for f in fetches if f.peer == source.peer and f.where is not None}
    known = {k.generation for k in source.inbox.freeze()[0]}
    for generation in reader.leases.offers:
        if generation not in viewed | known and not source.inbox.forgot:
            raise Violation(f"15 generation {generation} is offered; the receiver has nothing")
    open_ids = receiver.incoming.fetches.open_ids(source.peer)
    for transfer, lease in reader.leases.transfers.items():
        if lease.state == OFFERED and transfer not in open_ids:
            raise Violation(f"15 claim {transfer} is leased; the receiver has nothing")
    for generation in known:
        entry = entries(sender).get(generation)
        if entry is None or entry.leaving:
            raise Violation(f"9 generation {generation} is in the inbox, but not in the log")
    report = source.report(receiver.incoming.fetches)
    for transfer in reader.leases.ended:
        if transfer < report.low_water and transfer not in report.open_ids:
            raise Violation(f"15 the end of transfer {transfer} is remembered for nobody")


def _both_know_what_is_lent(receiver: Endpoint, source: Source, reader: Reader) -> None:
    """17: a block is lent on one side as on the other, and what was written there is told."""
    lent = {
        fetch.transfer
        for fetch in receiver.incoming.fetches.lent_to(source.peer)
        if fetch.state == gets.GRANTED
    }
    if lent != set(reader.grants.free) or reader.grants.spent:
        kept = f"{reader.grants.free} and {reader.grants.spent}"
        raise Violation(f"17 the receiver lends {lent}, the sender has {kept}")


OF_THE_WORLD = (
    no_write_reaches_another_block,
    views_keep_their_bytes,
    no_put_is_left_half_done,
    calm_is_calm,
)
