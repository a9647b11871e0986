"""What an endpoint is told once, when it is made."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.handshake.watch import Patience

if TYPE_CHECKING:
    from stagelink.core.handshake.session import OwnPlane
    from stagelink.core.timeouts import TimeoutPolicy
    from stagelink.core.values import HostCard, Identity, Instance


class Settings(NamedTuple):
    """Who we are, which planes we have, and our limits.

    ``session_base`` starts the session numbers of this instance (they must not meet those of an
    earlier instance on the same link); ``max_writes`` bounds the writes posted at once;
    ``can_fence`` says that the planes can cut off a living peer, ``can_fence_far`` that those can
    that reach one on another host, whose death nobody proves; ``codecs`` are the compressors
    that we can undo; ``peer_share`` bounds what one peer may keep of the pool, 1 for no bound;
    ``credit_share`` is the part of it that is lent to senders, 0 for no credits either way.
    """

    instance: Instance
    identity: Identity
    host: HostCard
    planes: tuple[OwnPlane, ...]
    policy: TimeoutPolicy
    inline_bytes: int
    max_writes: int
    session_base: int
    can_fence: bool
    fence_after_s: float = 30.0
    codecs: tuple[str, ...] = ()
    peer_share: float = 1.0
    credit_share: float = 0.0
    can_fence_far: bool = False

    @property
    def patience(self) -> Patience:
        """How long a silent peer is waited for."""
        near = self.fence_after_s if self.can_fence else inf
        far = self.fence_after_s if self.can_fence or self.can_fence_far else inf
        return Patience(self.policy.suspect_grace_s, self.policy.settle_s, near, far)

    def is_far(self, host: HostCard) -> bool:
        """Whether a peer is on another host than we are."""
        return host.host != self.host.host

    def proof_of(self, host: HostCard) -> str:
        """What to ask the kernel about a peer: ours knows nothing of one that is far.

        There its proof is missing, which would read as its death.
        """
        return "" if self.is_far(host) else host.proof
