"""Raw bytes that a get returns: the face of vLLM-Omni's ManagedBuffer, on a payload of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from stagelink import Payload


def is_buffer(data: object) -> bool:
    """Whether it is one of these, or the like of another connector."""
    return hasattr(data, "tensor") and hasattr(data, "release")


class Buffer:
    """Bytes where they lie; whoever views them keeps them, :meth:`release` or not.

    Attributes:
        size: in bytes.
        tensor: a view of them, of one dimension and ``torch.uint8``; None once released.
    """

    def __init__(self, payload: Payload, value: Any) -> None:  # noqa: ANN401 - raw, as it was put
        self._payload: Payload | None = payload
        flat = value if isinstance(value, torch.Tensor) else torch.from_numpy(value)
        self.tensor: Any = flat.reshape(-1).view(torch.uint8)
        self.size = int(self.tensor.numel())

    def release(self) -> None:
        """Let the memory go, now or with its last view. Twice is fine."""
        self.tensor = None
        if self._payload is not None:
            self._payload.close()
            self._payload = None

    def as_tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """The bytes as a tensor of *shape* and *dtype*; a view.

        Raises:
            RuntimeError: they are not as many.
        """
        tensor: torch.Tensor = self.tensor.view(dtype).reshape(shape)
        return tensor

    def to_bytes(self) -> bytes:
        """A copy of the bytes."""
        return bytes(memoryview(self.tensor.cpu().numpy()))

    def __len__(self) -> int:
        """In bytes."""
        return self.size

    def __bool__(self) -> bool:
        """It is there, even if it is empty."""
        return True

    def __enter__(self) -> Self:
        """Use it; leaving releases it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release it."""
        self.release()
