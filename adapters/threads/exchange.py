"""What goes over the channel: the outbox in order, and what has arrived."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from stagelink.adapters.threads.inspections import Inspections
from stagelink.core.errors import ProtocolViolationError, StagelinkError
from stagelink.core.events import Connected, Dial, Disconnected, HangUp, Received, Send
from stagelink.core.messages import Declined, Figures, Inspect, Packet
from stagelink.core.values import new
from stagelink.ports.channel import REFUSALS, LinkDown, LinkUp, Mail

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.threads.narrator import Narrator
    from stagelink.adapters.threads.tickets import Ticket
    from stagelink.core.events import Event
    from stagelink.core.messages import Aside
    from stagelink.core.values import Link
    from stagelink.ports.channel import Arrival, ControlChannel, PeerRefused
    from stagelink.ports.codec import Codec


REMEDIES = {
    "unknown_key": "if it is one of ours, copy its public key file here and open this side again",
    "wrong_server_key": "if it is one of ours, give it our public key file",
    "wrong_mechanism": "if it is one of ours, open both sides with the same security=",
}
MOST_STALLED = 4096
"""Messages that wait for one link to have room: four times what a window of the log lets out."""

MOST_STALLED_BYTES = 64 << 20

RECEIVING = LinkUp("")
"""In hand while the channel is asked: something may have left it and not have come."""


class Backlog:
    """Messages that one link had no room for, in order."""

    __slots__ = ("messages", "size")

    def __init__(self) -> None:
        self.messages: deque[list[bytes]] = deque()
        self.size = 0

    def add(self, frames: list[bytes]) -> bool:
        """Queue one more; False when there are too many already."""
        if len(self.messages) >= MOST_STALLED or self.size >= MOST_STALLED_BYTES:
            return False
        self.messages.append(frames)
        self.size += sum(map(len, frames))
        return True

    def pop(self) -> None:
        """The first one has been sent."""
        self.size -= sum(map(len, self.messages.popleft()))


class Exchange:
    """One channel, used by one thread at a time: its caller holds the lock for it.

    ``feed`` takes what arrived; ``note`` keeps news for later, when no call is under way.
    ``undrained`` says that something was left unread, of which no descriptor tells any more;
    ``overflowed`` counts messages for links that take too little; ``in_hand`` is what has been
    received and not handed on, or :data:`RECEIVING`.
    """

    def __init__(
        self,
        channel: ControlChannel,
        codec: Codec,
        feed: Callable[[Event], object],
        note: Callable[[Event], object],
        *,
        narrator: Narrator,
        clock: Callable[[], float],
    ) -> None:
        self._channel = channel
        self._codec = codec
        self._feed = feed
        self._note = note
        self._narrator = narrator
        self._log = narrator.log
        self._closed = False
        self.outbox: deque[Send | Dial | HangUp] = deque()
        self.stalled: dict[Link, Backlog] = {}
        self.malformed = 0
        self.peers_refused = dict.fromkeys(REFUSALS, 0)
        self.overflowed = 0
        self.undrained = False
        self.in_hand: Arrival | None = None
        self.inspections = Inspections(clock)

    def run(self, ticket: Ticket | None, look: bool) -> None:
        """Send what waits and take what has arrived, until *ticket* is answered.

        Without *look* only what sending may have hidden is read: others watch the descriptor.
        What an interruption kept from being handed on the next run hands on; heard twice it does
        no harm.
        """
        if self._closed:
            self.outbox.clear()
            return
        if self.outbox or self.stalled:
            self._flush()
        if self.in_hand is not None:
            self._arrived(self.in_hand)
        self.in_hand = RECEIVING
        receive = self._channel.receive
        while (arrival := receive(look)) is not None:
            self.in_hand = arrival
            self._arrived(arrival)
            if self.outbox:
                self._flush()
            if ticket is not None and ticket.done:
                self.undrained, self.in_hand = True, None
                return
            self.in_hand = RECEIVING
        self.in_hand = None
        if look:
            self.undrained = False

    def broken_off(self, error: BaseException, lost: Callable[[], object]) -> None:
        """A run ended with *error*; *lost* is called if what was received may be lost by that.

        What an error came of is not handed on again: its caller tells of it, once.
        """
        if isinstance(error, Exception):
            self.in_hand = None
        elif self.in_hand is RECEIVING:
            self.in_hand = None
            lost()

    def close(self) -> None:
        """Close the channel; what is handed in later is dropped."""
        self._closed = True
        self._channel.close()

    def _flush(self) -> None:
        """Perform the outbox in order: peek, perform, pop, so that nothing is ever lost."""
        outbox, stalled = self.outbox, self.stalled
        if stalled:
            self._retry()
        while outbox:
            action = outbox[0]
            if isinstance(action, Send):
                link, message = action
                try:
                    frames = self._codec.encode(message)
                except Exception as error:  # noqa: BLE001 - told with its traceback; the rest goes on
                    cause = f"{type(error).__name__}: {error}"
                    self._log.error("message_dropped", link=link, cause=cause, exc_info=True)
                else:
                    if (stalled and link in stalled) or not self._channel.send(link, frames):
                        self._stall(link, frames)
            else:
                self._link(action)
            outbox.popleft()

    def _stall(self, link: Link, frames: list[bytes]) -> None:
        """Keep a message for later; of who asks for more than it reads, the rest is dropped.

        That is a gap in its conversation, which then begins anew.
        """
        backlog = self.stalled.setdefault(link, Backlog())
        if not backlog.add(frames):
            self.overflowed += 1
            self._log.warning("messages_dropped", link=link, count=self.overflowed)

    def _link(self, action: Dial | HangUp) -> None:
        """Hang up, or dial: an address that cannot be dialled is a peer that cannot be reached."""
        link = action.link
        if isinstance(action, HangUp):
            self.stalled.pop(link, None)
            self._channel.hang_up(link)
            return
        try:
            self._channel.dial(link)
        except StagelinkError as error:
            self._log.warning("dial_failed", link=link, cause=str(error))
            self._note(Disconnected(link, str(error)))

    def _retry(self) -> None:
        for link, waiting in list(self.stalled.items()):
            messages = waiting.messages
            while messages and self._channel.send(link, messages[0]):
                waiting.pop()
            if not messages:
                del self.stalled[link]

    def _arrived(self, arrival: Arrival) -> None:
        link = arrival.link
        if isinstance(arrival, Mail):
            try:
                message = self._codec.decode(arrival.frames)
            except ProtocolViolationError as error:
                self._reject(link, error)
                return
            if type(message) is Packet:
                self._feed(new(Received, (link, message)))
            elif isinstance(message, (Inspect, Figures)):
                self._show(link, message)
            else:
                self._feed(Received(link, message))
                if isinstance(
                    message, Declined
                ):  # greeted again in a second: a glance may miss it
                    self._narrator.soon()
        elif isinstance(arrival, LinkUp):
            self._feed(Connected(link))
            self._narrator.soon()
        elif isinstance(arrival, LinkDown):
            self.stalled.pop(link, None)
            self._feed(Disconnected(link, arrival.detail, arrival.refused))
            self._narrator.soon()
        else:
            self._turned_away(arrival)

    def _turned_away(self, who: PeerRefused) -> None:
        """Count a peer that was not let in; a port that was only looked at is no news."""
        count = self.peers_refused[who.cause] = self.peers_refused.get(who.cause, 0) + 1
        if who.cause != "broken_off":
            self._log.warning(
                "peer_refused", peer=who.link, cause=who.cause, detail=who.detail, count=count,
                remedy=REMEDIES.get(who.cause),
            )  # fmt: skip

    def _show(self, link: Link, message: Aside) -> None:
        """Answer somebody who looks at us from outside; the core never hears of it."""
        answer = self.inspections.answer(message)
        if answer is not None:
            self._channel.send(link, self._codec.encode(answer))

    def _reject(self, link: Link, error: ProtocolViolationError) -> None:
        """Garbage costs its sender a counter; a greeting of another version gets an answer."""
        self.malformed += 1
        answer = getattr(error, "answer", None)
        if answer is not None:
            self._channel.send(link, self._codec.encode(answer))
        self._log.warning("frames_refused", link=link, cause=str(error), count=self.malformed)
