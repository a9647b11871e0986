"""What is put around payloads on their way out and taken off on their way in."""

from stagelink.adapters.wrap.digest import Integrity
from stagelink.adapters.wrap.packed import Compression
from stagelink.adapters.wrap.wrapping import Wrapping, mark

__all__ = ["Compression", "Integrity", "Wrapping", "mark"]
