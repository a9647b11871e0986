"""The blocks of our pool that senders of theirs write into, from the pull to its proved end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.adapters.vllm_omni_mori.pulls import LATE, PULLING
from stagelink.core.pool import Block

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.adapters.vllm_omni_mori.figures import Figures
    from stagelink.adapters.vllm_omni_mori.pulls import Pull
    from stagelink.core.pool import Refusal
    from stagelink.ports.foreign import ForeignStore


class Blocks:
    """Reserves, strands and frees; a pull has at most one block."""

    __slots__ = ("_figures", "_store")

    def __init__(self, store: ForeignStore, figures: Figures) -> None:
        self._store = store
        self._figures = figures

    def reserve(self, pull: Pull, size: int) -> Refusal | None:
        """A block of *size* bytes for *pull*, or why there is none."""
        block = self._store.reserve(size, receive=True)
        if not isinstance(block, Block):
            self._figures.no_room += 1
            return block
        pull.block, pull.size = block, size
        return None

    def strand(self, pull: Pull) -> None:
        """Keep the block of a pull under way from everyone."""
        assert pull.state == PULLING
        assert pull.block is not None
        self._store.strand(pull.block, -pull.number)
        self._figures.stranded += 1
        self._figures.stranded_bytes += pull.block.size
        pull.state = LATE

    def release(self, pull: Pull) -> None:
        """Nothing can be written by this pull any more: its block is free."""
        block, pull.block = pull.block, None
        assert block is not None
        if pull.state == LATE:
            self._store.ashore(-pull.number)
            self._figures.stranded -= 1
            self._figures.stranded_bytes -= block.size
        else:
            self._store.free(block)


def stranded_at(address: str, pulls: Iterable[Pull]) -> int:
    """Bytes of our pool that the sender there keeps."""
    late = (pull for pull in pulls if pull.state == LATE and pull.ref.address == address)
    return sum(pull.block.size for pull in late if pull.block is not None)
