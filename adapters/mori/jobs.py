"""Writes that are to be done, and calls of Mori that do them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stagelink.adapters.mori.library import Status
    from stagelink.adapters.mori.link import Link
    from stagelink.ports.plane import WriteOrder

    Done = Callable[[WriteOrder, str], None]


class Job(NamedTuple):
    """A write, checked."""

    order: WriteOrder
    done: Done

    @property
    def pair(self) -> tuple[int, int]:
        """Between which regions."""
        return self.order.source.region, self.order.target.region


class Flight:
    """One call under way; it keeps the connection, for the engine writes to its status."""

    __slots__ = ("begun_s", "jobs", "link", "size", "status")

    def __init__(
        self, link: Link, jobs: list[Job], status: Status, size: int, begun_s: float
    ) -> None:
        self.link = link
        self.jobs = jobs
        self.status = status
        self.size = size
        self.begun_s = begun_s


def begin(link: Link, jobs: list[Job]) -> tuple[Status, int]:
    """Begin *jobs* in one call; how many bytes they are."""
    if len(jobs) == 1:
        source, target = jobs[0].order.source, jobs[0].order.target
        pair = source.region, target.region
        return link.write(pair, source.offset, target.offset, source.size), source.size
    sizes = [job.order.source.size for job in jobs]
    mine = [job.order.source.offset for job in jobs]
    theirs = [job.order.target.offset for job in jobs]
    return link.write_all(jobs[0].pair, mine, theirs, sizes), sum(sizes)


def tell(jobs: Iterable[Job], error: str) -> None:
    """All of them have ended so."""
    for job in jobs:
        job.done(job.order, error)
