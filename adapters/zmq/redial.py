"""Dials again where ZeroMQ has given up, as it does after a handshake that cannot succeed.

Whoever is there may be replaced by somebody who does let us in, and nobody else would notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.adapters.zmq.timer import Timer

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.adapters.zmq.dialled import Dialled


class Redialler:
    """Those to dial again; its ``timer`` turns readable then.

    Args:
        after_s: seconds to wait.
        hear: performs what may swallow the wake-ups of a socket.
    """

    def __init__(
        self, after_s: float, hear: Callable[[Dialled, Callable[[], None]], None]
    ) -> None:
        self.timer = Timer()
        self._after_s = after_s
        self._hear = hear
        self._stopped: set[Dialled] = set()

    def later(self, dialled: Dialled) -> None:
        """Dial *dialled* again in a while, unless it is forgotten."""
        self._stopped.add(dialled)
        self.timer.arm(self._after_s)

    def forget(self, dialled: Dialled) -> None:
        """Leave *dialled* alone; an unknown one is fine."""
        self._stopped.discard(dialled)

    def redial(self) -> None:
        """Dial them now."""
        self.timer.clear()
        for dialled in self._stopped:
            self._hear(dialled, dialled.redial)
        self._stopped.clear()

    def close(self) -> None:
        """Dial nobody any more. Twice is fine."""
        self._stopped.clear()
        self.timer.close()
