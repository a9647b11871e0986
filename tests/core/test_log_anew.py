"""A log that begins anew while a payload of it is being viewed."""

from __future__ import annotations

from stagelink.core.endpoint import Endpoint
from stagelink.core.events import (
    Action,
    Attach,
    Attached,
    Complete,
    Connected,
    Delivery,
    Disconnected,
    Get,
    Publish,
    Received,
    Release,
    Reserve,
    Send,
    TimePassed,
    Withdraw,
)  # fmt: skip
from stagelink.core.handshake.session import OwnPlane
from stagelink.core.messages import Packet, Synced
from stagelink.core.pool import Block, Pool
from stagelink.core.settings import Settings
from stagelink.core.timeouts import TimeoutPolicy
from stagelink.core.values import HostCard, Identity, PlaneCard


def endpoint(stage: str) -> Endpoint:
    settings = Settings(
        instance=stage.encode().ljust(16, b"."),
        identity=Identity(stage),
        host=HostCard("host", stage),
        planes=(OwnPlane(PlaneCard("shm", "map", b""), crosses_hosts=False),),
        policy=TimeoutPolicy(),
        inline_bytes=0,
        max_writes=1,
        session_base=0,
        can_fence=False,
    )
    return Endpoint(settings, Pool(8 * 4096, pool_id=1))


def put(sender: Endpoint, key: str) -> None:
    [room] = sender.handle(Reserve(1, 10, 1.0), 0.0)
    assert isinstance(room, Complete)
    assert isinstance(room.result, Block)
    sender.handle(Publish(2, "reader", key, 10, room.result, b"", "", 1, 300.0, False), 0.0)


class Pair:
    """A sender and a receiver; what completes at the receiver is in ``answers``."""

    def __init__(self) -> None:
        self.sender, self.reader = endpoint("sender"), endpoint("reader")
        self.answers: list[object] = []
        self.link = 0
        self.lost: type | None = None

    def connect(self) -> None:
        """A new connection, over which all is said that there is to say."""
        self.link += 1
        self.told(self.reader.handle(Connected("address"), 0.0))

    def told(self, actions: list[Action]) -> None:
        """Carry out what the receiver orders."""
        for action in actions:
            if isinstance(action, Send):
                event = Received(f"link {self.link}", action.message)
                self.answered(self.sender.handle(event, 0.0))
            elif isinstance(action, Attach):
                self.told(self.reader.handle(Attached(*action[:3], ""), 0.0))
            elif isinstance(action, Complete):
                self.answers.append(action.result)

    def answered(self, actions: list[Action]) -> None:
        """Carry what the sender says, but for a message of the kind that is ``lost``."""
        for action in actions:
            if isinstance(action, Send):
                message = action.message
                if isinstance(message, Packet) and type(message.message) is self.lost:
                    return
                self.told(self.reader.handle(Received("address", message), 0.0))


def test_a_view_kept_while_the_log_begins_anew_is_counted_when_it_ends() -> None:
    """The connection is cut in the midst of the first replay, which begins behind a gap."""
    pair = Pair()
    put(pair.sender, "k")
    put(pair.sender, "other")
    pair.sender.handle(Withdraw(3, "reader", "other"), 0.0)
    pair.lost = Synced
    get = Get(1, "address", "sender", "k", 0, 100.0)
    pair.told(pair.reader.handle(get, 0.0))
    pair.connect()
    [delivery] = pair.answers
    assert isinstance(delivery, Delivery)

    pair.lost = None
    pair.sender.handle(Disconnected("link 1", "cut"), 0.0)
    pair.reader.handle(Disconnected("address", "cut"), 0.0)
    pair.connect()
    pair.told(pair.reader.handle(Release(delivery.handle), 0.0))
    pair.told(pair.reader.handle(get._replace(ticket=4), 0.0))
    pair.told(pair.reader.handle(TimePassed(), 1.0))

    assert pair.answers == [delivery]
    assert not pair.sender.outgoing.ledgers["reader"].entries
    assert pair.sender.pool.stats().blocks == 0
