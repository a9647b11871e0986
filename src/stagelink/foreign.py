"""The connector's side of a dialect: its pool and logs for those who speak another protocol."""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any
from weakref import finalize

from stagelink.adapters.msgspec.device import header_of
from stagelink.adapters.vllm_omni_mori import values
from stagelink.adapters.vllm_omni_mori.dialect import Dialect, Place
from stagelink.adapters.vllm_omni_mori.frames import request_id
from stagelink.adapters.vllm_omni_mori.pulls import Bounds, Ref
from stagelink.adapters.vllm_omni_mori.server import Served
from stagelink.adapters.zmq.address import check_dial, is_wildcard
from stagelink.arguments import bracketed
from stagelink.core import payload as layouts
from stagelink.core.addresses import is_local
from stagelink.core.envelope import BARE
from stagelink.core.errors import ConfigError, Reason
from stagelink.core.events import (
    Abandon,
    Ashore,
    Delivery,
    Failure,
    Lend,
    Repay,
    Reserve,
    Strand,
)
from stagelink.core.keys import check_key
from stagelink.core.pool import RECEIVE, SEND, Block, Refusal
from stagelink.core.values import RegionRef
from stagelink.payload import Payload
from stagelink.ports import Loan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.adapters.threads import Driver
    from stagelink.adapters.vllm_omni_mori.pulls import Landed
    from stagelink.adapters.wrap import Wrapping
    from stagelink.calls import Accounted, Calls
    from stagelink.config import Config
    from stagelink.core.endpoint import Endpoint
    from stagelink.core.payload import Layout
    from stagelink.ports import ForeignWriter, Serializer

_READER = "@dialect"
"""Ends the name of a reader that we answer for; no identity of ours has it."""


class Store:
    """A :class:`stagelink.ports.ForeignStore` over a connector's driver."""

    def __init__(self, driver: Driver, serializer: Serializer, wrapping: Wrapping) -> None:
        self._driver = driver
        self._serializer = serializer
        self._wrapping = wrapping

    def newest(self, to: str, key: str) -> int:
        """The generation that is live under *key*; 0: none."""

        def look(endpoint: Endpoint) -> int:
            ledger = endpoint.outgoing.ledgers.get(to)
            return ledger.by_key.get(key, 0) if ledger is not None else 0

        return self._driver.look(look)

    def lend(self, to: str, key: str) -> Loan | Failure | None:
        """The live payload of *key*, decoded where it lies."""
        found = self._driver.submit(Lend(0, to, key, to + _READER))
        if not isinstance(found, Delivery):
            return found if isinstance(found, Failure) else None
        try:
            value, where = self._decoded(found)
        except BaseException:
            self._driver.submit(Repay(to, found.generation, to + _READER, taken=False))
            raise
        return Loan(to, key, found.generation, value, where)

    def repay(self, loan: Loan, *, taken: bool) -> None:
        """End a loan."""
        self._driver.submit(Repay(loan.to, loan.generation, loan.to + _READER, taken))

    def reserve(self, size: int, *, receive: bool) -> Block | Refusal:
        """A block now, or why there is none."""
        use = RECEIVE if receive else SEND
        found = self._driver.submit(Reserve(0, size, self._driver.clock(), use))
        if isinstance(found, Block):
            return found
        if isinstance(found, Refusal):
            return found
        return Refusal(True, size, 1, 0, 0, 0, 0, 0.0)

    def fill(self, block: Block, data: memoryview) -> None:
        """Copy host bytes to the beginning of a block."""
        memory = self.memory(block)
        memory[: len(data)] = data if isinstance(memory, memoryview) else bytes(data)

    def memory(self, block: Block) -> Any:  # noqa: ANN401 - a memoryview, or device bytes
        """The bytes of a block, on the host or on a device."""
        return self._driver.parts.memory.buffer[block.offset : block.offset + block.size]

    def free(self, block: Block) -> None:
        """Take a block back."""
        self._driver.submit(Abandon(block))

    def strand(self, block: Block, transfer: int) -> None:
        """Quarantine a block."""
        self._driver.submit(Strand(block, transfer))

    def ashore(self, transfer: int) -> None:
        """No write of *transfer* can land any more."""
        self._driver.submit(Ashore(transfer))

    def _decoded(self, found: Delivery) -> tuple[Any, RegionRef | None]:
        """The value, and where it lies if it is nothing but a run of bytes in the pool."""
        block, size = found.block, found.size
        data = memoryview(found.body) if block is None else self.memory(block)
        if block is not None and not isinstance(data, memoryview):
            lent, _ = data.lend(size)
            layout = layouts.layout_of(header_of(lent, size), size)
            return _placed(self._serializer.load(lent, size), block, layout)
        raw = self._wrapping.unpacked(data, size) if data[: len(BARE)] != BARE else None
        if raw is not None:
            return self._serializer.load(raw, len(raw)), None
        value = self._serializer.load(data, size, writable=not data.readonly)
        if block is None:
            return value, None
        return _placed(value, block, layouts.parse(data, size))


class Foreign:
    """Gets of what senders of the dialect have put, and the figures of both directions.

    Attributes:
        endpoint: where receivers of the dialect ask; empty if none may.
    """

    def __init__(self, config: Config, calls: Calls, store: Store, dialect: Dialect) -> None:
        self._calls = calls
        self._store = store
        self._dialect = dialect
        self._senders = dict(config.dialect_senders)
        alone = not config.senders and config.sender is None and len(self._senders) == 1
        self._usual = next(iter(self._senders)) if alone else None
        self._patience_s = calls.policy.transfer_s(0)
        self.endpoint = dialect.address

    def speaks(self, source: str | None) -> bool:
        """Whether what stage *source* puts is got by the dialect."""
        return (self._usual if source is None else source) in self._senders

    def get(
        self, key: str, source: str | None, timeout: float | None, deadline: float | None,
        metadata: Mapping[str, Any] | None,
    ) -> Payload:  # fmt: skip
        """Wait for the payload of *key* and take it."""
        until_s = self._calls.until(timeout, deadline, self._patience_s)
        stage, ref, info = self._named(key, source, metadata)
        with self._calls.accounted(key, stage, self._calls.stage) as call:
            return self._payload(key, self._dialect.get(ref, until_s, info), call)

    def poll(
        self, key: str, source: str | None, metadata: Mapping[str, Any] | None
    ) -> Payload | None:  # fmt: skip
        """Take it if it has landed; else it is asked for."""
        stage, ref, _ = self._named(key, source, metadata)
        with self._calls.accounted(key, stage, self._calls.stage) as call:
            landed = self._dialect.poll(ref)
            return None if landed is None else self._payload(key, landed, call)

    def cancel(self, key: str, source: str | None, *, reject: bool) -> int:
        """End every get of *key*; their sender is told nothing, for it takes no such word."""
        reason = Reason.REJECTED if reject else Reason.CANCELLED
        return self._dialect.cancel(self._named(key, source, None)[1], reason)

    def sender_ended(self, source: str) -> None:
        """Nothing that stage *source* may have begun to write can land any more."""
        address = self._senders.get(source)
        if address is None:
            msg = f"stage {source!r} is none of dialect_senders: {', '.join(self._senders)}"
            raise ConfigError(msg, remedy="of all others the end is proved without you")
        self._dialect.sender_ended(address)

    def figures(self) -> dict[str, int]:
        """What was counted."""
        return self._dialect.figures.plain()

    def close(self, patience_s: float) -> None:
        """End both directions."""
        self._dialect.close(patience_s)

    def _named(
        self, key: str, source: str | None, metadata: Mapping[str, Any] | None
    ) -> tuple[str, Ref, tuple[int, bool] | None]:  # fmt: skip
        """The stage, what is asked for and where, and what is known of it already."""
        stage = source if source is not None else self._usual
        assert stage is not None, "speaks() was asked"
        address, info = self._senders[stage], None
        if metadata:
            address, info = _told(metadata, address)
        return stage, Ref(address, request_id(check_key(key), stage, self._calls.stage)), info

    def _payload(self, key: str, landed: Landed, call: Accounted) -> Payload:
        """The payload, whose block is free once the last view of it has gone."""
        driver, block = self._calls.driver, landed.block
        try:
            memory = self._store.memory(block)
            buffer: Any
            last: object
            if isinstance(memory, memoryview):
                buffer = last = (ctypes.c_char * landed.size).from_buffer(memory)
            else:  # released once the device is done with it as well
                buffer, last = memory.lend(landed.size)
        except BaseException:
            driver.submit(Abandon(block))
            self._calls.check_usable()
            raise
        finalize(last, driver.post, Abandon(block)).atexit = False
        payload = Payload(driver, _Plain() if landed.plain else _Packed(), key)
        payload._hold(buffer, 0, 0, landed.size, True)  # noqa: SLF001 - made here too
        driver.counters.gets.add(call.from_stage, landed.size, driver.clock() - call.start_s)
        return payload


class _Plain:
    """Loads bytes as they are: the dialect says nothing of what they mean."""

    def load(self, buffer: Any, size: int, *, writable: bool = True) -> Any:  # noqa: ANN401
        """A memoryview, or a uint8 tensor where they lie on a device."""
        if getattr(buffer, "on_device", False):
            return buffer.tensor(0, size)
        view = memoryview(buffer).cast("B")[:size]
        return view if writable else view.toreadonly()


class _Packed:
    """Loads what their serializer wrote; all of it copies."""

    def load(self, buffer: Any, size: int, *, writable: bool = True) -> Any:  # noqa: ANN401
        """The value."""
        del writable
        if getattr(buffer, "on_device", False):
            return values.decode(buffer.host(0, size))
        return values.decode(memoryview(buffer).cast("B")[:size])


def _placed(value: Any, block: Block, layout: Layout) -> tuple[Any, RegionRef | None]:  # noqa: ANN401
    """The value, and where it lies if it is one run of bytes."""
    if len(layout.buffers) != 1 or layout.buffers[0][0] != values.plain_size(value):
        return value, None
    offset = block.offset + layout.offsets[0]
    return value, RegionRef(block.pool, offset, layout.buffers[0][0])


def build(
    config: Config, calls: Calls, serializer: Serializer, wrapping: Wrapping, region: int
) -> Foreign:
    """The dialect that *config* names, open.

    Raises:
        ConfigError: no plane can speak it, an address is none, or the port cannot be bound.
        TransportError: the plane cannot let others write to our pool.
    """
    for address in config.dialect_senders.values():
        if not address.startswith("tcp://"):
            msg = f"{address!r} is no address of the dialect"
            raise ConfigError(msg, remedy="write tcp://host:port")
        check_dial(address)
    if config.dialect_readers and is_wildcard(config.host) and not config.allow_wildcard:
        msg = f"the dialect would be served on every interface, by host={config.host!r}"
        raise ConfigError(msg, remedy="set host to one address, or allow_wildcard=True")
    driver = calls.driver
    policy, limits = calls.policy, driver.parts.endpoint.pool.limits
    bounds = Bounds(
        query_s=policy.query_s,
        pull_s=policy.transfer_s,
        keep_s=policy.transfer_base_s,
        fence_s=policy.stuck_base_s,
        share_bytes=int(config.peer_share * limits[RECEIVE]),
    )
    readers = frozenset(config.dialect_readers)
    served = Served(config.stage, readers, region, policy.transfer_base_s)
    store = Store(driver, serializer, wrapping)
    place = Place(config.host, config.dialect_port, served)
    writer = _writer(driver)
    if config.dialect_senders:
        writer.card(region)  # what cannot be shown to a sender is found out here
    dialect = Dialect(place, bounds, store, writer, driver.log, clock=driver.clock)
    if dialect.address and not is_local(config.host.strip("[]")):
        driver.log.warning(
            "unprotected_bind", link=dialect.address,
            cause="whoever reaches the dialect's port can pull, and nothing is encrypted",
            remedy="bind an address that only its receivers reach",
        )  # fmt: skip
    return Foreign(config, calls, store, dialect)


def _writer(driver: Driver) -> ForeignWriter:
    """The plane that reaches such peers; the first one that can."""
    planes = driver.parts.planes
    for plane in planes.values():
        writer: ForeignWriter | None = getattr(plane, "foreign", None)
        if writer is not None:
            return writer
    msg = f"no backend of {', '.join(planes)} reaches peers that speak the dialect"
    raise ConfigError(msg, remedy="set backend='mori-xgmi' or 'mori-rdma', as theirs is")


def _told(metadata: Mapping[str, Any], address: str) -> tuple[str, tuple[int, bool] | None]:
    """Where their put said that it is, and size and kind if it said so."""
    host, port = metadata.get("source_host"), metadata.get("source_port")
    if host is not None or port is not None:
        if not isinstance(host, str) or isinstance(port, bool) or not isinstance(port, int):
            _bad("source_host and source_port", (host, port))
        address = f"tcp://{bracketed(str(host))}:{port}"
        check_dial(address)
    size, plain = metadata.get("data_size"), metadata.get("is_fast_path")
    if size is None and plain is None:
        return address, None
    if isinstance(size, bool) or not isinstance(size, int) or not 0 < size < sys.maxsize:
        _bad("data_size", size)
    if not isinstance(plain, bool):
        _bad("is_fast_path", plain)
    assert isinstance(size, int)
    assert isinstance(plain, bool)
    return address, (size, plain)


def _bad(name: str, value: object) -> None:
    msg = f"metadata field {name!r} is {value!r:.80}"
    raise ConfigError(msg, remedy="pass what their put returned, unchanged")
