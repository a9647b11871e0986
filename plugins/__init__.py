"""How backends join: hook specifications, the manager, and our own backends by the same hooks."""

from stagelink.plugins.hookspecs import Backend, BackendContext, ChannelKind, hookimpl
from stagelink.plugins.manager import Manager
from stagelink.ports import Compressor, TypeCodec

__all__ = [
    "Backend", "BackendContext", "ChannelKind", "Compressor", "Manager", "TypeCodec", "hookimpl",
]  # fmt: skip
