"""Everything a connector can be told, checked once, where it enters."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stagelink.core.envelope import MOST_RAW
from stagelink.core.errors import ConfigError
from stagelink.core.keys import check_stage
from stagelink.core.timeouts import TimeoutPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIZE = re.compile(r"\s*(\d+)\s*(|[KMGT]i?B?|B)\s*\Z", re.IGNORECASE)
_POOL_DEVICE = re.compile(r"(|cpu|(cuda|hip)(:\d{1,4})?)\Z")
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZES = ("pool_bytes", "eager_limit", "inline_bytes", "alignment", "decompress_limit")
PAGE = 4096
DEFAULT_EAGER = (64 << 10) + 1024
"""64 KiB of data and the header that describes it."""

MOST_EAGER = 1 << 30
"""Bytes inside one announcement; a frame of the control channel holds them."""


class MoriConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the backends ``mori-xgmi`` and ``mori-rdma``, by Mori's own names.

    Attributes:
        memory_pool_device: where the pool is: ``cpu``, ``cuda``, or for example ``cuda:1``; empty:
            ``cpu`` for RDMA, ``cuda`` for XGMI, which cannot reach memory of the CPU.
        device_name: NICs for RDMA, separated by commas; empty: those that the environment variable
            ``MORI_RDMA_DEVICES`` names, or all.
        qp_per_transfer, post_batch_size, num_worker_threads: queue pairs per peer, work requests
            posted at once (-1: as Mori likes), threads that post.
        xgmi_num_streams, xgmi_num_events: HIP streams and events per device.
        enable_transfer_chunking, chunk_bytes, max_chunks_per_transfer: whether RDMA cuts long
            writes, and how.
        num_nics_per_transfer: NICs that one transfer is spread over.
        poll_cq_mode: ``polling`` or ``event``; Mori keeps a core busy in both.
        enable_notification: let RDMA tell the target's engine of each write as well; we need it
            not, and both sides must have it alike.
    """

    memory_pool_device: str = ""
    device_name: str = ""
    qp_per_transfer: int = 1
    post_batch_size: int = -1
    num_worker_threads: int = 1
    xgmi_num_streams: int = 64
    xgmi_num_events: int = 64
    enable_transfer_chunking: bool = False
    chunk_bytes: int = 65536
    max_chunks_per_transfer: int = 64
    num_nics_per_transfer: int = 1
    poll_cq_mode: Literal["polling", "event"] = "polling"
    enable_notification: bool = False


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one connector; build it with :func:`load_config`.

    Attributes:
        stage: our stage's name, as others write it in ``to=`` and ``source=``.
        role: ``sender``, ``receiver`` or ``peer`` (both).
        replica, rank: which of the stage's connectors this is; readers are counted by it.
        host: the address to bind for receivers to dial; loopback unless told otherwise. Of a
            receiver, where senders write to by the backend ``frames``. ``auto``
            takes the address that the route to a configured sender leaves from, or loopback while
            all of them are on this host or none is known; never every interface.
        zmq_port: the port to bind; 0 takes a free one, see ``Connector.endpoint``.
        ipc: a path to bind a local socket at instead.
        advertise_host: the address to tell others, where it is not *host*.
        allow_wildcard: let *host* be every interface (``0.0.0.0``); needs *advertise_host*.
        backend: ``auto`` or a name; a name is strict, without fallback.
        pool_bytes: memory for payloads, sent and received; a number or for example ``"512MiB"``.
        pool_device: of a pool on a device: ``cuda`` is torch's current one (HIP's as well),
            ``cuda:1`` another. Other backends take no notice.
        alignment: of blocks in the pool, bytes, a power of two.
        eager_limit: payloads up to this many bytes, header included, travel inside their
            announcement.
        inline_bytes: how many bytes of those may be published at once; beyond, the pool is used.
        send_share, receive_share: parts of the pool that the other direction cannot take.
        peer_share: part of the memory for one direction, less what all others have, that one peer
            may keep in transfers under way, offers and quarantine; a single payload always may.
            1: no bound.
        credits: lend blocks of the pool to senders, which then write into them as they put, and
            use what receivers lend; only where the data plane writes.
        credit_share: part of the pool that is lent at most, and kept in what came there unasked.
        max_writes: writes posted at once.
        readers: how many readers a put has unless it says so; 0: whoever takes it first.
        on_duplicate: what a put does with a live key: ``error`` or ``replace``.
        compression: compressors by the stage that payloads are put to, for example ``zstd``.
        decompress_limit: bytes that a payload may have once it is decompressed.
        integrity: ``xxh3`` puts a digest behind every payload; empty: none. Needs xxhash.
        readonly_views: tensors of a payload that other readers share are views and not copies;
            to write to one is then undefined.
        shortcut: Unix sockets in place of TCP where both ends are processes of one host and user.
        security: ``curve`` encrypts the control channel, and lets in and talks to those alone
            whose public keys are in *keys*; there is no *shortcut* then. ``none`` trusts whoever
            reaches the port.
        keys: the directory of our secret key and of our peers' public ones (``stagelink keygen``).
        server_key: the name of the public key that every sender must have; empty: that of its
            stage's name, or the only one there is.
        sender: the endpoint to get from.
        senders: endpoints to get from, by stage.
        shm_dir: the mount for shared memory.
        dialect: ``vllm-omni-mori`` also speaks with connectors of vLLM-Omni's
            MoriTransferEngineConnector; empty: with none.
        dialect_port: the port, on *host*, that their receivers ask at; 0 takes a free one, see
            ``Connector.dialect_endpoint``.
        dialect_readers: the stages that still speak it, and may pull what we put for them;
            without any nothing is bound.
        dialect_senders: endpoints of senders that still speak it, by stage.
        mori: fields of :class:`MoriConfig`, for the backends of that name.
        tracing: make OpenTelemetry spans of puts and gets, joined across processes; needs the
            extra ``otel``.
        timeouts: fields of :class:`stagelink.core.timeouts.TimeoutPolicy`, seconds.
    """

    stage: str
    role: Literal["sender", "receiver", "peer"]
    replica: int = 0
    rank: int = 0
    host: str = "127.0.0.1"
    zmq_port: int = 0
    ipc: str | None = None
    advertise_host: str | None = None
    allow_wildcard: bool = False
    backend: str = "auto"
    pool_bytes: int = 256 << 20
    pool_device: str = "cuda"
    alignment: int = PAGE
    eager_limit: int = DEFAULT_EAGER
    inline_bytes: int = 64 << 20
    send_share: float = 0.25
    receive_share: float = 0.25
    peer_share: float = 0.5
    credits: bool = True
    credit_share: float = 0.25
    max_writes: int = 16
    readers: int = 1
    on_duplicate: Literal["error", "replace"] = "error"
    compression: dict[str, str] = msgspec.field(default_factory=dict)
    decompress_limit: int = MOST_RAW
    integrity: Literal["", "xxh3"] = ""
    readonly_views: bool = False
    shortcut: bool = True
    security: Literal["none", "curve"] = "none"
    keys: str | None = None
    server_key: str = ""
    sender: str | None = None
    senders: dict[str, str] = msgspec.field(default_factory=dict)
    shm_dir: str = "/dev/shm"  # noqa: S108 - the mount of POSIX shared memory
    dialect: Literal["", "vllm-omni-mori"] = ""
    dialect_port: int = 0
    dialect_readers: tuple[str, ...] = ()
    dialect_senders: dict[str, str] = msgspec.field(default_factory=dict)
    mori: MoriConfig = MoriConfig()
    tracing: bool = False
    timeouts: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every configured sender's."""
        default = () if self.sender is None else (self.sender,)
        return (*default, *self.senders.values())

    @property
    def policy(self) -> TimeoutPolicy:
        """The timeouts, complete and checked."""
        return TimeoutPolicy.checked(**self.timeouts)


def load_config(raw: Mapping[str, Any]) -> Config:
    """Check plain settings; the only door.

    Raises:
        ConfigError: names the field, its value and the remedy; a misspelt one gets a suggestion.
    """
    for name in raw:
        _refuse_unknown("setting", name, Config.__struct_fields__)
    if isinstance(raw.get("mori"), dict):
        for name in raw["mori"]:
            _refuse_unknown("mori setting", str(name), MoriConfig.__struct_fields__)
    sized = {name: _size(name, raw[name]) for name in _SIZES if name in raw}
    try:
        config = msgspec.convert({**raw, **sized}, Config)
    except msgspec.ValidationError as error:
        msg = f"wrong setting: {error}"
        raise ConfigError(
            msg, remedy="see stagelink.config.Config for types and defaults"
        ) from None
    _check(config)
    return config


def check_port(port: object) -> int:
    """A TCP port, 1 to 65535 (0 where a free one may be chosen).

    Raises:
        ConfigError: it is not.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:  # noqa: PLR2004
        msg = f"port {port!r} is not a number from 0 to 65535"
        raise ConfigError(msg, remedy="use 0 for any free port")
    return port


def _check(config: Config) -> None:
    check_stage(config.stage)
    for stage in (
        *config.senders, *config.compression, *config.dialect_readers, *config.dialect_senders,
    ):  # fmt: skip
        check_stage(stage)
    check_port(config.zmq_port)
    _check_memory(config)
    _check_security(config)
    _check_dialect(config)
    _check_mori(config)
    for name in ("replica", "rank", "eager_limit", "inline_bytes", "readers"):
        _at_least(name, getattr(config, name), 0)
    _at_least("max_writes", config.max_writes, 1)
    for name in ("replica", "rank"):
        _at_most(name, getattr(config, name), (1 << 31) - 1)
    _at_least("decompress_limit", config.decompress_limit, 0)
    _at_most("decompress_limit", config.decompress_limit, MOST_RAW)
    _at_most("eager_limit", config.eager_limit, MOST_EAGER)
    for name in config.timeouts:
        _refuse_unknown("timeout", name, TimeoutPolicy._fields)
    try:
        _ = config.policy
    except OverflowError:
        _refuse("timeouts", config.timeouts, "pass finite seconds above 0")


def _check_security(config: Config) -> None:
    """Refuse keys that would protect nothing, and protection without keys."""
    if config.security == "curve" and not config.keys:
        msg = "security='curve' needs keys, the directory of the key files"
        raise ConfigError(msg, remedy="make them with `stagelink keygen DIR`, and set keys=DIR")
    for name in ("keys", "server_key"):
        if getattr(config, name) and config.security == "none":
            _refuse(name, getattr(config, name), "set security='curve' too, or leave it out")


def _check_dialect(config: Config) -> None:
    """Refuse parts of a dialect that could never be used, and one beside keys it has not."""
    check_port(config.dialect_port)
    for name in ("dialect_port", "dialect_readers", "dialect_senders"):
        if getattr(config, name) and not config.dialect:
            _refuse(name, getattr(config, name), "set dialect='vllm-omni-mori' too")
    if config.dialect and config.security != "none":
        _refuse("dialect", config.dialect, "it knows no keys: use it with security='none' alone")
    if config.dialect_readers and config.role == "receiver":
        _refuse("dialect_readers", config.dialect_readers, "open with role='peer' to put as well")
    if config.dialect_senders and config.role == "sender":
        _refuse("dialect_senders", config.dialect_senders, "open with role='peer' to get as well")
    for stage in config.dialect_senders:
        if stage in config.senders:
            remedy = "name each stage in one of senders and dialect_senders"
            _refuse("dialect_senders", config.dialect_senders, remedy)


def _check_mori(config: Config) -> None:
    mori = config.mori
    for name, value in msgspec.structs.asdict(mori).items():
        if type(value) is int and name != "post_batch_size":
            _at_least(f"mori.{name}", value, 1)
            _at_most(f"mori.{name}", value, (1 << 31) - 1)
    if mori.post_batch_size != -1:
        _at_least("mori.post_batch_size", mori.post_batch_size, 1)
    device = mori.memory_pool_device
    if not _POOL_DEVICE.match(device):
        _refuse("mori.memory_pool_device", device, "use 'cpu', 'cuda', or for example 'cuda:1'")
    if device == "cpu" and config.backend == "mori-xgmi":
        remedy = "XGMI links GPUs and cannot reach memory of the CPU: use 'cuda', or mori-rdma"
        _refuse("mori.memory_pool_device", device, remedy)


def _check_memory(config: Config) -> None:
    _at_least("alignment", config.alignment, 1)
    if config.alignment & (config.alignment - 1):
        _refuse("alignment", config.alignment, "use a power of two, for example 4096")
    if config.pool_bytes < max(PAGE, config.alignment):
        least = max(PAGE, config.alignment)
        _refuse("pool_bytes", config.pool_bytes, f"use at least one page, {least} bytes")
    for name in ("send_share", "receive_share", "peer_share", "credit_share"):
        value = getattr(config, name)
        if not 0 <= value <= 1:
            _refuse(name, value, "use a part between 0 and 1")
    if config.send_share + config.receive_share > 1:
        _refuse("send_share", config.send_share, "the two shares together are at most 1")


def _at_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        _refuse(name, value, f"use {least} or more")


def _at_most(name: str, value: float, most: float) -> None:
    if not value <= most:
        _refuse(name, value, f"use {most} or less")


def _refuse_unknown(what: str, name: str, known: tuple[str, ...]) -> None:
    """Suggest what a misspelt name may have meant."""
    if name not in known:
        near = get_close_matches(name, known, 1, 0.5)
        remedy = f"did you mean {near[0]!r}?" if near else f"known {what}s: {', '.join(known)}"
        msg = f"unknown {what} {name!r}"
        raise ConfigError(msg, remedy=remedy)


def _refuse(name: str, value: object, remedy: str) -> None:
    msg = f"setting {name!r} is {value!r}"
    raise ConfigError(msg, remedy=remedy)


def _size(name: str, value: object) -> object:
    """Bytes of a number, or of text such as ``512MiB``."""
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value)
    if match is None:
        _refuse(name, value, "use bytes as a number, or for example '512MiB'")
    assert match is not None
    return int(match.group(1)) * _UNITS[match.group(2)[:1].upper()]
