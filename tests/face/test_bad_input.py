"""Every bad input gets one typed error that says what to do, in time, and costs nothing."""

from __future__ import annotations

import os
import socket
import threading
import time
from math import inf, nan
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
import zmq

import stagelink
from stagelink import (
    CapacityError,
    ClosedError,
    ConfigError,
    DuplicateKeyError,
    LeaseError,
    PayloadError,
    PeerError,
    ProtocolViolationError,
    StagelinkError,
)
from stagelink.adapters.msgspec.prepare import prepare
from stagelink.adapters.msgspec.wire import HEADER_BYTES, HELLO, MAGIC, header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagelink.connector import Connector

POOL = 1 << 20
LARGE = bytes(300_000)
PATIENCE_S = 5.0


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """Import what is imported late, so that a clock measures calls only."""
    prepare((1,), "uint8").open(bytearray(4096))
    open_peer()


class Pair(NamedTuple):
    """A sender of stage ``a`` and a receiver of stage ``b``; key ``kept`` waits for it."""

    tx: Connector
    rx: Connector
    metadata: dict[str, Any]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two connectors that must still work, and lose nothing, whatever a test did to them."""
    with (
        stagelink.open(stage="a", role="sender", pool_bytes=POOL) as tx,
        stagelink.open(stage="b", role="receiver", sender=tx.endpoint, pool_bytes=POOL) as rx,
    ):
        receipt = tx.put("kept", LARGE, to="b")
        yield Pair(tx, rx, receipt.metadata)
        with rx.get("kept", source="a", timeout=PATIENCE_S) as payload:
            assert bytes(payload.value) == LARGE
            del payload
        assert tx.drain(PATIENCE_S)
        for connector in (tx, rx):
            assert until(lambda c=connector: whole(c)), connector.health()  # type: ignore[misc]


def until(holds: Callable[[], bool]) -> bool:
    """Whether *holds* comes true in time."""
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.002)
    return True


def whole(connector: Connector) -> bool:
    """Whether every byte of the pool is free and no call is open."""
    health = connector.health()
    pool = health["pool"]
    return bool(pool["free"] == pool["capacity"] and not health["inbox"]["gets"])


def refused(
    call: Callable[[], object], kind: type[StagelinkError] = ConfigError, within_s: float = 4.0
) -> str:
    """The one line with which *call* is refused, in time."""
    start_s = time.monotonic()
    with pytest.raises(kind) as caught:
        call()
    assert time.monotonic() - start_s < within_s
    assert caught.value.remedy
    text = str(caught.value)
    assert "\n" not in text
    return text


# --- opening ---------------------------------------------------------------------------------

SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"pool_bytes": 100}, "one page"),
    ({"pool_bytes": nan}, "pool_bytes"),
    ({"pool_bytes": "many"}, "512MiB"),
    ({"pol_bytes": 4096}, "did you mean 'pool_bytes'"),
    ({"timeouts": {"tll_s": 3}}, "did you mean 'ttl_s'"),
    ({"timeouts": {"ttl": 3}}, "did you mean 'ttl_s'"),
    ({"timeouts": {"transfer_base": 3}}, "did you mean 'transfer_base_s'"),
    ({"timeouts": {"ttl_s": nan}}, "ttl_s"),
    ({"timeouts": {"put_s": -1}}, "put_s"),
    ({"timeouts": 5}, "timeouts"),
    ({"role": "boss"}, "role"),
    ({"stage": ""}, "stage"),
    ({"host": "0.0.0.0"}, "every interface"),
    ({"host": "*"}, "every interface"),
    ({"host": "192.0.2.1"}, "address of this machine"),
    ({"advertise_host": "a b"}, "a b"),
    ({"zmq_port": 70_000}, "70000"),
    ({"backend": "shmm"}, "did you mean 'shm'"),
    ({"shm_dir": "/nonexistent"}, "shm_dir"),
    ({"sender": "junk"}, "junk"),
    ({"sender": ""}, "tcp://"),
    ({"senders": {"x": "tcp://127.0.0.1:99999"}}, "99999"),
    ({"eager_limit": 1 << 70}, "eager_limit"),
    ({"alignment": 1 << 30}, str(1 << 30)),
    ({"rank": 1 << 70}, "rank"),
    ({"readers": -1}, "readers"),
]


@pytest.mark.parametrize(("settings", "told"), SETTINGS)
def test_a_wrong_setting_is_named_and_leaves_nothing(settings: dict[str, Any], told: str) -> None:
    before = set(threading.enumerate())
    assert told in refused(lambda: open_peer(**settings))
    assert set(threading.enumerate()) == before


def open_peer(**settings: Any) -> None:
    """Open, and close should it work."""
    stagelink.open(**{"stage": "a", "role": "peer", "pool_bytes": POOL, **settings}).close()


@pytest.mark.parametrize("size", [1 << 45, 1 << 70, "9999TiB"])
def test_a_pool_larger_than_the_mount_says_both_numbers(size: object) -> None:
    text = refused(lambda: open_peer(pool_bytes=size, backend="shm"), CapacityError)
    assert "available" in text


def test_a_taken_port_is_named_and_nothing_is_left(tmp_path: Any) -> None:
    before, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = refused(lambda: open_peer(zmq_port=port, shm_dir=str(tmp_path)))
        assert f"127.0.0.1:{port}" in text
        assert "port 0" in text
    assert not os.listdir(tmp_path)
    assert set(threading.enumerate()) == before
    assert until(lambda: len(os.listdir("/proc/self/fd")) <= files)


def test_a_local_socket_stands_in_for_the_port(tmp_path: Any) -> None:
    with stagelink.open(
        stage="a", role="sender", pool_bytes=POOL, ipc=str(tmp_path / "s"), backend="shm"
    ) as tx:
        assert tx.endpoint.startswith("ipc://")


# --- calls -----------------------------------------------------------------------------------

BAD_KEYS = ["", 5, None, b"y", "a\nb", "\ud800", "x" * 2000, ["a"]]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_bad_key_is_refused_everywhere(pair: Pair, key: Any) -> None:
    tx, rx, _ = pair
    for call in (
        lambda: tx.put(key, b"", to="b"), lambda: tx.fail(key, "e", to="b"),
        lambda: tx.withdraw(key, to="b"), lambda: tx.cleanup(key),
        lambda: rx.get(key, source="a"), lambda: rx.poll(key, source="a"),
        lambda: rx.cancel(key, source="a"), lambda: rx.reject(key, source="a"),
        lambda: rx.cleanup(key),
    ):  # fmt: skip
        assert "key" in refused(call)


@pytest.mark.parametrize("seconds", [-1, nan, inf, "1", True, 10**400])
def test_a_wait_that_never_ends_is_refused_everywhere(pair: Pair, seconds: Any) -> None:
    tx, rx, _ = pair
    for call in (
        lambda: tx.put("k", b"", to="b", timeout=seconds),
        lambda: tx.put("k", LARGE, to="b", timeout=seconds),
        lambda: tx.put("k", b"", to="b", ttl=seconds),
        lambda: tx.fail("k", "e", to="b", ttl=seconds),
        lambda: tx.alloc((2,), "uint8", timeout=seconds),
        lambda: tx.drain(seconds), lambda: rx.get("k", source="a", timeout=seconds),
    ):  # fmt: skip
        assert "seconds" in refused(call)


def test_a_wait_of_aeons_can_be_ended(pair: Pair) -> None:
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            pair.rx.get("never", source="a", timeout=1e308)
        except StagelinkError as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert until(lambda: pair.rx.cancel("never", source="a") == 1)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert isinstance(ended[0], stagelink.GoneError)


ARGUMENTS: list[tuple[str, Callable[[Pair], object], type[StagelinkError]]] = [
    ("only receives", lambda p: p.rx.put("k", b"", to="a"), ConfigError),
    ("only receives", lambda p: p.rx.alloc((1,), "uint8"), ConfigError),
    ("only receives", lambda p: p.rx.withdraw("k", to="a"), ConfigError),
    ("only sends", lambda p: p.tx.get("k", source="b"), ConfigError),
    ("only sends", lambda p: p.tx.poll("k", source="b"), ConfigError),
    ("only sends", lambda p: p.tx.cancel("k", source="b"), ConfigError),
    ("only sends", lambda p: p.tx.update_sender_info("127.0.0.1", 1), ConfigError),
    ("stage", lambda p: p.tx.put("k", b"", to=""), ConfigError),
    ("stage", lambda p: p.tx.cleanup("k", to=""), ConfigError),
    ("stage", lambda p: p.rx.get("k", source=""), ConfigError),
    ("source=", lambda p: p.rx.get("k"), ConfigError),
    ("replace", lambda p: p.tx.put("k", b"", to="b", replace="no"), ConfigError),  # type: ignore[arg-type]
    ("kept", lambda p: p.tx.put("kept", b"", to="b"), DuplicateKeyError),
    ("never", lambda p: p.tx.put("k", bytes(2 * POOL), to="b"), CapacityError),
    ("never", lambda p: p.tx.alloc((1 << 40,), "uint8"), CapacityError),
    ("shape", lambda p: p.tx.alloc(5, "uint8"), ConfigError),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("told", "call", "kind"), ARGUMENTS, ids=map(str, range(len(ARGUMENTS))))
def test_a_wrong_call_says_what_to_do(
    pair: Pair, told: str, call: Callable[[Pair], object], kind: type[StagelinkError]
) -> None:
    assert told in refused(lambda: call(pair), kind)


@pytest.mark.parametrize(
    "readers", [-1, True, 1.5, "x", "", [], [1], [""], [None], {}, 1 << 70, ["a\n"]]
)
def test_readers_are_a_count_or_names(pair: Pair, readers: Any) -> None:
    refused(lambda: pair.tx.put("k", b"", to="b", readers=readers))


@pytest.mark.parametrize(
    "shape", [(-1,), (1.5,), None, "ab", (True,), (0, 1 << 70), (0, 1 << 62, 8)]
)
def test_an_impossible_shape_costs_no_memory(pair: Pair, shape: Any) -> None:
    start_s = time.monotonic()
    with pytest.raises((ConfigError, PayloadError)):
        pair.tx.alloc(shape, "uint8")
    assert time.monotonic() - start_s < PATIENCE_S


@pytest.mark.parametrize("dtype", ["float99", "object", "", None, 5, object()])
def test_an_impossible_dtype_is_refused(pair: Pair, dtype: object) -> None:
    assert "dtype" in refused(lambda: pair.tx.alloc((2,), dtype))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": [1, object()]}}, "value['a']['b'][1]"),
        (object(), "value"),
        ([iter(())], "value[0]"),
    ],
)
def test_what_cannot_be_serialized_is_named_by_its_path(
    pair: Pair, value: object, path: str
) -> None:
    assert path in refused(lambda: pair.tx.put("k", value, to="b"), PayloadError)


def test_what_contains_itself_is_no_payload(pair: Pair) -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(PayloadError):
        pair.tx.put("k", value, to="b")


def test_a_draft_is_put_once_and_by_its_own_connector(pair: Pair) -> None:
    tx = pair.tx
    with tx.alloc((300_000,), "uint8") as draft:
        refused(lambda: tx.put("d", draft, to="b", readers=-1))
        with stagelink.open(stage="c", role="sender", pool_bytes=POOL) as other:
            assert "another" in refused(lambda: other.put("d", draft, to="b"), LeaseError)
        tx.put("d", draft, to="b")
        assert "already" in refused(lambda: tx.put("e", draft, to="b"), LeaseError)
    assert tx.withdraw("d", to="b")
    with tx.alloc((300_000,), "uint8") as draft:
        refused(lambda: tx.put("kept", draft, to="b"), DuplicateKeyError)


def test_unknown_keys_are_fine_to_forget(pair: Pair) -> None:
    tx, rx, _ = pair
    assert rx.cancel("nope", source="a") == rx.reject("nope", source="a") == 0
    assert rx.cleanup("nope") == rx.cleanup("nope", source="a") == tx.cleanup("nope") == 0
    assert not tx.withdraw("nope", to="b")
    assert not tx.withdraw("nope", to="nobody")


@pytest.mark.parametrize("host", ["", None, 5, "a b", "tcp://x", "*", "0.0.0.0"])
def test_junk_is_no_address_of_a_sender(pair: Pair, host: Any) -> None:
    refused(lambda: pair.rx.update_sender_info(host, 5))


@pytest.mark.parametrize("port", [0, -1, "y", None, True, 65536])
def test_junk_is_no_port_of_a_sender(pair: Pair, port: Any) -> None:
    refused(lambda: pair.rx.update_sender_info("127.0.0.1", port, source="a"))


def test_an_unknown_stage_is_declined_at_once(pair: Pair) -> None:
    with stagelink.open(
        stage="b", role="receiver", sender=pair.tx.endpoint, pool_bytes=POOL
    ) as rx:
        text = refused(lambda: rx.get("kept", source="zzz", timeout=PATIENCE_S), PeerError)
        assert "stage 'a', not 'zzz'" in text


# --- metadata --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"size": -1}, {"size": "x"}, {"size": 1 << 63}, {"size": True}, {"generation": -1},
        {"generation": "1"}, {"instance": "zz"}, {"instance": 5}, {"instance": "ab"},
        {"endpoint": 5}, {"endpoint": "junk"}, {"endpoint": "udp://x:1"}, {"key": 5},
        {"key": "junk"}, {"key": "kept@a_c"}, {"endpoint": "", "source_host": 5},
        {"endpoint": "", "source_port": 99999}, {"endpoint": "", "source_host": "a b"},
    ],
)  # fmt: skip
def test_junk_in_metadata_is_named(pair: Pair, change: dict[str, Any]) -> None:
    refused(lambda: pair.rx.get("kept", metadata={**pair.metadata, **change}))
    refused(lambda: pair.rx.poll("kept", metadata={**pair.metadata, **change}))


@pytest.mark.parametrize("metadata", [5, "x", [], b"y"])
def test_metadata_is_a_dictionary(pair: Pair, metadata: Any) -> None:
    assert "dictionary" in refused(lambda: pair.rx.get("kept", metadata=metadata))


@pytest.mark.parametrize(
    "change", [{"size": 5}, {"size": 1 << 62}, {"generation": 99}, {"instance": "5a" * 16}]
)
def test_metadata_of_another_payload_gets_none(pair: Pair, change: dict[str, Any]) -> None:
    with pytest.raises(StagelinkError):
        pair.rx.get("kept", metadata={**pair.metadata, **change}, timeout=0.3)


def test_host_and_port_are_enough_to_find_a_sender(pair: Pair) -> None:
    where = {name: pair.metadata[name] for name in ("source_host", "source_port")}
    pair.tx.put("more", b"1", to="b")
    with stagelink.open(stage="b", role="receiver", pool_bytes=POOL) as rx:
        assert "source=" in refused(lambda: rx.get("more", metadata=where))
        with rx.get("more", source="a", metadata=where, timeout=PATIENCE_S) as payload:
            assert bytes(payload.value) == b"1"


# --- the wire --------------------------------------------------------------------------------


@pytest.fixture
def stranger(pair: Pair) -> Iterator[zmq.Socket[bytes]]:
    """A raw socket connected to the sender."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(pair.tx.endpoint)
        yield dealer


@pytest.mark.parametrize(
    "frames",
    [
        [b"x"], [b"", b""], [b"GET / HTTP/1.1", b"\r\n"], [header(HELLO) + b"\xc1"],
        [header(99) + b"\x90"], [header(HELLO) + b"\xdd\xff\xff\xff\xff"], [MAGIC] * 4,
    ],
)  # fmt: skip
def test_garbage_is_counted_and_dropped(
    pair: Pair, stranger: zmq.Socket[bytes], frames: list[bytes]
) -> None:
    stranger.send_multipart(frames)
    assert until(lambda: pair.tx.health()["frames_refused"] > 0)


def test_an_oversized_frame_costs_its_sender_the_connection(
    pair: Pair, stranger: zmq.Socket[bytes]
) -> None:
    stranger.send_multipart([header(HELLO), bytes(32 << 20)])
    stranger.send_multipart([b"x" * 10] * 50)
    assert pair.tx.health()["status"] == "ok"


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.0\r\n\r\n", bytes(100), b"\xff" * 100])
def test_raw_noise_on_the_port_is_survived(pair: Pair, noise: bytes) -> None:
    host, port = pair.metadata["source_host"], pair.metadata["source_port"]
    with socket.create_connection((host, port)) as raw:
        raw.sendall(noise)
    assert pair.tx.health()["status"] == "ok"


def test_a_receiver_of_another_version_is_told_both(stranger: zmq.Socket[bytes]) -> None:
    fields = msgspec.msgpack.encode((7, "whatever", "a later version says"))
    stranger.send(header(HELLO, (2, 3)) + fields)
    assert stranger.poll(int(PATIENCE_S * 1000))
    answer = stranger.recv()
    session, reason, detail = msgspec.msgpack.decode(answer[HEADER_BYTES:])
    assert (session, reason) == (7, "mismatch")
    assert "2.3" in detail
    assert "1.0" in detail


def test_a_sender_of_another_version_is_named_at_the_receiver() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        port = router.bind_to_random_port("tcp://127.0.0.1")
        thread = threading.Thread(target=decline, args=(router,))
        thread.start()
        with (
            stagelink.open(
                stage="b", role="receiver", sender=f"tcp://127.0.0.1:{port}", pool_bytes=POOL
            ) as rx,
            pytest.raises((PeerError, ProtocolViolationError)) as caught,
        ):
            rx.get("k", source="a", timeout=PATIENCE_S)
        thread.join(PATIENCE_S)
    assert "1.0" in str(caught.value)
    assert "2.0" in str(caught.value)


def decline(router: zmq.Socket[bytes]) -> None:
    """Answer one greeting as a sender of version 2 would."""
    if router.poll(int(PATIENCE_S * 1000)):
        who, greeting = router.recv_multipart()
        session = msgspec.msgpack.decode(greeting[HEADER_BYTES:])[0]
        told = (session, "mismatch", "protocol 1.0 meets 2.0: the majors differ")
        router.send_multipart([who, header(2, (2, 0)) + msgspec.msgpack.encode(told)])


# --- closed ----------------------------------------------------------------------------------


def test_a_closed_connector_refuses_everything_but_closing(pair: Pair) -> None:
    tx = stagelink.open(stage="c", role="peer", sender=pair.tx.endpoint, pool_bytes=POOL)
    draft = tx.alloc((4,), "uint8")
    tx.close()
    tx.close()
    for call in (
        lambda: tx.put("k", b"", to="b"), lambda: tx.put("k", LARGE, to="b"),
        lambda: tx.put("k", draft, to="b"), lambda: tx.alloc((1,), "uint8"),
        lambda: tx.fail("k", "e", to="b"), lambda: tx.withdraw("k", to="b"),
        lambda: tx.drain(1.0), lambda: tx.get("k", source="a"),
        lambda: tx.poll("k", source="a"), lambda: tx.cancel("k", source="a"),
        lambda: tx.cleanup("k"), lambda: tx.update_sender_info("127.0.0.1", 1),
    ):  # fmt: skip
        assert "open a new one" in refused(call, ClosedError)
    draft.close()
    assert tx.health()["status"] == "closed"
