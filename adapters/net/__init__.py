"""What this host's network looks like: interfaces, names, routes. Linux only, nothing is sent."""

from stagelink.adapters.net.interfaces import peer_of, read_interfaces

__all__ = ["peer_of", "read_interfaces"]
