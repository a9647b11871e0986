from __future__ import annotations

from stagelink.core.events import Action, Send
from stagelink.core.handshake.fetch import Fetches
from stagelink.core.handshake.session import OPEN, Session
from stagelink.core.messages import Ack, Packet, Report
from stagelink.core.source import NOTICES_LIMIT, Source


def packets(actions: list[Action]) -> list[Packet]:
    made = []
    for action in actions:
        assert isinstance(action, Send)
        assert isinstance(action.message, Packet)
        made.append(action.message)
    return made


def test_what_was_consumed_is_told_in_messages_that_a_frame_holds() -> None:
    """Only the last one closes transfer ids: the count must not come after it."""
    count = 2 * NOTICES_LIMIT + 1
    source, fetches = Source("memory://1", "thinker"), Fetches()
    source.session = Session(OPEN, 7)
    source.consumed = dict.fromkeys(range(1, count + 1), True)
    fetches.mint_transfer()
    out: list[Action] = []

    source.resume(fetches, out)

    sent = packets(out)
    told = [packet.message.consumed for packet in sent if isinstance(packet.message, Ack)]
    assert [len(part) for part in told] == [NOTICES_LIMIT, NOTICES_LIMIT, 1]
    assert [number for part in told for number in part] == list(range(1, count + 1))
    assert [packet.sequence for packet in sent] == [0, 1, 2]
    closing = Report(fetches.next_transfer, (), 0, ())
    assert [packet.report for packet in sent] == [closing._replace(low_water=0)] * 2 + [closing]
    assert source.reported == closing
    assert not source.owes(fetches)


def test_what_fits_is_told_in_one_message() -> None:
    source, fetches = Source("memory://1", "thinker"), Fetches()
    source.session = Session(OPEN, 7)
    source.consumed = dict.fromkeys(range(NOTICES_LIMIT), True)
    out: list[Action] = []

    source.resume(fetches, out)

    assert len(packets(out)) == 1


def test_a_log_that_skips_what_has_gone_is_reported() -> None:
    """The sender holds what it offered until it hears that its end is known."""
    source = Source("memory://1", "thinker")
    source.cursor, source.owed = 4, 0

    source.in_sync(4)
    assert source.owed == 0

    source.in_sync(6)
    assert (source.cursor, source.owed) == (6, 1)
