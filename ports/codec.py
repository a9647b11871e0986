"""Messages to frames, values to bytes, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.core.messages import Aside, Message


class Codec(Protocol):
    """The wire format of control messages. Stateless; any thread may call it."""

    def encode(self, message: Message | Aside) -> list[bytes]:
        """The frames of *message*, at most 4, the first with the protocol's 8 bytes ahead."""
        ...

    def decode(self, frames: Sequence[bytes]) -> Message | Aside:
        """The message of *frames*, every field checked for type and range.

        Raises:
            ProtocolViolationError: the frames are no message of this version.
        """
        ...


class Staged(Protocol):
    """A value measured and ready to be written: ``size`` bytes, without having copied any."""

    size: int

    def write(self, target: memoryview) -> None:
        """Write all ``size`` bytes into *target* (exactly that long). No lock is held."""
        ...


class Loader(Protocol):
    """Runs of bytes to values, without a copy."""

    def load(self, buffer: object, size: int, *, writable: bool = True) -> Any:  # noqa: ANN401
        """The value in the first *size* bytes of *buffer*, any object with the buffer protocol.

        Tensors and arrays are views that keep *buffer* itself alive, so that the end of the last
        one is the end of *buffer*. bytes and bytearrays are copies.

        Not *writable* (others read the same bytes): nothing that is handed out can change
        *buffer*. Arrays are read-only views, tensors private copies, for torch cannot refuse.

        Raises:
            PayloadError: the bytes are no payload, or are of another version.
        """
        ...


class Serializer(Loader, Protocol):
    """Values to one contiguous, self-describing run of bytes, and back."""

    def stage(self, value: Any) -> Staged:  # noqa: ANN401 - any value a user puts
        """Measure *value*.

        Raises:
            PayloadError: something in it cannot be serialized; names the path to it.
        """
        ...
