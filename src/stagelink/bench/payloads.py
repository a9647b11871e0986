"""The values that travel: plain bytes as a tensor, or as an array where there is no torch."""

from __future__ import annotations

from ctypes import string_at
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from stagelink.core.errors import ConfigError

PAGE = 4096
FEW_PAGES = 4
HAS_NUMPY = find_spec("numpy") is not None


def library() -> Any:  # noqa: ANN401
    """Torch, or else numpy.

    Raises:
        ConfigError: neither is installed.
    """
    for name in ("torch", "numpy"):
        if find_spec(name) is not None:
            return import_module(name)
    msg = "a benchmark needs tensors or arrays to send"
    raise ConfigError(msg, remedy="pip install 'stagelink[numpy]'")


def payload(size: int) -> Any:  # noqa: ANN401
    """*size* bytes, every page of them written once (unwritten ones would all be one page)."""
    made = library()
    return made.full((size,), 7, dtype=made.uint8)


def fill(tensor: Any) -> None:  # noqa: ANN401
    """Write every byte of a tensor or an array.

    By one thread: those of torch spin for milliseconds after their work, on the cores that both
    ends need.
    """
    target = tensor.numpy() if HAS_NUMPY and hasattr(tensor, "untyped_storage") else tensor
    target[:] = 7


def touch(value: Any) -> bytes:  # noqa: ANN401
    """Read one byte of every page of a tensor, an array or bytes, and return them."""
    if hasattr(value, "untyped_storage"):
        nbytes = value.nbytes
        if nbytes <= FEW_PAGES * PAGE:  # to make an array of it would take longer
            start = value.data_ptr()
            return b"".join([string_at(start + at, 1) for at in range(0, nbytes, PAGE)])
        if not HAS_NUMPY:
            return bytes(value[::PAGE].tolist())
        value = value.numpy()
    first = value[::PAGE]
    # An array copies them in two thirds of the time that a memoryview of it takes.
    touched: bytes = first if isinstance(first, bytes) else first.tobytes()
    return touched
