"""Where adapters and the face tell people what happened."""

from __future__ import annotations

from typing import Protocol


class EventLog(Protocol):
    """Events with a constant name and fields, by level. Any thread may call it.

    Names and fields are listed in ``docs/reference/events.md``; fields that errors have too
    (``key``, ``edge``, ``peer``, ``transfer_id``, ``elapsed_s``, ``cause``, ``remedy``) have the
    same names here. Warnings and errors may be told less often than they happen, with a count.
    """

    def debug(self, event: str, /, **fields: object) -> None:
        """Of interest to somebody who looks for a mistake."""
        ...

    def info(self, event: str, /, **fields: object) -> None:
        """A change that needs nobody to act; not one for each call."""
        ...

    def warning(self, event: str, /, **fields: object) -> None:
        """Something was lost, or will be if it goes on."""
        ...

    def error(self, event: str, /, **fields: object) -> None:
        """Something of ours, or a plugin's, is broken."""
        ...
