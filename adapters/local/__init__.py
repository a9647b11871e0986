"""The control channel's shortcut between processes of one host and one user: Unix sockets."""

from stagelink.adapters.local.channel import LocalChannel

__all__ = ["LocalChannel"]
