"""What the endpoint shows of conversations, leases and quarantine, at one moment."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.handshake.fetch import HELD
from stagelink.core.handshake.session import DECLINED, IDLE, OPEN
from stagelink.core.source import LEFT
from stagelink.core.streams import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.core.endpoint import Endpoint
    from stagelink.core.values import Instance

MOST_LEASES = 256
"""Leases looked at in one glance, so that it stays short whatever is held."""

Name = tuple[str, str]
"""A conversation: ``in`` and the sender's address, or ``out`` and the reader's instance."""


class Talk(NamedTuple):
    """A conversation as it is now; ``number`` tells it from the next one with the same peer.

    ``left``: the peer has said goodbye.
    """

    state: str
    number: int
    instance: Instance
    peer: str
    link: str
    edge: str
    detail: str
    left: bool = False

    @property
    def open(self) -> bool:
        """Whether messages pass."""
        return self.state == OPEN

    @property
    def declined(self) -> bool:
        """Whether the sender refuses us."""
        return self.state == DECLINED


class Held(NamedTuple):
    """A payload that somebody has a lease of: a view of ours, or what a reader was offered."""

    key: str
    edge: str
    peer: str


class Sight(NamedTuple):
    """Everything seen; ``leases`` by a name that is never used again."""

    talks: dict[Name, Talk]
    leases: dict[tuple[str, Instance, int], Held]
    quarantined: int


def sight(endpoint: Endpoint) -> Sight:
    """Look at *endpoint*: some microseconds, and at most a fraction of a millisecond."""
    talks = dict(chain(_senders(endpoint), _readers(endpoint)))
    leases = dict(islice(chain(_views(endpoint), _offers(endpoint)), MOST_LEASES))
    return Sight(talks, leases, endpoint.pool.stats().quarantined)


def _senders(endpoint: Endpoint) -> Iterator[tuple[Name, Talk]]:
    own = endpoint.settings.identity.stage
    for source in endpoint.incoming.sources.values():
        state, number, *_ = source.session
        if state != IDLE:
            edge = f"{source.stage}->{own}"
            talk = Talk(
                state, number, source.peer, source.label, source.address, edge, source.detail,
                source.gone == LEFT,
            )  # fmt: skip
            yield ("in", source.address), talk


def _readers(endpoint: Endpoint) -> Iterator[tuple[Name, Talk]]:
    own = endpoint.settings.identity.stage
    for reader in endpoint.outgoing.readers.values():
        state, number, *_ = reader.session
        edge = f"{own}->{reader.identity.stage}"
        left = endpoint.peers.left(reader.instance)
        talk = Talk(state, number, reader.instance, reader.name, reader.link, edge, "", left)
        yield ("out", reader.instance.hex()), talk


def _views(endpoint: Endpoint) -> Iterator[tuple[tuple[str, Instance, int], Held]]:
    own = endpoint.settings.identity.stage
    for fetch in endpoint.incoming.fetches.all():
        if fetch.state == HELD:
            source = endpoint.incoming.sources[fetch.address]
            held = Held(
                shown(fetch.key), f"{source.stage}->{own}", str(endpoint.settings.identity)
            )
            yield ("in", fetch.peer, fetch.number), held


def _offers(endpoint: Endpoint) -> Iterator[tuple[tuple[str, Instance, int], Held]]:
    own = endpoint.settings.identity.stage
    for reader in endpoint.outgoing.readers.values():
        entries = endpoint.outgoing.ledgers[reader.identity.stage].entries
        edge = f"{own}->{reader.identity.stage}"
        leases = reader.leases
        for generation in (*leases.offers, *(x.generation for x in leases.transfers.values())):
            entry = entries.get(generation)
            if entry is not None:
                yield (
                    ("out", reader.instance, generation),
                    Held(shown(entry.key), edge, reader.name),
                )
