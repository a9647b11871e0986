"""A receiver's conversation with one sender: dialling, greeting, numbering, reporting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.core.errors import Reason
from stagelink.core.events import Dial, Failure, Send
from stagelink.core.handshake.grants import GrantsIn
from stagelink.core.handshake.inbox import Inbox
from stagelink.core.handshake.session import (
    DECLINED,
    DIALING,
    GREETING,
    IDLE,
    OPEN,
    Session,
)  # fmt: skip
from stagelink.core.messages import Ack, Bye, Hello, Packet, Query, Report
from stagelink.core.streams import is_stream, stream_of
from stagelink.core.values import NO_INSTANCE, Instance, new

if TYPE_CHECKING:
    from stagelink.core.events import Action
    from stagelink.core.handshake.fetch import Fetches
    from stagelink.core.messages import ToSender
    from stagelink.core.settings import Settings

FLUSH_BYTES = 256 << 10
"""Consumed bytes that are reported at once: their memory is worth a message."""

FLUSH_CHANGES = 256
"""Changes of our books without a report; a quarter of the sender's window of records."""

NOTICES_LIMIT = 4096
"""Consumed generations that one message tells; the smallest frame has room for them."""

HELD_LIMIT = 8192
"""Relics that one report names; the smallest frame has room for them beside the notices."""

RECENT_KEYS = 1024
"""Ends of keys that are remembered, for gets that come later."""

DIED = "the sender is dead or closed"
LEFT = "the sender closed"

FINAL = frozenset({Reason.EXPIRED.value, Reason.WITHDRAWN.value})
"""Ends of a key that a get waiting for it hears of at once; the others may bring a successor."""


class Source:
    """What we know and owe of the sender at ``address``."""

    __slots__ = (
        "address", "attached", "consumed", "cursor", "detail", "fresh", "gone", "grants", "inbox",
        "met", "notices", "owed", "owed_bytes", "peer", "peer_name", "plane", "recent", "rejected",
        "reported", "session", "stage", "stalled", "synced",
    )  # fmt: skip

    def __init__(self, address: str, stage: str) -> None:
        self.address = address
        self.stage = stage
        self.session = Session()
        self.peer: Instance = NO_INSTANCE
        self.peer_name = ""
        self.attached: Instance = NO_INSTANCE
        self.met = False
        self.detail = "never connected"
        # What became of the sender that we knew, until another one or itself answers again.
        self.gone = ""
        self.plane = ""
        self.inbox = Inbox()
        self.grants = GrantsIn()
        self.cursor = 0
        self.synced = False
        self.fresh = False
        # Consumed generations until their Gone; the flag: announced again in a fresh log.
        self.consumed: dict[int, bool] = {}
        self.notices: list[int] = []
        self.owed_bytes = 0
        self.owed = 0
        self.reported: Report | None = None
        self.rejected: dict[str, None] = {}
        self.recent: dict[str, tuple[str, str]] = {}
        self.stalled: dict[str, None] = {}

    @property
    def open(self) -> bool:
        """Whether messages can be sent now."""
        return self.session.state == OPEN

    @property
    def label(self) -> str:
        """The sender's name for people, or its address until it has told its name."""
        return self.peer_name or self.address

    def report(self, fetches: Fetches) -> Report:
        """Our side of the books, as of now."""
        return Report(fetches.next_transfer, fetches.open_ids(self.peer), *self._known(fetches))

    def _known(self, fetches: Fetches) -> tuple[int, tuple[int, ...]]:
        """Up to where we know the log, and what has gone there that is still viewed.

        Of too many for one message we do not know yet that the last have gone: the sender keeps
        them, and tells no more of its log than its window allows, until others are let go.
        """
        held = fetches.relics(self.peer)
        if len(held) <= HELD_LIMIT:
            return self.cursor, held
        held, next_gone = fetches.first_relics(self.peer, HELD_LIMIT)
        return min(self.cursor, next_gone - 1), held

    def dial(self, out: list[Action]) -> None:
        """Keep a connection from now on."""
        if self.session.state == IDLE:
            self.session = Session(DIALING)
            out.append(Dial(self.address))

    def greet(self, number: int, settings: Settings, fetches: Fetches, out: list[Action]) -> None:
        """Begin conversation *number*, saying where the last one ended."""
        self.session = Session(GREETING, number)
        hello = Hello(
            number, settings.instance, settings.identity, self.stage, self.peer,
            self.report(fetches), settings.host, tuple(plane.card for plane in settings.planes),
            settings.codecs,
        )  # fmt: skip
        out.append(Send(self.address, hello))

    def cut(self, detail: str) -> None:
        """The connection is down; the channel dials again by itself."""
        if self.session.state != IDLE:
            self.session = Session(DIALING, self.session.number)
            self.detail = detail

    def decline(self, detail: str) -> None:
        """The sender will not talk to us."""
        self.session = Session(DECLINED, self.session.number)
        self.detail = detail

    def send(self, message: ToSender, fetches: Fetches, out: list[Action]) -> None:
        """Send *message*, or nothing while the conversation is down (resuming says it again).

        What was consumed is told first: a report that closes a transfer id gives its reader's
        slot back, so the count must not come after it.
        """
        if self.session.state != OPEN:
            return
        if self.notices and not isinstance(message, Ack):
            self.send(Ack(()), fetches, out)
        if isinstance(message, Ack):
            while len(self.notices) > NOTICES_LIMIT:
                # Closes no id: what the next one counts must keep its reader's slot until then.
                report = Report(0, (), *self._known(fetches))
                self._post(report, Ack(self._take_notices()), out)
            message = Ack(self._take_notices())
            self.owed_bytes = 0
        self.reported = self.report(fetches)
        self.owed = 0
        self._post(self.reported, message, out)

    def leave(self, fetches: Fetches, out: list[Action]) -> None:
        """Say goodbye, and what is still viewed."""
        viewed = fetches.viewed(self.peer)
        for start in range(0, max(1, len(viewed)), NOTICES_LIMIT):
            self.send(Bye(viewed[start : start + NOTICES_LIMIT]), fetches, out)

    def _post(self, report: Report, message: ToSender, out: list[Action]) -> None:
        state, number, sent, taken = self.session
        self.session = new(Session, (state, number, sent + 1, taken))
        out.append(new(Send, (self.address, new(Packet, (number, sent, report, message)))))

    def _take_notices(self) -> tuple[int, ...]:
        """As many notices as one message tells, oldest first."""
        taken = tuple(self.notices[:NOTICES_LIMIT])
        self.notices = self.notices[NOTICES_LIMIT:]
        return taken

    def resume(self, fetches: Fetches, out: list[Action]) -> None:
        """Say again what the last conversation may have lost: everything consumed."""
        self.notices = list(self.consumed)
        if self.notices:
            self.send(Ack(()), fetches, out)

    def owes(self, fetches: Fetches) -> bool:
        """Whether the sender's picture of our books is out of date."""
        return bool(self.notices) or self.reported != self.report(fetches)

    def consume(self, key: str, generation: int, size: int) -> None:
        """*generation* has been used; remember it until the log says that it is gone."""
        if key in self.inbox.by_key:
            self.inbox.drop(key, generation)
        self.consumed[generation] = True
        self.notices.append(generation)
        self.owed_bytes += size

    def remember(self, key: str, reason: str, detail: str) -> None:
        """The last payload of *key* has gone; the oldest such memories give way."""
        self.recent[key] = (reason, detail)
        if len(self.recent) > RECENT_KEYS:
            del self.recent[next(iter(self.recent))]

    def refusal(self, stage: str) -> Failure | None:
        """Why nothing can be had from here, asked for by the name *stage*."""
        if stage != self.stage:
            detail = f"the address is that of stage {self.stage!r}, not {stage!r}"
        elif self.session.state == DECLINED:
            detail = self.detail
        else:
            return None
        return Failure(Reason.DECLINED.value, detail, self.label)

    def known_end(self, key: str) -> tuple[str, str]:
        """Why *key* will not come, as far as the log has said so; else empty."""
        stream = stream_of(key)
        reason, detail = self.recent.get(stream or key, ("", ""))
        if reason in FINAL and not stream:
            return reason, detail
        if reason and stream and self.inbox.get(key) is None:
            return reason, detail  # a lost chunk ends its stream; what came before is still here
        return "", ""

    def ask_if_forgotten(self, key: str, fetches: Fetches, out: list[Action]) -> None:
        """Let *key* be announced again, should a full inbox have forgotten it."""
        if self.inbox.forgot and self.inbox.get(key) is None:
            self.send(Query(key), fetches, out)

    def forget_peer(self) -> None:
        """Another instance, or none: nothing that was known holds."""
        self.inbox.clear()
        self.cursor, self.synced, self.fresh = 0, False, False
        self.consumed.clear()
        self.notices, self.owed_bytes, self.reported = [], 0, None
        self.recent.clear()
        # A stream's name holds a generation, which means something else to another instance.
        self.rejected = {key: None for key in self.rejected if not is_stream(key)}
        self.peer, self.attached = NO_INSTANCE, NO_INSTANCE

    def cut_off(self) -> None:
        """Fenced: its log must begin anew; should it be alive, what we consumed still counts."""
        self.start_over()
        self.fresh, self.synced = False, False
        self.notices, self.owed_bytes, self.reported = [], 0, None
        self.attached = NO_INSTANCE

    def start_over(self) -> None:
        """The sender's log begins anew for us; what it does not repeat has gone."""
        self.inbox.clear()
        self.cursor, self.fresh = 0, True
        self.consumed = dict.fromkeys(self.consumed, False)

    def in_sync(self, number: int) -> None:
        """The replay is complete up to *number*."""
        if number > self.cursor:
            self.cursor = number
            self.owed += 1  # what the log no longer tells of has gone: the sender waits to hear it
        self.synced = True
        if self.fresh:
            self.consumed = {g: again for g, again in self.consumed.items() if again}
            self.fresh = False

    def freeze(self) -> tuple[object, ...]:
        """The state as nested tuples; ``detail`` and ``plane`` are for people and left out."""
        return (
            self.address, self.stage, self.session, self.peer, self.peer_name, self.attached,
            self.met, self.gone, self.inbox.freeze(), self.cursor, self.synced, self.fresh,
            tuple(self.consumed.items()), tuple(self.notices), self.owed_bytes, self.owed,
            self.reported, tuple(self.rejected), tuple(self.recent.items()), tuple(self.stalled),
            self.grants.freeze(),
        )  # fmt: skip

    @classmethod
    def thaw(cls, frozen: tuple[object, ...]) -> Source:
        """The source that froze to *frozen*."""
        state: Any = frozen
        address, stage, *rest = state
        source = cls(address, stage)
        (
            source.session, source.peer, source.peer_name, source.attached, source.met,
            source.gone, inbox, source.cursor, source.synced, source.fresh, consumed, notices,
            source.owed_bytes, source.owed, source.reported, rejected, recent, stalled, grants,
        ) = rest  # fmt: skip
        source.inbox = Inbox.thaw(inbox)
        source.consumed, source.notices = dict(consumed), list(notices)
        source.rejected, source.stalled = dict.fromkeys(rejected), dict.fromkeys(stalled)
        source.recent = dict(recent)
        source.grants = GrantsIn(*grants)
        return source
