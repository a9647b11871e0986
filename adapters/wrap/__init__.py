"""What is put around payloads on their way out and taken off on their way in."""

from stagelink.adapters.wrap.digest import Integrity

__all__ = ["Integrity"]
