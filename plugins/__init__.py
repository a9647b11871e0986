"""How backends join: hook specifications, the manager, and our own backends by the same hooks."""

from stagelink.plugins.hookspecs import Backend, BackendContext, ChannelKind, hookimpl
from stagelink.plugins.manager import Manager

__all__ = ["Backend", "BackendContext", "ChannelKind", "Manager", "hookimpl"]
