"""The control channel over ZeroMQ: one ROUTER that others dial, one DEALER per dialled address."""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import zmq

from stagelink.adapters.zmq.address import (
    check_dial,
    check_ipc_is_free,
    tcp_url,
    where_to_bind,
)  # fmt: skip
from stagelink.adapters.zmq.dialled import Dialled
from stagelink.adapters.zmq.forked import close_copies, let_go_in_children
from stagelink.adapters.zmq.listener import Listener
from stagelink.adapters.zmq.readiness import Readiness
from stagelink.adapters.zmq.redial import Redialler
from stagelink.adapters.zmq.sockets import LAST_WORDS_MS, Limits, translating_errors
from stagelink.core.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from stagelink.adapters.zmq.keyring import Keyring
    from stagelink.adapters.zmq.sockets import Context
    from stagelink.core.values import Link
    from stagelink.ports.channel import Arrival

EAGER_LIMIT = 64 * 1024
MAX_SOCKETS = 8192

LEAVING_S = 0.005
"""Before a close, for in spite of its linger ZeroMQ may lose what it was given just now."""


class ZmqChannel:
    """A :class:`stagelink.ports.ControlChannel` over TCP or local sockets.

    What it guarantees about order: a ``LinkUp`` comes before all mail of the connection it tells
    of. Mail of an earlier connection that was still unread may come after its ``LinkDown``, even
    after the next ``LinkUp``. An accepted link's unread mail may follow its ``LinkDown`` too; then
    another ``LinkDown`` follows. A message has 1 to 4 frames; the message of one zero byte is the
    channel's own. ``dropped`` counts messages with more frames and handshakes that were no
    ZeroMQ; a frame above *max_frame_bytes* ends its sender's connection instead.

    Args:
        host: the address or name to bind; None binds nothing.
        port: the port to bind; 0 takes a free one.
        ipc: a path or ``ipc://`` URL to bind instead.
        advertise: the host that ``address`` shows in place of *host*.
        allow_wildcard: let *host* be every interface; needs *advertise*.
        bind: False leaves binding to :meth:`bind`.
        max_frame_bytes: the largest frame taken from anybody.
        high_water_mark: messages queued per connection and direction, on each side.
        heartbeat_interval_s: ZeroMQ's own heartbeats, answered without the interpreter.
        heartbeat_timeout_s: silence after which a connection counts as ended.
        reconnect_min_s: the first pause before dialling again; it doubles each time
        reconnect_max_s: up to this one.
        max_links: accepted links remembered; beyond, the oldest idle one is given up.
        keyring: encrypt with CURVE, let in whom it knows and trust whom it expects; None: neither.

    Raises:
        ConfigError: it cannot be bound so; nothing is left open.
    """

    def __init__(
        self,
        host: str | None = None,
        port: int = 0,
        *,
        ipc: str | None = None,
        advertise: str | None = None,
        allow_wildcard: bool = False,
        bind: bool = True,
        max_frame_bytes: int = EAGER_LIMIT + 128 * 1024,
        high_water_mark: int = 2048,
        heartbeat_interval_s: float = 2.0,
        heartbeat_timeout_s: float = 6.0,
        reconnect_min_s: float = 0.02,
        reconnect_max_s: float = 1.0,
        max_links: int = 4096,
        keyring: Keyring | None = None,
    ) -> None:
        self.dropped, self._closed = 0, True
        self._url, self._shown = where_to_bind(
            host, port, ipc, advertise, allow_wildcard=allow_wildcard
        )
        self._limits = Limits(
            max_frame_bytes, high_water_mark, heartbeat_interval_s, heartbeat_timeout_s,
            reconnect_min_s, reconnect_max_s, max_links,
        )  # fmt: skip
        self._keyring = keyring
        self._pid, self._address = os.getpid(), ""
        self._ready: deque[Arrival] = deque()
        self._sources = Readiness()
        self._dialled: dict[Link, Dialled] = {}
        self._ever_dialled: dict[str, None] = {}
        self._listener: Listener | None = None
        self._context: Context = zmq.Context(1)
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._redialler = Redialler(reconnect_max_s, self._sources.hear)
        self._sources.register(self._redialler.timer.fileno(), self._redialler.redial)
        self._closed = False
        let_go_in_children(self)
        if bind:
            try:
                self.bind()
            except BaseException:
                self.close()
                raise

    @property
    def address(self) -> str:
        """Where others dial us, never a wildcard; empty when not bound."""
        return self._address

    def bind(self) -> None:
        """Listen, if the constructor was told where; twice is once.

        Raises:
            ConfigError: the address is taken or not ours; the channel is as before.
            ClosedError: the channel is closed.
        """
        self._require_open()
        if self._listener is not None or not self._url:
            return
        if self._url.startswith("ipc://"):
            check_ipc_is_free(self._url)
        with translating_errors(f"cannot listen at {self._url}"):
            listener = Listener(
                self._context, self._url, self._limits, self._ready.append, self._drop,
                keyring=self._keyring,
            )  # fmt: skip
        self._listener = listener
        shown, bound = self._shown, listener.bound
        self._address = tcp_url(shown, bound.rpartition(":")[2]) if shown else bound
        if self._keyring is not None:
            self._keyring.we_are_at(self._address)
        sources = self._sources
        sources.watch(listener)
        sources.register(
            listener.timer.fileno(), partial(sources.hear, listener, listener.on_timer)
        )

    def check(self, address: str) -> None:
        """Look at an address without dialling it.

        Raises:
            ConfigError: *address* is neither ``tcp://host:port`` nor ``ipc:///path``, or it is
                not known whose key to expect there.
        """
        check_dial(address)
        if self._keyring is not None:
            self._keyring.key_for(address)

    def dial(self, address: str) -> None:
        """Keep a connection to *address*; the link is named by the address. Twice is once.

        Raises:
            ConfigError: as :meth:`check`.
            TransportError: the process may not open more sockets.
            ClosedError: the channel is closed.
        """
        self._require_open()
        if address in self._dialled:
            return
        ipv6 = check_dial(address)
        with translating_errors(f"cannot dial {address}"):
            dialled = Dialled(
                self._context, address, self._limits, self._ready.append, self._drop,
                broken=self._redialler.later, ipv6=ipv6, keyring=self._keyring,
            )  # fmt: skip
        self._dialled[address] = dialled
        self._ever_dialled[address] = None
        if len(self._ever_dialled) > MAX_SOCKETS:  # those of long ago have ended
            del self._ever_dialled[next(iter(self._ever_dialled))]
        self._sources.watch(dialled)

    def hang_up(self, link: Link) -> None:
        """Close a dialled link, dropping what is queued on it. Unknown links are ignored."""
        dialled = self._dialled.pop(link, None)
        if dialled is None:
            return
        self._sources.forget(dialled)
        self._redialler.forget(dialled)
        kept = [arrival for arrival in self._ready if arrival.link != link]
        self._ready.clear()  # the same deque: others append to it
        self._ready.extend(kept)
        dialled.close(0)

    def send(self, link: Link, frames: Sequence[bytes]) -> bool:
        """Queue *frames*, copied, as one message; False when *link*'s queue is full now.

        A link that is down or unknown takes the message and forgets it.

        Raises:
            TransportError: ZeroMQ itself failed.
        """
        dialled = self._dialled.get(link)
        if dialled is not None:
            if not dialled.hot:
                self._sources.heat(dialled)
            return dialled.send(frames)
        listener = self._listener
        if listener is None:
            return True
        if not listener.hot:
            self._sources.heat(listener)
        return listener.send(link, frames)

    def receive(self, look: bool = True) -> Arrival | None:
        """The next arrival, in turn from all sockets, or None when there is none now.

        Without *look* only sockets are read whose wake-up a send may have swallowed.
        """
        ready, sources = self._ready, self._sources
        if self._closed:
            return None
        while not ready:
            # First, so that the news of a connection goes before the mail that came on it.
            woken = look and sources.look()
            mail = sources.take()
            if mail is not None:
                if not ready or mail.link not in self._dialled:
                    return mail
                ready.append(mail)
            elif not woken and not sources.hot and not ready:
                return None
        return ready.popleft()

    def fileno(self) -> int:
        """The epoll set of all sockets and monitors; the same from start to close, then -1."""
        return -1 if self._closed else self._sources.fileno()

    def close(self) -> None:
        """Close every socket; what was sent last has a moment to leave (a peer counts on it).

        Bounded by that moment. Twice is fine, and in a forked child it does nothing.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        if self._dialled or self._listener is not None:
            time.sleep(LEAVING_S)
        if self._listener is not None:
            self._listener.close()
        for dialled in self._dialled.values():
            dialled.close()
        self._redialler.close()
        self._dialled.clear()
        self._listener = None
        self._ready.clear()
        self._sources.close()
        self._context.destroy(linger=LAST_WORDS_MS)

    def let_go(self) -> None:
        """Close our copies of the connections, as a forked child does.

        Else its parent's death would not be heard, nor its port be free, while it lives. ZeroMQ
        ends a connection some time after it was hung up, so those count too.
        """
        if not self._closed:
            close_copies(self._listener.bound if self._listener else "", self._ever_dialled)

    def __enter__(self) -> ZmqChannel:  # noqa: PYI034 - typing has no Self in 3.10
        """The channel itself; leaving closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Warn when nobody has closed it."""
        if not self._closed and os.getpid() == self._pid:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    # --- inside ------------------------------------------------------------------------------

    def _drop(self) -> None:
        self.dropped += 1

    def _require_open(self) -> None:
        if self._closed:
            msg = "the control channel is closed"
            raise ClosedError(msg)
