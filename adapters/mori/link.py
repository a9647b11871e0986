"""One connection to a peer: sessions for each pair of regions, and the writes through them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink.adapters.mori.card import (
    Card,
    Row,
    beacon,
    check_engine,
    check_memory,
    malformed,
    read_with,
    unpack,
)
from stagelink.core.errors import Reason, TransportError, translating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.adapters.mori.home import Fabric, Home, Own
    from stagelink.adapters.mori.library import Session, Status
    from stagelink.core.values import Instance

PIECE = 1 << 30
"""Mori refuses requests of 4 GiB; longer writes are cut, and go in one call all the same."""

_BLANK = ".00000000"
"""How a key ends that nobody has renamed."""


class Peer(NamedTuple):
    """A peer's description, all of it checked; ``sizes`` of its regions, in bytes."""

    descriptor: bytes
    card: Card
    key: str
    sizes: dict[int, int]


def meet(fabric: Fabric, descriptor: bytes, peer: Instance) -> Peer:
    """Check everything that *peer* says of itself.

    Raises:
        TransportError: it is malformed, not that peer's, or speaks in another way than we do.
    """
    card = unpack(descriptor, peer)
    if card.fabric != fabric.name:
        msg = f"peer {peer.hex()} has {card.fabric!r} and not {fabric.name!r}"
        raise TransportError(msg, reason=Reason.MISMATCH, remedy="use one backend on both sides")
    if card.notifies != fabric.notifies:
        msg = f"peer {peer.hex()} has notifications {'on' if card.notifies else 'off'}, we not"
        remedy = "set mori.enable_notification alike on both sides: transfers would hang"
        raise TransportError(msg, reason=Reason.MISMATCH, remedy=remedy)
    mori = fabric.library
    engine = read_with(mori.EngineDesc.unpack, card.engine, peer)
    wrong = check_engine(engine, card) or _not_once(engine.key, card.engine)
    for row in card.rows if not wrong else ():
        memory = read_with(mori.MemoryDesc.unpack, row.memory, peer)
        wrong = wrong or check_memory(memory, row, engine.key, fabric.location)
        wrong = wrong or _not_once(engine.key, row.memory)
        wrong = wrong or fabric.check(memory)
    if wrong:
        raise malformed(peer, wrong)
    return Peer(descriptor, card, engine.key, {row.region: row.size for row in card.rows})


def _not_once(key: str, packed: bytes) -> str:
    if key.endswith(_BLANK) and packed.count(key.encode()) == 1:
        return ""
    return f"the engine key {key!r} cannot be told apart in it"


class Link:
    """Sessions of one engine with one peer; the engine lives as long as they and their writes."""

    def __init__(self, home: Home, peer: Peer) -> None:
        self.epoch = home.epoch
        self._home = home
        self._fabric = home.fabric
        self._owns = not home.fabric.breaks
        self._sessions: dict[tuple[int, int], Session] = {}
        self._probe: tuple[Own, Any, Any, Row] | None = None
        self._peer = peer
        self._known: Any = None
        self._engine: Any = home.fabric.open(home.key()) if self._owns else home.engine
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def write(
        self, pair: tuple[int, int], mine: list[int], theirs: list[int], sizes: list[int]
    ) -> Status:
        """Begin writes between a region of ours and one of the peer's.

        Raises:
            TransportError: there is no session for these two, or Mori cannot begin.
        """
        session = self._sessions.get(pair)
        if session is None:
            msg = f"regions {pair[0]} and {pair[1]} are not connected"
            raise TransportError(msg, reason=Reason.UNKNOWN, remedy="attach the peer again")
        if max(sizes) > PIECE:
            mine, theirs, sizes = _cut(mine, theirs, sizes)
        try:
            uid = session.allocate_transfer_uid()
            if len(sizes) == 1:
                return session.write(mine[0], theirs[0], sizes[0], uid)
            return session.batch_write(mine, theirs, sizes, uid)
        except RuntimeError as error:
            msg = f"Mori: no write: {error}"
            raise TransportError(msg, reason=Reason.TRANSFER_FAILED) from error

    def abandon(self, status: Status) -> None:
        """Have *status* end, which its engine has gone without ending."""
        status.Update(self._fabric.library.StatusCode.ERR_BAD_STATE, "the write was stopped")

    def check(self) -> None:
        """See that the peer's memory is there, and still the same.

        Raises:
            TransportError: it is not.
        """
        assert self._probe is not None
        own, mine, theirs, row = self._probe
        if not row.nonce:  # another protocol's: it is reached, and nothing says which it is
            self._home.read_beacon(self._engine, own, mine, theirs, 0)
            return
        found = self._home.read_beacon(self._engine, own, mine, theirs, row.size)
        if found != beacon(self._peer.card.instance, row.nonce):
            msg = f"another memory than that of peer {self._peer.card.instance.hex()} is reached"
            raise TransportError(msg, reason=Reason.PEER_RESTARTED, remedy="attach it again")

    def close(self) -> None:
        """Forget the sessions, and the engine if it is ours alone; no write is under way."""
        self._sessions.clear()
        self._probe = None
        engine, self._engine = self._engine, None
        if engine is None:
            return
        if self._owns:
            self._fabric.shut(engine)
        elif self._known is not None:
            engine.deregister_remote_engine(self._known)

    def _connect(self) -> None:
        """Register the peer under a name of its own, and make and try a session per pair.

        Mori keeps a connection that has failed for as long as it knows the peer by that name, and
        a mapping of memory for as long as the engine lives: hence a new name for the peer here,
        where connections may fail, and a new engine where memory is mapped.
        """
        alias = self._peer.key
        if not self._owns:
            alias = f"{alias[: -len(_BLANK)]}.{self._home.serial():08x}"
        mori, engine = self._fabric.library, self._engine
        self._known = self._renamed(mori.EngineDesc, self._peer.card.engine, alias)
        engine.register_remote_engine(self._known)
        for region, own in list(self._home.regions.items()):
            mine = own.described
            if self._owns:
                place = self._fabric.location
                size = own.described.size
                mine = engine.register_memory(own.memory.address, size, own.memory.device, place)
            for row in self._peer.card.rows:
                theirs = self._renamed(mori.MemoryDesc, row.memory, alias)
                self._probe = own, mine, theirs, row
                self.check()
                self._sessions[region, row.region] = self._session(mine, theirs)

    def _session(self, mine: Any, theirs: Any) -> Session:  # noqa: ANN401 - Mori's descriptors
        with translating(RuntimeError, "Mori: no session"):
            session: Session | None = self._engine.create_session(mine, theirs)
        if session is None:
            msg = f"Mori has no route from device {mine.device_id} to {theirs.device_bus_id!r}"
            remedy = "see that the devices are linked (`rocm-smi --showtopo`), on one host"
            raise TransportError(msg, reason=Reason.UNREACHABLE, remedy=remedy)
        return session

    def _renamed(self, kind: Any, packed: bytes, alias: str) -> Any:  # noqa: ANN401 - Mori's
        """The descriptor with the peer's key replaced by one of the same length."""
        key = self._peer.key.encode()
        assert packed.count(key) == 1, "checked where it came in"
        return kind.unpack(packed.replace(key, alias.encode()))


def _cut(
    mine: Sequence[int], theirs: Sequence[int], sizes: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """The same writes in pieces of at most :data:`PIECE` bytes."""
    rows = [
        (mine[i] + at, theirs[i] + at, min(PIECE, size - at))
        for i, size in enumerate(sizes)
        for at in range(0, size, PIECE)
    ]
    first, second, third = zip(*rows, strict=True)
    return list(first), list(second), list(third)
