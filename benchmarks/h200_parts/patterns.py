"""Bytes that show at once if they are somebody else's, shifted or half there."""

from __future__ import annotations

import random
from typing import Any

BLOCK = 1 << 20
STEP = 4096


def pattern(nbytes: int, device: str, seed: int = 1) -> Any:  # noqa: ANN401 - a torch tensor
    """A uint8 tensor of random blocks, every 4096th byte telling where it is."""
    import torch  # noqa: PLC0415 - only the ends load it

    block = bytearray(random.Random(seed).randbytes(min(nbytes, BLOCK)))  # noqa: S311 - a pattern
    once = torch.frombuffer(block, dtype=torch.uint8).to(device)
    whole = once.repeat(-(-nbytes // len(block)))[:nbytes].contiguous()
    marks = (torch.arange(0, nbytes, STEP, device=device) // STEP + seed) % 251
    whole[::STEP] = marks.to(torch.uint8)
    return whole


def objection(found: Any, nbytes: int, seed: int) -> str:  # noqa: ANN401 - a torch tensor
    """Why *found* is not that pattern; empty if it is, bit for bit."""
    import torch  # noqa: PLC0415 - only the ends load it

    if found.numel() != nbytes:
        return f"{found.numel()} bytes came, {nbytes} were put"
    wanted = pattern(nbytes, str(found.device), seed)
    if torch.equal(found, wanted):
        return ""
    wrong = (found != wanted).nonzero()
    return f"{len(wrong)} of {nbytes} bytes are wrong, the first at {int(wrong[0])}"
