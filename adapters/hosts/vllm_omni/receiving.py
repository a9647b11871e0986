"""The receiving half: dials senders as it is told of them, and looks for keys there."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink import ClosedError, ConfigError, ForkedError, GoneError, PeerError, StagelinkError
from stagelink.adapters.hosts.vllm_omni import places
from stagelink.adapters.hosts.vllm_omni.names import PLAIN, named
from stagelink.adapters.hosts.vllm_omni.opening import Openings
from stagelink.adapters.hosts.vllm_omni.shared import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink import Payload, Upstream
    from stagelink.adapters.hosts.vllm_omni.options import Options
    from stagelink.adapters.hosts.vllm_omni.shared import Registry, Shared
    from stagelink.adapters.hosts.vllm_omni.telling import Teller

REST_S = 0.05
"""How long a sender that is gone, or a key that has ended, is not asked for again."""

UNMET_S = 5.0
"""How long a sender is looked for before the log says that it has not been met."""

OPENING_LOOK_S = 0.002
"""How often it is looked whether a connector that is being opened stands."""

OPENING_REST_S = 1.0
"""How long until a connector that could not be opened is tried again."""

UNUSED_BYTES = 1 << 20
"""The pool of who gets by mapping the sender's: nothing comes into it."""

MAPS = ("shm", "auto")
"""Backends with which the peers of one host map each other, if their pools are the host's."""

_MOST_ROUTES = 4096
_MOST_ENDED = 4096

Way = tuple[str, str, object, object]
"""From which stage to which, and the host and port that came with the key, if any."""


class Route(NamedTuple):
    """A sender, and since when we have known of it."""

    upstream: Upstream
    since_s: float


class Receiving:
    """Gets, each by the connector of the stage that it is for, from the sender that is named."""

    def __init__(
        self, options: Options, teller: Teller, registry: Registry = REGISTRY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._options = options
        self._teller = teller
        self._clock = clock
        self._lock = threading.Lock()
        self._openings = Openings(registry)
        self._polls: dict[Way, Callable[[str], Payload | None]] = {}
        self._routes: dict[Way, Route] = {}
        self._resting: dict[object, float] = {}
        self._asked: dict[str, Route] = {}
        self.sender_host = options.sender_host
        self.sender_port = options.sender_port

    def update(self, host: str, port: int | None) -> None:
        """Get from there from now on, unless a key comes with a place of its own."""
        told = str(host or ""), _number(port)
        if told == (self.sender_host, self.sender_port):
            return  # the host says so again with each request
        with self._lock:
            self.sender_host, self.sender_port = told
            self._routes = {way: route for way, route in self._routes.items() if way[2]}
            self._polls = {way: poll for way, poll in self._polls.items() if way[2]}

    def poll(self, way: Way, key: str) -> Payload | None:
        """Take the payload of *key* if it is here. Nothing is raised, nothing waited for."""
        try:
            if len(key) > PLAIN or not key.isprintable():
                key = named(key)
            if self._resting and (self._rests(way) or self._rests((way, key))):
                return None
            poll = self._polls.get(way)
            return self._first_poll(way, key) if poll is None else poll(key)
        except Exception as error:  # noqa: BLE001 - on the thread that serves every request
            self._failed(way, key, error)
            return None

    def _first_poll(self, way: Way, key: str) -> Payload | None:
        """A poll until the sender has been met; then it is :meth:`stagelink.Upstream.poll`."""
        route = self._found(way)
        if route is None:
            self._resting[way] = self._clock() + OPENING_LOOK_S
            return None
        payload = route.upstream.poll(key)
        if route.upstream.connected:
            self._polls[way] = route.upstream.poll
        elif self._clock() - route.since_s > UNMET_S:
            where = f"stage {way[0]} at {route.upstream.endpoint}"
            text = f"no sender met yet: stage {way[1]} looks for {key!r} of {where}"
            self._teller.say(f"unmet {way}", f"{text}; has it put anything, and is that its port?")
        return payload

    def wait(self, way: Way, key: str, deadline_s: float) -> Payload | None:
        """Wait until *deadline_s*, of ``time.monotonic()``, for the payload of *key*."""
        try:
            if not self._clock() < deadline_s:  # so that NaN does not wait
                return None
            if self._resting and self._rests((way, key)):
                return None
            route = self._found(way, deadline_s)
            if route is None:
                return None
            self._asked[key] = route
            return route.upstream.get(key, deadline=deadline_s)
        except TimeoutError:
            return None
        except Exception as error:  # noqa: BLE001 - nor may a wait raise
            self._failed(way, key, error)
            return None
        finally:
            self._asked.pop(key, None)

    def abandon(self, key: str) -> None:
        """End another thread's wait for *key*; what has been taken stays taken."""
        route = self._asked.pop(key, None)
        if route is not None:
            self._let_be(route, key)

    def forget(self, key: str) -> None:
        """Take what is here under *key* from wherever, for nobody."""
        for route in list(self._routes.values()):
            try:
                payload = route.upstream.poll(key)
            except StagelinkError:
                continue
            if payload is not None:
                payload.close()
            else:
                self._let_be(route, key)

    def _let_be(self, route: Route, key: str) -> None:
        try:
            route.upstream.cancel(key)
        except StagelinkError:
            pass  # it is closed, and with it all that it had begun

    # --- finding senders -----------------------------------------------------------------

    def _found(self, way: Way, until_s: float | None = None) -> Route | None:
        """The sender that *way* leads to, dialled if it has not been; None: we are opening yet.

        Raises:
            StagelinkError: there is none, or our connector cannot be opened.
        """
        route = self._routes.get(way)
        if route is not None:
            return route
        host, port = self._place(way)
        held = self._openings.held.get(way[1]) or self._opened(way[1], until_s)
        if held is None:
            return None
        with self._lock:
            route = self._routes.get(way)
            if route is None:
                upstream = held.connector.upstream(host, port, source=way[0])
                route = Route(upstream, self._clock())
                if len(self._routes) >= _MOST_ROUTES:
                    self._routes, self._polls = {}, {}
                self._routes[way] = route
            return route

    def _place(self, way: Way) -> tuple[str, int]:
        """Host and port: as they came with the key, as configured, or by the host's rule."""
        from_stage, _, host, port = way
        if host and port:
            if not isinstance(host, str) or isinstance(port, bool) or not isinstance(port, int):
                msg = f"metadata says source_host {host!r}, source_port {port!r}"
                raise ConfigError(msg, remedy="pass what put returned, or a name and a number")
            return places.shown(host), port
        where = self.sender_host
        if where.lower() in places.UNSAID:
            where = self._options.host
        return places.shown(where), self.sender_port or places.port_of(self._options, from_stage)

    def _opened(self, to_stage: str, until_s: float | None) -> Shared | None:
        options = self._options
        if options.backend in MAPS and options.pool_device == "cpu":
            options = options._replace(pool_bytes=min(options.pool_bytes, UNUSED_BYTES))
        ours = {"stage": to_stage, "role": "receiver", "send_share": 0.0, **places.identity()}
        return self._openings.want(to_stage, options.opened_with(**ours), until_s)

    # --- failures ------------------------------------------------------------------------

    def _rests(self, what: object) -> bool:
        until_s = self._resting.get(what)
        if until_s is None:
            return False
        if self._clock() < until_s:
            return True
        self._resting.pop(what, None)
        return False

    def _failed(self, way: Way, key: str, error: Exception) -> None:
        """Tell the host's log, and leave the sender, or the key, alone for a moment."""
        if isinstance(error, ClosedError):
            return
        if isinstance(error, ForkedError):  # what our parent holds is its own
            self._openings.forget()
            self._routes, self._polls = {}, {}
            return
        if isinstance(error, StagelinkError):
            self._rest(way, key, error)
        usual = isinstance(error, (GoneError, PeerError))
        what = f"no payload from stage {way[0]} for stage {way[1]}: {error}"
        self._teller.say(f"get {way} {type(error)}", what, error=not usual)

    def _rest(self, way: Way, key: str, error: StagelinkError) -> None:
        if len(self._resting) >= _MOST_ENDED:
            self._resting = {}
        unopened = way not in self._routes
        whole = unopened or isinstance(error, PeerError)
        until_s = self._clock() + (OPENING_REST_S if unopened else REST_S)
        self._resting[way if whole else (way, key)] = until_s

    def viewed(self, to_stage: str) -> int:
        """Bytes that views of what stage *to_stage* got keep where they lie."""
        held = self._openings.held.get(to_stage)
        return held.connector.viewed_bytes if held is not None else 0

    def health(self) -> list[dict[str, Any]]:
        """That of each of our connectors."""
        return [held.connector.health() for held in list(self._openings.held.values())]

    def close(self) -> None:
        """End our waits, and let go of our connectors. Twice is fine."""
        for key in list(self._asked):  # another connector may go on with what we share
            self.abandon(key)
        with self._lock:
            self._routes, self._polls = {}, {}
        self._openings.close()


def _number(port: object) -> int:
    """*port* as the host gives it, 0 if it gives none."""
    return int(port) if isinstance(port, (int, str)) and str(port).isdecimal() else 0
