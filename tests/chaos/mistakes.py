"""Mistakes that the hunt must find: each breaks stagelink in every process that is forked then.

``python -m tests.chaos --mistake deaths --rounds 8`` shows one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def _deaths() -> None:
    """Nobody is ever proved dead."""
    from stagelink.adapters.shm.liveness import LockLiveness

    _replace(LockLiveness, "is_dead", lambda *_: False)


def _news() -> None:
    """Whoever waits is not told that the sender has gone."""
    from stagelink.core.endings import Endings

    _replace(Endings, "fail_waiting", lambda *_: None)
    _replace(Endings, "fail_all", lambda *_: None)


def _leases() -> None:
    """What a dead reader held stays held."""
    from stagelink.core.receivers import Receivers

    _replace(Receivers, "gone", lambda *_: None)


def _sweep() -> None:
    """Nobody sweeps."""
    from stagelink.adapters import shm

    _replace(shm, "sweep", lambda *_: [])


def _bytes() -> None:
    """A copy into another pool lacks its last bytes."""
    from stagelink.adapters.shm.plane_write import ShmWritePlane

    whole: Any = ShmWritePlane.post

    def short(plane: Any, order: Any, done: Any) -> None:
        size = order.source.size - 16
        source, target = order.source._replace(size=size), order.target._replace(size=size)
        whole(plane, order._replace(source=source, target=target), done)

    _replace(ShmWritePlane, "post", short)


def _descriptors() -> None:
    """The end of a shortcut is not closed."""
    from stagelink.adapters.local.channel import LocalChannel

    whole: Any = LocalChannel._end

    def kept(channel: Any, lane: Any) -> None:
        _KEPT.append(lane.socket.dup())
        whole(channel, lane)

    _replace(LocalChannel, "_end", kept)


def _forks() -> None:
    """A forked child keeps its parent's connections."""
    from stagelink.adapters.local.channel import LocalChannel
    from stagelink.adapters.zmq.channel import ZmqChannel

    _replace(LocalChannel, "let_go", lambda *_: None)
    _replace(ZmqChannel, "let_go", lambda *_: None)


def _memory() -> None:
    """Something is remembered of every peer."""
    from stagelink.core.handshake.watch import Peers

    whole: Any = Peers.up

    def up(peers: Any, peer: bytes, *others: Any) -> None:
        from stagelink.core.handshake import watch

        vars(watch).setdefault("_remembered", {})[peer] = bytes(1 << 16)
        whole(peers, peer, *others)

    _replace(Peers, "up", up)


def _replace(owner: Any, name: str, by: object) -> None:
    assert hasattr(owner, name), f"{owner} has no {name} any more"
    setattr(owner, name, by)


_KEPT: list[Any] = []

MISTAKES: dict[str, Callable[[], None]] = {
    made.__name__.removeprefix("_"): made
    for made in (_deaths, _news, _leases, _sweep, _bytes, _descriptors, _forks, _memory)
}
