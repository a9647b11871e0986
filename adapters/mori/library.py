"""The one door to ``mori.io``, and the parts of it that are used, as types.

Everything about Mori's behaviour said in this package was observed with amd-mori 1.2.4.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Protocol

from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

INSTALL = "pip install 'stagelink[mori]' (amd-mori and torch), beside AMD's ROCm runtime"
DISTRIBUTION = "amd-mori"


class StatusCode(Protocol):
    """``mori.io.StatusCode``."""

    name: str


class Status(Protocol):
    """``mori.cpp.TransferStatus``: written by the engine until it has ended, so kept till then."""

    def Wait(self) -> None:  # noqa: N802 - theirs
        """Return when it has ended; other threads run meanwhile."""
        ...

    def Succeeded(self) -> bool:  # noqa: N802 - theirs
        """Whether it has ended well."""
        ...

    def Code(self) -> StatusCode:  # noqa: N802 - theirs
        """How it has ended."""
        ...

    def Message(self) -> str:  # noqa: N802 - theirs
        """Why."""
        ...

    def Update(self, code: StatusCode, message: str) -> None:  # noqa: N802 - theirs
        """Have it end so; who waits for it is told."""
        ...


class Session(Protocol):
    """``mori.io.IOEngineSession``: a pair of registered memories; offsets are unchecked."""

    def allocate_transfer_uid(self) -> int:
        """A number that the transfer is known by."""
        ...

    def write(self, mine: int, theirs: int, size: int, uid: int) -> Status:
        """Begin one write."""
        ...

    def batch_write(
        self, mine: Sequence[int], theirs: Sequence[int], sizes: Sequence[int], uid: int
    ) -> Status:
        """Begin several; lengths that differ abort the process."""
        ...


def load() -> Any:  # noqa: ANN401 - Mori has no types of its own
    """The module ``mori.io``.

    Raises:
        ConfigError: it is not installed, or something that it needs is missing.
    """
    try:
        return import_module("mori.io")
    except (ImportError, OSError) as error:
        msg = f"Mori cannot be loaded: {error}"
        raise ConfigError(msg, remedy=INSTALL) from error


def installed() -> str:
    """The version of Mori that is installed; empty if there is none."""
    for name in (DISTRIBUTION, "mori"):
        try:
            return version(name)
        except PackageNotFoundError:  # noqa: PERF203 - two names
            continue
    return ""


def outcome(status: Status) -> str:
    """How a transfer has ended: empty if well, else Mori's code and message."""
    if status.Succeeded():
        return ""
    return f"Mori: {status.Code().name}: {status.Message() or 'no message'}"
