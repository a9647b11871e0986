"""How long anything may take, in seconds, checked together."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

from stagelink.core.errors import ConfigError

MIB_100 = 100 << 20
_LONG_S = 1e15


class TimeoutPolicy(NamedTuple):
    """Every duration of the protocol, in seconds.

    Attributes:
        transfer_base_s: how long a get waits unless told otherwise, whatever its size.
        transfer_per_100mib_s: with the former, how long a write of so much should take at most.
        query_s: silence after which a dialect asks anew; else a question is part of a get.
        ttl_s: how long a payload that nobody takes is kept.
        put_s: how long a put waits for room.
        suspect_grace_s: how long a cut connection may take to heal before waiting gets hear of it.
        successor_s: how long a get waits for the successor of a sender that is known to be gone.
        silence_s: after how long without a sign a ZeroMQ connection counts as cut.
        close_s: how long a close waits for transfers and views to end.
        settle_s: passes between the proof of a death and the reuse of memory.
        ack_delay_s: how long a report of what was consumed may wait for others to go with it.
        stuck_base_s: a started write breaks its plane after ten times what it should take at most,
            and never sooner than this.
        credit_idle_s: how long a block stays lent to a sender that writes into none.
        lease_warning_s: how long a payload may be held before the log names its holder.
    """

    transfer_base_s: float = 30.0
    transfer_per_100mib_s: float = 5.0
    query_s: float = 5.0
    ttl_s: float = 300.0
    put_s: float = 5.0
    suspect_grace_s: float = 0.5
    successor_s: float = 0.5
    silence_s: float = 10.0
    close_s: float = 2.0
    settle_s: float = 0.05
    ack_delay_s: float = 0.05
    stuck_base_s: float = 30.0
    credit_idle_s: float = 5.0
    lease_warning_s: float = 10.0

    @classmethod
    def checked(cls, **values: float) -> TimeoutPolicy:
        """A policy whose parts fit together.

        Raises:
            ConfigError: names the field, its value and what is wrong with it.
        """
        unknown = sorted(set(values) - set(cls._fields))
        if unknown:
            msg = f"unknown timeout {unknown[0]!r}"
            raise ConfigError(msg, remedy=f"known are {', '.join(cls._fields)}")
        policy = cls(**values)
        for name, value in policy._asdict().items():
            _check_duration(name, value)
        for shorter in ("transfer_base_s", "query_s", "put_s"):
            if getattr(policy, shorter) >= policy.ttl_s:
                msg = f"{shorter} is {getattr(policy, shorter)} s, ttl_s only {policy.ttl_s} s"
                raise ConfigError(msg, remedy="keep payloads longer than anybody waits for them")
        if policy.suspect_grace_s >= policy.silence_s:
            msg = f"suspect_grace_s {policy.suspect_grace_s} is not below silence_s"
            raise ConfigError(msg, remedy=f"keep it below {policy.silence_s} s")
        return policy

    def transfer_s(self, size: int) -> float:
        """How long a get of *size* bytes may take."""
        return self.transfer_base_s + self.transfer_per_100mib_s * size / MIB_100

    def stuck_write_s(self, size: int) -> float:
        """How long a started write of *size* bytes may take before its plane is broken."""
        return max(self.stuck_base_s, 10 * self.transfer_s(size))


def deadline(now_s: float, timeout_s: float) -> float:
    """The moment *timeout_s* from *now_s*; 0 means at once.

    Raises:
        ConfigError: not a number, negative, or not finite: every wait is bounded.
    """
    kind: type = type(timeout_s)
    if (kind is float or kind is int) and 0.0 <= timeout_s < _LONG_S:
        return now_s + timeout_s  # what follows takes longer, and would say the same
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
        msg = f"a timeout is a number of seconds, not {timeout_s!r}"
        raise ConfigError(msg, remedy="pass seconds, or None for the policy's default")
    if not _finite(timeout_s) or timeout_s < 0:
        msg = f"a timeout of {timeout_s} s is not a wait that ends"
        raise ConfigError(msg, remedy="pass finite seconds, 0 or more")
    return now_s + timeout_s


def _finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _check_duration(name: str, value: object) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not _finite(value) or value <= 0:  # type: ignore[arg-type, operator]
        msg = f"timeout {name} is {value!r}, not a positive number of seconds"
        raise ConfigError(msg, remedy="pass finite seconds above 0")
