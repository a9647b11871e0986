"""What the core needs from the world, as protocols that name no technology.

Adapters implement these; a third party's class satisfies them without importing us.
"""

from stagelink.ports.channel import ControlChannel, LinkDown, LinkUp, Mail, PeerRefused
from stagelink.ports.codec import Codec, Loader, Serializer, Staged
from stagelink.ports.foreign import ForeignCard, ForeignOrder, ForeignStore, ForeignWriter, Loan
from stagelink.ports.liveness import Liveness
from stagelink.ports.log import EventLog
from stagelink.ports.memory import Memory, MemoryProvider
from stagelink.ports.plane import Capabilities, DataPlane, WriteOrder
from stagelink.ports.wrap import Compressor, TypeCodec

__all__ = [
    "Capabilities", "Codec", "Compressor", "ControlChannel", "DataPlane", "EventLog",
    "ForeignCard", "ForeignOrder", "ForeignStore", "ForeignWriter", "LinkDown", "LinkUp",
    "Liveness", "Loader", "Loan", "Mail", "Memory", "MemoryProvider", "PeerRefused",
    "Serializer", "Staged", "TypeCodec", "WriteOrder",
]  # fmt: skip
