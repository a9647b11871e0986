"""What every call of a connector goes through: is it usable here, how long, whose failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.errors import (
    ClosedError,
    ConfigError,
    Context,
    ForkedError,
    Reason,
    StagelinkError,
)  # fmt: skip
from stagelink.core.timeouts import deadline

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from stagelink.adapters.threads import Driver
    from stagelink.config import Config
    from stagelink.core.events import Event, Result


_LATEST_S = 1e18
"""Beyond any clock; no comparison with it is true of a number that is none."""


class Calls:
    """The way from a method of the face to the core, and its answer back."""

    __slots__ = ("_receives", "_sends", "driver", "policy", "stage")

    def __init__(self, config: Config, driver: Driver) -> None:
        self.driver = driver
        self.stage = config.stage
        self.policy = driver.parts.endpoint.settings.policy
        self._sends = config.role != "receiver"
        self._receives = config.role != "sender"

    def ask(self, command: Event) -> Result:
        """Hand in *command* under a new ticket and wait for the answer, which the core bounds."""
        ticket = self.driver.tickets.new()
        return self.driver.call(command._replace(ticket=ticket.number), ticket)  # type: ignore[call-arg]

    def tell(self, command: Event) -> Result:
        """Hand in a command with ticket 0, which the core answers at once."""
        return self.driver.submit(command)

    def check_usable(self, *, sends: bool = False, receives: bool = False) -> None:
        """Whether a connector of this role may be called, here and now.

        Raises:
            ForkedError: it belongs to the parent process.
            ClosedError: it is closed.
            ConfigError: its role does not do that.
        """
        driver = self.driver
        if driver.forked:
            self.check_process()
        if driver.closed:
            msg = f"the connector of stage {self.stage!r} is closed"
            raise ClosedError(msg, reason=Reason.CLOSED, remedy="open a new one")
        if driver.torn:
            msg = f"the connector of stage {self.stage!r} was interrupted in the middle of a step"
            raise ClosedError(msg, reason=Reason.CLOSED, remedy="close it, and open a new one")
        if sends and not self._sends:
            msg = f"the connector of stage {self.stage!r} only receives"
            raise ConfigError(msg, remedy="open it with role='peer' to put as well")
        if receives and not self._receives:
            msg = f"the connector of stage {self.stage!r} only sends"
            raise ConfigError(msg, remedy="open it with role='peer' to get as well")

    def check_process(self) -> None:
        """Whether this is the process that opened the connector.

        Raises:
            ForkedError: it is a child of that.
        """
        if self.driver.forked:
            msg = f"this connector of stage {self.stage!r} belongs to the parent process"
            raise ForkedError(msg, remedy="open a connector of its own in the child")

    def seconds(self, value: float | None, default: float) -> float:
        """A wait that ends: *value*, or the *default* for None.

        Raises:
            ConfigError: it is no finite number from 0.
        """
        try:
            return default if value is None else deadline(0.0, value)
        except OverflowError:
            msg = "an integer too large for a float is not a wait that ends"
            raise ConfigError(msg, remedy="pass finite seconds, 0 or more") from None

    def until(self, timeout: float | None, deadline_s: float | None, default: float) -> float:
        """When a wait ends, in seconds of ``time.monotonic()``: given as either, or by *default*.

        Raises:
            ConfigError: both are given, or one is no finite number.
        """
        now_s = self.driver.clock()
        if deadline_s is None:
            return now_s + default if timeout is None else deadline(now_s, timeout)
        if timeout is not None:
            msg = f"timeout {timeout!r} and deadline {deadline_s!r} are both given"
            raise ConfigError(msg, remedy="pass one of them")
        number: object = deadline_s
        if (
            isinstance(number, bool)
            or not isinstance(number, (int, float))
            or not -_LATEST_S < number < _LATEST_S
        ):
            msg = f"deadline {deadline_s!r} is no moment of time.monotonic()"
            raise ConfigError(msg, remedy="pass time.monotonic() + seconds")
        return max(now_s, deadline_s)

    def accounted(self, key: str, from_stage: str, to_stage: str) -> Accounted:
        """Count what fails in the ``with``, and complete its error."""
        return Accounted(self.driver, key, from_stage, to_stage)


class Accounted:
    """Counts a call that fails by its cause, and gives its error key, edge and seconds.

    Attributes:
        from_stage: the stage that puts.
        start_s: when it began, by the driver's clock.
    """

    __slots__ = ("_driver", "_key", "_to", "from_stage", "start_s")

    def __init__(self, driver: Driver, key: str, from_stage: str, to_stage: str) -> None:
        self._driver = driver
        self._key, self.from_stage, self._to = key, from_stage, to_stage
        self.start_s = driver.clock()

    @property
    def context(self) -> Context:
        """Of an error of this call, as far as it is known before it ends."""
        return Context(key=self._key, edge=f"{self.from_stage}->{self._to}")

    @property
    def elapsed_s(self) -> float:
        """Seconds since the call began."""
        return self._driver.clock() - self.start_s

    def __enter__(self) -> Self:
        """Begin the call."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the call."""
        if isinstance(error, StagelinkError):
            self.failed(error)

    def failed(self, error: StagelinkError) -> None:
        """Count and complete *error*, which ends the call without having been raised in it."""
        known = {name: value for name, value in error.context._asdict().items() if value}
        elapsed_s = self._driver.clock() - self.start_s
        merged = {**self.context._asdict(), **known, "elapsed_s": elapsed_s}
        error.context = Context(**merged)
        cause = error.cause
        self._driver.counters.failed(cause, str(error.context.edge))
        self._tell(error, cause)

    def _tell(self, error: StagelinkError, cause: str) -> None:
        """The error is raised anyway: only what others should look at is more than debugging."""
        log, (key, edge, peer, transfer, elapsed_s) = self._driver.log, error.context
        if error.reason is Reason.NO_ROOM:
            log.warning(
                "pool_exhausted", key=key, edge=edge, elapsed_s=elapsed_s, cause=error.message,
                remedy=error.remedy,
            )  # fmt: skip
        log.debug(
            "call_failed", key=key, edge=edge, peer=peer, transfer_id=transfer, cause=cause,
            elapsed_s=elapsed_s, detail=error.message, remedy=error.remedy,
        )  # fmt: skip
