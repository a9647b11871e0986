"""What a plugin may contribute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pluggy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.core.values import Instance
    from stagelink.ports import Compressor, TypeCodec

PROJECT = "stagelink"
"""The pluggy project, and the entry-point group that plugins register in."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class BackendContext(NamedTuple):
    """What every factory is called with: the connector's instance and its configuration.

    ``config`` has the attributes of :class:`stagelink.config.Config`.
    """

    instance: Instance
    config: Any


class Backend(NamedTuple):
    """A way to move bytes, as a user names it.

    Factories are ``"module:function"`` strings, resolved only when the backend is chosen, so that
    listing backends loads nothing. Each takes a :class:`BackendContext`.

    Attributes:
        name: what a user writes as ``backend=``.
        summary: one line for a list.
        channel: the :class:`ChannelKind` it talks over.
        provider: makes the :class:`stagelink.ports.MemoryProvider` of the pool.
        plane: makes the :class:`stagelink.ports.DataPlane`.
        liveness: makes the :class:`stagelink.ports.Liveness`.
        probe: ``"module:function"`` of the configuration that says why it cannot work here, with
            the remedy; empty when it can. None: it always can.
        rank: ``"auto"`` prefers higher; 0 leaves it out of auto.
    """

    name: str
    summary: str
    channel: str
    provider: str
    plane: str
    liveness: str
    probe: str | None = None
    rank: int = 0


class ChannelKind(NamedTuple):
    """A kind of control channel; ``factory`` is as in :class:`Backend`.

    ``security``: the values of that setting which it honours; with others it is not built.
    """

    name: str
    summary: str
    factory: str
    security: tuple[str, ...] = ("none",)


@hookspec
def stagelink_backends() -> Iterable[Backend]:  # type: ignore[empty-body]
    """Return the backends that this plugin contributes."""


@hookspec
def stagelink_channels() -> Iterable[ChannelKind]:  # type: ignore[empty-body]
    """Return the control channels that this plugin contributes."""


@hookspec
def stagelink_compressors() -> Iterable[Compressor]:  # type: ignore[empty-body]
    """Return the compressors that this plugin contributes."""


@hookspec
def stagelink_codecs() -> Iterable[TypeCodec]:  # type: ignore[empty-body]
    """Return the codecs for types of its own that this plugin contributes."""
