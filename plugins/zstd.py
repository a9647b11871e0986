"""Zstandard for ``compression={"stage": "zstd"}``; a plugin like anybody's, to be copied.

Needs ``pip install stagelink[zstd]``; nothing is imported before the first payload.
"""

from __future__ import annotations

from importlib.util import find_spec

from stagelink.plugins.hookspecs import hookimpl
from stagelink.ports import Compressor

LEVEL = 1
"""The fastest of its own levels: an edge is a busy place."""


@hookimpl
def stagelink_compressors() -> list[Compressor]:
    """One compressor, ``zstd``."""
    return [Compressor("zstd", compress, decompress, why_not)]


def why_not() -> str:
    """Empty if the package is there."""
    return "" if find_spec("zstandard") else "zstandard is missing; pip install stagelink[zstd]"


def compress(raw: memoryview) -> bytes:
    """One frame, which says its content's size."""
    from zstandard import ZstdCompressor  # noqa: PLC0415 - an extra

    return ZstdCompressor(level=LEVEL).compress(raw)


def decompress(packed: memoryview, into: memoryview) -> int:
    """Fill *into* from one frame, without ever holding more than that.

    Raises:
        ValueError: the frame is of another size.
        zstandard.ZstdError: it is damaged.
    """
    from zstandard import ZstdDecompressor, frame_content_size  # noqa: PLC0415 - an extra

    said = frame_content_size(packed)
    if said != len(into):
        msg = f"a frame of {said} bytes, not {len(into)}"
        raise ValueError(msg)
    filled = 0
    with ZstdDecompressor().stream_reader(packed) as reader:
        while filled < len(into) and (count := reader.readinto(into[filled:])):
            filled += count
        if reader.read(1):
            msg = f"the frame holds more than the {len(into)} bytes that it says"
            raise ValueError(msg)
    return filled
