"""``name: StagelinkConnector`` of a vLLM-Omni deploy YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from vllm_omni.distributed.omni_connectors.connectors.base import OmniConnectorBase
from vllm_omni.distributed.omni_connectors.connectors.shm_connector import SharedMemoryConnector

import stagelink
from stagelink import StagelinkError
from stagelink.adapters.hosts.vllm_omni import places
from stagelink.adapters.hosts.vllm_omni.names import named
from stagelink.adapters.hosts.vllm_omni.options import Options
from stagelink.adapters.hosts.vllm_omni.receiving import Receiving
from stagelink.adapters.hosts.vllm_omni.sending import Sending
from stagelink.adapters.hosts.vllm_omni.telling import Teller
from stagelink.adapters.hosts.vllm_omni.values import inward

if TYPE_CHECKING:
    from stagelink import Payload
    from stagelink.adapters.hosts.vllm_omni.receiving import Way

COPIED_FROM = 64 << 10
"""Bytes of a payload from which on it may lie in the sender's pool, and a view keeps it there."""

VIEWED_SHARE = 4
"""The part of a pool that views may keep is one in so many; beyond, the host gets copies."""


class StagelinkConnector(OmniConnectorBase):  # type: ignore[misc]  # the host has no types here
    """Carries vLLM-Omni's payloads and KV caches over stagelink, in both directions.

    Nothing is bound or allocated before the first put or get. Any thread may call it, and
    :meth:`close` may run beside any call.

    Attributes:
        config: the very mapping that the host gave; models read their own keys there.
        stage_id: the host's number of our stage, -1 where it gave none (KV caches).
        can_put: True: whatever its role, it does both.
        role, host, zmq_port: as configured.

    Raises:
        ConfigError: a key of *config* is wrong; names it, its value and the remedy.
    """

    supports_raw_data: bool = True
    can_put = True
    _closed = True

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.stage_id = config.get("stage_id", -1)
        options = self._options = Options.of(config)
        self.role = str(config.get("role") or "peer").lower()
        self.host = options.host
        self.zmq_port = options.base_port
        teller = self._teller = Teller()
        self._sending = Sending(options)
        self._receiving = Receiving(options, self._teller)
        self._most_viewed = options.pool_bytes // VIEWED_SHARE
        self._puts = self._gets = self._bytes = self._errors = 0
        self._poll = self._receiving.poll
        self._closed = False
        if options.backend != "auto":
            self._check_backend(teller)

    def _check_backend(self, teller: Teller) -> None:
        """Say now what each put and get would say: the backend cannot work here."""
        ours = {"stage": str(self.stage_id), "role": "peer"}
        try:
            stagelink.check(**self._options.opened_with(**ours))
        except StagelinkError as error:
            teller.say("backend", f"nothing can be put or got here: {error}", error=True)

    # --- sending -------------------------------------------------------------------------

    def put(
        self,
        from_stage: str,
        to_stage: str,
        put_key: str,
        data: Any,  # noqa: ANN401
    ) -> tuple[bool, int, dict[str, Any] | None]:
        """Publish *data* for stage *to_stage*; whether that was done, its bytes, where it is.

        What is published under the key and has not been taken gives way. False means that nothing
        was published: the log says why, and the same key may be put again.
        """
        if self._closed:
            self._not_put(put_key, from_stage, to_stage, "the connector is closed")
            return False, 0, None
        try:
            if _is_empty(data):
                self._not_put(put_key, from_stage, to_stage, "it has no bytes")
                return False, 0, None
            key = named(put_key)
            size, where = self._sending.put(str(from_stage), str(to_stage), key, data)
        except Exception as error:  # noqa: BLE001 - the host's serializer, on anybody's objects
            self._not_put(put_key, from_stage, to_stage, f"{type(error).__name__}: {error}")
            return False, 0, None
        self._puts += 1
        self._bytes += size
        return True, size, where

    def _not_put(self, key: str, from_stage: str, to_stage: str, why: str) -> None:
        self._errors += 1
        text = f"{key!r} was not put from stage {from_stage} for stage {to_stage}: {why}"
        self._teller.say(f"put {from_stage} {to_stage} {why:.40}", text, error=True)

    # --- receiving -----------------------------------------------------------------------

    def get(
        self, from_stage: str, to_stage: str, get_key: str,
        metadata: dict[str, Any] | None = None,
    ) -> tuple[Any, int] | None:  # fmt: skip
        """Take what was put under the key, and its size; None at once if it is not here.

        Nothing is raised and nothing waited for. *metadata* may be what put returned, or say no
        more than ``source_host`` and ``source_port``; without any, the sender is the configured
        one, or the one that the host's rule of ports leads to.
        """
        way: Way = (from_stage, to_stage, None, None)
        if metadata is not None:
            way = _way(from_stage, to_stage, metadata)
        payload = self._poll(way, get_key)
        return None if payload is None else self._opened(payload, way)

    def get_with_deadline(
        self, from_stage: str, to_stage: str, get_key: str,
        metadata: dict[str, Any] | None = None, *, deadline: float,
    ) -> tuple[Any, int] | None:  # fmt: skip
        """As :meth:`get`, but wait for it until *deadline*, of ``time.monotonic()``."""
        if self._closed:
            return None
        way = _way(from_stage, to_stage, metadata)
        payload = self._receiving.wait(way, named(get_key), deadline)
        return None if payload is None else self._opened(payload, way)

    def _opened(self, payload: Payload, way: Way) -> tuple[Any, int] | None:
        size = payload.size
        apart = size > COPIED_FROM and self._receiving.viewed(way[1]) > self._most_viewed
        try:
            value = inward(payload, apart=apart)
        except Exception as error:  # noqa: BLE001 - the host's decoder, on whatever was sent
            payload.close()
            self._errors += 1
            why = f"{type(error).__name__}: {error}"
            text = f"{payload.key!r} from stage {way[0]} cannot be read and is lost: {why}"
            self._teller.say(f"read {way}", text, error=True)
            return None
        self._gets += 1
        self._bytes += size
        return value, size

    def abandon_get(self, get_key: str) -> None:
        """End what :meth:`get_with_deadline` has begun and not finished; else nothing."""
        self._receiving.abandon(named(get_key))

    def update_sender_info(
        self, sender_host: str, sender_zmq_port: int | None, sender_rank: int | None = None
    ) -> None:
        """Get from there from now on, whatever comes without metadata. *sender_rank* is unused."""
        del sender_rank  # each rank's address comes with the key
        self._receiving.update(sender_host, sender_zmq_port)

    # --- both ----------------------------------------------------------------------------

    @property
    def sender_host(self) -> str | None:
        """Where we get from unless a key says otherwise; None: by the host's rule."""
        return self._receiving.sender_host or None

    @property
    def sender_zmq_port(self) -> int | None:
        """The port that belongs to :attr:`sender_host`."""
        return self._receiving.sender_port or None

    def cleanup(
        self, request_id: str, from_stage: str | None = None, to_stage: str | None = None
    ) -> None:
        """Forget the key *request_id*: take back what we put, drop what came for us."""
        del from_stage, to_stage
        try:
            self._sending.withdraw(named(request_id))
            self._receiving.forget(named(request_id))
        except StagelinkError as error:
            self._teller.say("cleanup", f"{request_id!r} was not cleaned up: {error}")

    def reap_consumed(self) -> None:
        """Nothing: what was taken is freed as its reader tells us."""

    def get_connection_info(self) -> dict[str, Any]:
        """Where others get from us: ``host``, ``zmq_port``, ``endpoint`` (empty: unbound)."""
        return {
            "host": places.shown(self.host),
            "zmq_port": self._port(),
            "endpoint": self._sending.endpoint,
            "can_put": True,
        }

    def _port(self) -> int:
        """Ours by the host's rule, the base port if we do not know our stage."""
        stage = self.config.get("from_stage") if self.stage_id == -1 else self.stage_id
        try:
            return places.port_of(self._options, str(stage))
        except StagelinkError:
            return self.zmq_port

    def health(self) -> dict[str, Any]:
        """Figures: ``status``, calls, bytes, failed calls, and stagelink's own of each half."""
        if self._closed:
            return {"status": "unhealthy", "error": "closed"}
        return {
            "status": "healthy",
            "host": self.host,
            "puts": self._puts,
            "gets": self._gets,
            "bytes_transferred": self._bytes,
            "errors": self._errors,
            "sending": self._sending.health(),
            "receiving": self._receiving.health(),
        }

    def close(self) -> None:
        """Let go of everything; what is viewed stays. Twice is fine, also if building failed."""
        if self._closed:
            return
        self._closed = True
        self._poll = _closed
        self._sending.close()
        self._receiving.close()


# When a request is aborted, the host's adapter has the sender clean up the keys of exactly those
# chunks that it put, before it puts others of that name; but only if it is of this class, which
# the host asks for nothing else (0.30: in two places, and tests see that there is no third).
SharedMemoryConnector.register(StagelinkConnector)


def _way(from_stage: str, to_stage: str, metadata: Any) -> Way:  # noqa: ANN401 - anybody's
    try:
        return from_stage, to_stage, metadata["source_host"], metadata["source_port"]
    except (KeyError, TypeError, IndexError):
        return from_stage, to_stage, None, None


def _closed(way: Way, key: str) -> None:
    """What is left of a poll once the connector is closed."""


def _is_empty(data: Any) -> bool:  # noqa: ANN401 - whatever the host puts
    """Whether these are raw bytes, but none."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return not memoryview(data).nbytes
    return isinstance(data, Tensor) and not data.numel()
