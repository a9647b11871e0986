"""What was counted, as plain numbers for ``health()``."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Figures:
    """Totals since the start, but for the two that say what is so now.

    Only the dialect's own thread counts; any thread may look.

    Attributes:
        queries, pulls: what their receivers asked of us.
        served: payloads that we wrote for them, ``served_bytes`` in sum.
        not_found: questions for what is not there, or not for them.
        unservable: payloads that have no form of theirs, or none of any size, or are failures.
        no_room: times that there was no room to translate one, or to receive one.
        pulls_refused: pulls of another length than the payload has, or of one that is being
            written already, or with a card that the plane refuses.
        writes_failed: writes for them that failed; the payload stays.
        frames_refused: what was no frame of theirs, asked or answered.
        asked, got: questions of ours, and payloads got; ``got_bytes`` in sum.
        refused: pulls of ours that they answered with an error.
        timeouts: questions and pulls that were not answered in time.
        late_answers: of those pulls, answered all the same: their block is free again.
        lost: payloads that came for nobody, and were dropped.
        stranded, stranded_bytes: blocks of our pool that are in quarantine now.
        fences: times that all cards given out were made useless, to free such blocks.
    """

    queries: int = 0
    pulls: int = 0
    served: int = 0
    served_bytes: int = 0
    not_found: int = 0
    unservable: int = 0
    no_room: int = 0
    pulls_refused: int = 0
    writes_failed: int = 0
    frames_refused: int = 0
    asked: int = 0
    got: int = 0
    got_bytes: int = 0
    refused: int = 0
    timeouts: int = 0
    late_answers: int = 0
    lost: int = 0
    stranded: int = 0
    stranded_bytes: int = 0
    fences: int = 0

    def plain(self) -> dict[str, int]:
        """All of them by name."""
        return asdict(self)
