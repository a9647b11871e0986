"""Both directions against doubles of theirs, over real sockets and in-memory engines."""

from __future__ import annotations

import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.dialect.theirs import TheirReceiver, TheirSender

import stagelink
from stagelink.adapters.memory import Engine
from stagelink.core.errors import (
    CapacityError,
    ConfigError,
    DeadlineError,
    GoneError,
    PayloadError,
    PeerError,
    ProtocolViolationError,
    Reason,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagelink.connector import Connector

torch = pytest.importorskip("torch")
PATIENCE_S = 10.0


def eventually(holds: Callable[[], object]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, "it did not come true"
        time.sleep(0.001)


def open_ours(stage: str, role: str, **settings: Any) -> Connector:
    return stagelink.open(
        stage=stage, role=role, backend="memory", pool_bytes="1MiB", dialect="vllm-omni-mori",
        **settings,
    )  # fmt: skip


def engine_of(connector: Connector) -> Engine:
    [plane] = connector._driver.parts.planes.values()
    engine = plane.foreign  # type: ignore[attr-defined]
    assert isinstance(engine, Engine)
    return engine


def all_free(connector: Connector) -> bool:
    pool = connector.health()["pool"]
    return bool(pool["free"] == pool["capacity"])


@pytest.fixture
def tx() -> Iterator[Connector]:
    with open_ours("0", "sender", dialect_readers=("1",)) as connector:
        yield connector


@pytest.fixture
def theirs(tx: Connector) -> Iterator[TheirReceiver]:
    with TheirReceiver(tx.dialect_endpoint) as receiver:
        yield receiver


# --- we serve ----------------------------------------------------------------------------------


def test_a_tensor_of_ours_reaches_a_receiver_of_theirs_as_plain_bytes(
    tx: Connector, theirs: TheirReceiver
) -> None:
    value = torch.arange(50_000, dtype=torch.int32)
    tx.put("k", value, to="1")

    assert theirs.get("k@0_1") == (value.numpy().tobytes(), True)

    assert theirs.query("k@0_1") is None  # taken, as theirs forgets it too
    assert all_free(tx)
    figures = tx.health()["dialect"]
    assert (figures["served"], figures["served_bytes"]) == (1, 200_000)


@pytest.mark.parametrize("value", [b"few", b"many" * 30_000, bytearray(b"x" * 70_000)], ids=len)
def test_bytes_of_ours_are_plain_wherever_they_lie(
    tx: Connector, theirs: TheirReceiver, value: bytes
) -> None:
    tx.put("k", value, to="1")

    assert theirs.get("k@0_1") == (bytes(value), True)
    assert all_free(tx)


def test_a_structure_of_ours_is_packed_as_theirs_would_be(
    tx: Connector, theirs: TheirReceiver
) -> None:
    hidden = torch.ones(3, 4, dtype=torch.bfloat16)
    tx.put("k", {"hidden": hidden, "meta": {"finished": True}, "ids": [1, 2]}, to="1")

    found = theirs.get("k@0_1")

    assert found is not None
    assert not found[1]
    assert msgspec.msgpack.decode(found[0]) == {
        "hidden": {
            "__tensor__": True, "dtype": "bfloat16", "shape": [3, 4],
            "data": hidden.view(torch.uint8).numpy().tobytes(),
        },
        "meta": {"finished": True}, "ids": [1, 2],
    }  # fmt: skip
    assert all_free(tx)


def test_a_compressed_and_sealed_payload_is_served_as_its_value() -> None:
    extras = {"integrity": "xxh3", "compression": {"1": "zstd"}, "dialect_readers": ("1",)}
    with open_ours("0", "sender", **extras) as tx, TheirReceiver(tx.dialect_endpoint) as theirs:
        tx.put("k", b"a" * 100_000, to="1")

        assert theirs.get("k@0_1") == (b"a" * 100_000, True)
        assert all_free(tx)


@pytest.mark.parametrize("name", ["none@0_1", "k@0_2", "k@7_1", "k", "@0_1"])
def test_what_is_not_theirs_to_pull_is_not_found(
    tx: Connector, theirs: TheirReceiver, name: str
) -> None:
    tx.put("k", b"secret", to="2")

    assert theirs.query(name) is None
    assert theirs.pull(name, 6)[0] == b"trans_error"


def test_a_pull_of_another_length_or_beyond_their_memory_is_refused_and_the_payload_stays(
    tx: Connector, theirs: TheirReceiver
) -> None:
    tx.put("k", b"d" * 5000, to="1")

    for wrong in (
        {"length": 4999}, {"length": 5001}, {"dst_offset": (1 << 20) - 4999},
        {"dst_offset": 1 << 62}, {"engine_desc_packed": b"garbage"}, {"mem_desc_packed": b"?"},
        {"mem_desc_packed": theirs.card.memory[:-1]}, {"engine_desc_packed": theirs.card.memory},
        {"mem_desc_packed": engine_of(tx).card(1).memory},
    ):  # fmt: skip
        assert theirs.pull("k@0_1", 5000, **wrong)[0] == b"trans_error"
    assert not any(theirs.pool)

    assert theirs.get("k@0_1") == (b"d" * 5000, True)
    assert tx.health()["dialect"]["pulls_refused"] == 9


def test_garbage_is_answered_and_counted_and_the_next_question_is_served(
    tx: Connector, theirs: TheirReceiver
) -> None:
    tx.put("k", b"fine", to="1")

    assert theirs.ask(b"garbage") == b"trans_error"
    assert theirs.ask(b"query_infogarbage") == b"info_not_found"

    assert theirs.get("k@0_1") == (b"fine", True)
    assert tx.health()["dialect"]["frames_refused"] == 2


def test_a_write_that_fails_leaves_the_payload_for_another_pull(
    tx: Connector, theirs: TheirReceiver
) -> None:
    tx.put("k", b"w" * 70_000, to="1")
    engine = engine_of(tx)
    engine.holding = True
    engine_ended: list[int] = []

    def break_it() -> None:
        eventually(lambda: bool(engine._held))
        engine_ended.append(engine.finish("the link is down"))

    breaker = threading.Thread(target=break_it)
    breaker.start()
    answer, _ = theirs.pull("k@0_1", 70_000)
    breaker.join()
    engine.holding = False

    assert (answer, engine_ended) == (b"trans_error", [1])
    assert tx.health()["dialect"]["writes_failed"] == 1
    assert theirs.get("k@0_1") == (b"w" * 70_000, True)
    assert all_free(tx)


def test_what_is_being_written_is_pinned_past_its_withdrawal_and_not_written_twice(
    tx: Connector, theirs: TheirReceiver
) -> None:
    tx.put("k", b"p" * 70_000, to="1")
    engine = engine_of(tx)
    engine.holding = True
    found: list[tuple[bytes, bytes]] = []
    first = threading.Thread(target=lambda: found.append(theirs.pull("k@0_1", 70_000)))
    first.start()
    eventually(lambda: bool(engine._held))

    assert theirs.pull("k@0_1", 70_000)[0] == b"trans_error"
    tx.withdraw("k", to="1")
    assert tx.health()["pool"]["held"] > 0
    engine.finish()
    first.join()

    assert found == [(b"trans_done", b"p" * 70_000)]
    assert all_free(tx)


def test_a_newer_put_is_what_is_served_though_the_older_was_asked_for(
    tx: Connector, theirs: TheirReceiver
) -> None:
    tx.put("k", {"chunk": 1}, to="1")
    assert theirs.query("k@0_1") is not None
    tx.put("k", {"chunk": [2] * 99}, to="1", replace=True)

    found = theirs.get("k@0_1")

    assert found is not None
    assert msgspec.msgpack.decode(found[0]) == {"chunk": [2] * 99}
    assert all_free(tx)


def test_what_has_no_form_of_theirs_is_told_once_and_not_found(
    tx: Connector, theirs: TheirReceiver
) -> None:
    tx.put("odd", {"z": 1j}, to="1")
    tx.put("empty", b"", to="1")
    tx.fail("broken", "out of memory", to="1")

    for key in ("odd", "empty", "broken"):
        assert theirs.query(f"{key}@0_1") is None
        assert theirs.query(f"{key}@0_1") is None
    assert tx.health()["dialect"]["unservable"] == 3


def test_readers_of_ours_and_theirs_share_what_is_for_both(tx: Connector) -> None:
    with TheirReceiver(tx.dialect_endpoint) as theirs:
        tx.put("k", b"for two", to="1", readers=2)
        assert theirs.get("k@0_1") == (b"for two", True)
        with stagelink.open(
            stage="1", role="receiver", backend="memory", sender=tx.endpoint
        ) as ours:
            with ours.get("k", source="0", timeout=PATIENCE_S) as payload:
                assert payload.value == b"for two"
            assert tx.drain(PATIENCE_S)
        assert all_free(tx)


def test_many_receivers_pull_many_keys_at_once(tx: Connector) -> None:
    with TheirReceiver(tx.dialect_endpoint) as theirs:
        for number in range(60):
            tx.put(f"k{number}", bytes([number]) * (2000 + number), to="1")

        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda number: theirs.get(f"k{number}@0_1"), range(60)))

    assert found == [(bytes([number]) * (2000 + number), True) for number in range(60)]
    assert all_free(tx)


# --- we get ------------------------------------------------------------------------------------


@pytest.fixture
def sender() -> Iterator[TheirSender]:
    with TheirSender() as double:
        yield double


@pytest.fixture
def rx(sender: TheirSender) -> Iterator[Connector]:
    fast = {
        "query_s": 0.3,
        "transfer_base_s": 0.4,
        "stuck_base_s": 0.4,
        "close_s": 0.2,
        "put_s": 0.3,
        "ttl_s": 10.0,
    }
    with open_ours(
        "1", "receiver", dialect_senders={"0": sender.address}, timeouts=fast
    ) as connector:
        yield connector


def test_plain_bytes_of_theirs_are_a_view_of_our_pool(sender: TheirSender, rx: Connector) -> None:
    data = bytes(range(256)) * 300
    sender.put("k", data, plain=True)

    with rx.get("k", source="0", timeout=PATIENCE_S) as payload:
        assert isinstance(payload.value, memoryview)
        assert payload.value == data
        tensor = torch.frombuffer(payload.value, dtype=torch.uint8)
        assert bytes(tensor.numpy()) == data
        assert payload.size == len(data)
    assert not all_free(rx)  # the tensor lives
    del tensor, payload
    eventually(lambda: all_free(rx))
    assert sender.asked == [("query", "k@0_1"), ("pull", "k@0_1")]


def test_packed_values_of_theirs_come_as_values(sender: TheirSender, rx: Connector) -> None:
    tensor = torch.arange(6, dtype=torch.float16).reshape(2, 3)
    packed = {
        "hidden": {
            "__tensor__": True, "dtype": "float16", "shape": [2, 3],
            "data": tensor.view(torch.uint8).numpy().tobytes(),
        },
        "array": {"__ndarray__": True, "dtype": "<i4", "shape": [2], "data": bytes(8)},
        "meta": {"finished": True},
    }  # fmt: skip
    sender.put("k", msgspec.msgpack.encode(packed), plain=False)

    value = rx.get("k", timeout=PATIENCE_S).value  # the only sender there is

    assert torch.equal(value["hidden"], tensor)
    assert value["array"].tolist() == [0, 0]
    assert value["meta"] == {"finished": True}
    eventually(lambda: all_free(rx))


def test_what_their_put_returned_saves_the_question(sender: TheirSender, rx: Connector) -> None:
    told = sender.put("k", b"m" * 5000, plain=True)

    payload = rx.get("k", source="0", timeout=PATIENCE_S, metadata=told)

    assert payload.value == b"m" * 5000
    assert sender.asked == [("pull", "k@0_1")]


def test_a_get_waits_for_what_is_put_later(sender: TheirSender, rx: Connector) -> None:
    got: list[bytes] = []
    waiting = threading.Thread(
        target=lambda: got.append(bytes(rx.get("k", source="0", timeout=PATIENCE_S).value))
    )
    waiting.start()
    assert sender.heard.wait(PATIENCE_S)
    sender.put("k", b"late", plain=True)
    waiting.join()

    assert got == [b"late"]


def test_a_poll_never_waits_and_finds_what_has_landed(sender: TheirSender, rx: Connector) -> None:
    assert rx.poll("k", source="0") is None
    sender.put("k", b"polled", plain=True)

    found = None
    until_s = time.monotonic() + PATIENCE_S
    while found is None and time.monotonic() < until_s:
        found = rx.poll("k", source="0")

    assert found is not None
    assert found.value == b"polled"
    assert [kind for kind, _ in sender.asked].count("pull") == 1


def test_a_get_of_what_never_comes_ends_at_its_deadline(rx: Connector) -> None:
    with pytest.raises(DeadlineError) as caught:
        rx.get("never", source="0", timeout=0.1)

    assert caught.value.context.edge == "0->1"
    assert rx.health()["errors"] == {"deadline": 1}
    assert all_free(rx)


def test_nobody_at_the_address_is_told_as_such(rx: Connector, sender: TheirSender) -> None:
    sender.stop()

    with pytest.raises(PeerError) as caught:
        rx.get("k", source="0", timeout=0.8)

    assert caught.value.reason is Reason.UNREACHABLE
    assert all_free(rx)


def test_many_threads_get_many_keys_at_once(sender: TheirSender, rx: Connector) -> None:
    for number in range(60):
        sender.put(f"k{number}", bytes([number]) * 3000, plain=True)

    def got(number: int) -> bytes:
        with rx.get(f"k{number}", source="0", timeout=PATIENCE_S) as payload:
            return bytes(payload.value)

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(got, range(60)))

    assert found == [bytes([number]) * 3000 for number in range(60)]
    eventually(lambda: all_free(rx))


@pytest.mark.parametrize(
    "words",
    [[b"rubbish"], [b"trans_done"], [msgspec.msgpack.encode({"request_id": "other@0_1", "data_size": 4, "is_fast_path": True})]],
    ids=["no frame", "done, unasked", "of another key"],
)  # fmt: skip
def test_an_answer_that_fits_no_question_is_a_violation_and_takes_no_memory(
    sender: TheirSender, rx: Connector, words: list[bytes]
) -> None:
    sender.words = words

    with pytest.raises(ProtocolViolationError):
        rx.get("k", source="0", timeout=PATIENCE_S)

    assert rx.health()["dialect"]["frames_refused"] == 1
    assert all_free(rx)


def test_what_a_polls_question_met_is_told_to_the_next_poll(
    sender: TheirSender, rx: Connector
) -> None:
    sender.words = [b"rubbish"]
    assert rx.poll("k", source="0") is None
    eventually(lambda: rx.health()["dialect"]["frames_refused"])

    with pytest.raises(ProtocolViolationError):
        for _ in range(1000):
            assert rx.poll("k", source="0") is None


def test_a_size_beyond_the_pool_is_refused_before_a_byte_moves(
    sender: TheirSender, rx: Connector
) -> None:
    told = {"request_id": "k@0_1", "data_size": 1 << 40, "is_fast_path": True}
    sender.words = [msgspec.msgpack.encode(told)]

    with pytest.raises(CapacityError) as caught:
        rx.get("k", source="0", timeout=PATIENCE_S)

    assert caught.value.never_fits
    assert [kind for kind, _ in sender.asked] == ["query"]


def test_packed_rubbish_is_a_payload_error_and_its_memory_is_free(
    sender: TheirSender, rx: Connector
) -> None:
    bad = {"__tensor__": True, "dtype": "float32", "shape": [1 << 40], "data": b"1234"}
    sender.put("k", msgspec.msgpack.encode(bad), plain=False)

    with (
        rx.get("k", source="0", timeout=PATIENCE_S) as payload,
        pytest.raises(PayloadError, match="shape"),
    ):
        _ = payload.value
    del payload
    eventually(lambda: all_free(rx))


def silent_pull(sender: TheirSender, rx: Connector, size: int = 100_000) -> None:
    """A pull whose answer does not come in time, and whose write might."""
    told = sender.put("k", b"s" * size, plain=True)
    sender.silent = True
    with pytest.raises(PeerError, match="kept from reuse") as caught:
        rx.get("k", source="0", timeout=PATIENCE_S, metadata=told)
    assert caught.value.reason is Reason.UNREACHABLE


def test_a_block_that_was_timed_out_is_stranded_and_free_once_the_answer_comes(
    sender: TheirSender, rx: Connector
) -> None:
    engine_of(rx).can_fence = False
    silent_pull(sender, rx)

    health = rx.health()
    assert health["dialect"]["stranded_bytes"] == health["pool"]["quarantined"] == 102_400
    assert health["dialect"]["timeouts"] == 1
    sender.answer_now()  # it writes, and it hits nobody

    eventually(lambda: all_free(rx))
    figures = rx.health()["dialect"]
    assert (figures["late_answers"], figures["stranded"], figures["stranded_bytes"]) == (1, 0, 0)


def test_a_fence_frees_the_block_and_then_the_late_write_lands_nowhere(
    sender: TheirSender, rx: Connector
) -> None:
    silent_pull(sender, rx)

    eventually(lambda: all_free(rx))

    assert rx.health()["dialect"]["fences"] == 1
    before = bytes(rx._driver.parts.memory.buffer)
    sender.heard.clear()
    sender.answer_now()
    sender.put("after", b"by the new card", plain=True)
    assert rx.get("after", source="0", timeout=PATIENCE_S).value == b"by the new card"
    assert bytes(rx._driver.parts.memory.buffer).count(b"s") == before.count(b"s") == 0


def test_without_a_fence_it_stays_stranded_until_the_end_is_said(
    sender: TheirSender, rx: Connector
) -> None:
    engine_of(rx).can_fence = False
    silent_pull(sender, rx)
    assert rx._foreign is not None
    client = rx._foreign._dialect._client
    eventually(lambda: not client._fences)  # it was tried, in vain
    assert rx.health()["pool"]["quarantined"] == 102_400

    sender.stop()
    rx.sender_ended("0")

    eventually(lambda: all_free(rx))
    assert rx.health()["dialect"]["stranded"] == 0


def test_a_silent_sender_keeps_its_share_and_no_more(sender: TheirSender, rx: Connector) -> None:
    engine_of(rx).can_fence = False
    silent_pull(sender, rx, 300_000)
    sender.silent = False
    sender.put("big", b"b" * 200_000, plain=True)
    sender.put("small", b"c" * 2000, plain=True)

    with pytest.raises(PeerError) as caught:
        rx.get("big", source="0", timeout=PATIENCE_S)
    assert caught.value.reason is Reason.QUARANTINED
    assert rx.get("small", source="0", timeout=PATIENCE_S).value == b"c" * 2000
    rx.sender_ended("0")


def test_garbage_in_place_of_done_strands_the_block(sender: TheirSender, rx: Connector) -> None:
    engine_of(rx).can_fence = False
    told = sender.put("k", b"g" * 5000, plain=True)
    sender.words = [b"rubbish"]

    with pytest.raises(ProtocolViolationError):
        rx.get("k", source="0", timeout=PATIENCE_S, metadata=told)

    assert rx.health()["dialect"]["stranded"] == 1
    rx.sender_ended("0")
    eventually(lambda: all_free(rx))


def test_a_refused_pull_is_asked_anew_until_the_deadline(
    sender: TheirSender, rx: Connector
) -> None:
    told = sender.put("k", b"r" * 5000, plain=True)
    told["data_size"] = 4999

    assert rx.get("k", source="0", timeout=PATIENCE_S, metadata=told).value == b"r" * 5000
    assert rx.health()["dialect"]["refused"] == 1


def test_a_cancelled_get_ends_at_once_and_what_lands_of_it_is_dropped(
    sender: TheirSender, rx: Connector
) -> None:
    told = sender.put("k", b"x" * 5000, plain=True)
    sender.silent = True
    ended: list[Reason | None] = []

    def get() -> None:
        try:
            rx.get("k", source="0", timeout=PATIENCE_S, metadata=told)
        except GoneError as error:
            ended.append(error.reason)

    waiting = threading.Thread(target=get)
    waiting.start()
    assert sender.heard.wait(PATIENCE_S)

    assert rx.cancel("k", source="0") == 1
    waiting.join()
    sender.answer_now()

    assert ended == [Reason.CANCELLED]
    eventually(lambda: all_free(rx))
    assert rx.health()["dialect"]["lost"] == 1


def test_a_payload_that_came_too_late_for_its_get_is_there_for_the_next(
    sender: TheirSender, rx: Connector
) -> None:
    told = sender.put("k", b"t" * 5000, plain=True)
    sender.silent = True
    with pytest.raises(DeadlineError):
        rx.get("k", source="0", timeout=0.05, metadata=told)
    sender.answer_now()

    assert rx.get("k", source="0", timeout=PATIENCE_S).value == b"t" * 5000


def test_closing_ends_a_get_that_waits(sender: TheirSender, rx: Connector) -> None:
    ended: list[type[Exception]] = []

    def get() -> None:
        try:
            rx.get("never", source="0", timeout=PATIENCE_S)
        except stagelink.ClosedError as error:
            ended.append(type(error))

    waiting = threading.Thread(target=get)
    waiting.start()
    assert sender.heard.wait(PATIENCE_S)
    rx.close()
    waiting.join(PATIENCE_S)

    assert ended == [stagelink.ClosedError]


def test_an_interrupted_get_leaves_what_comes_to_the_next(
    sender: TheirSender, rx: Connector, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rx._foreign is not None
    dialect = rx._foreign._dialect
    told = sender.put("k", b"i" * 5000, plain=True)

    def interrupted(there: threading.Event) -> None:
        there.wait()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(dialect, "_await", interrupted)
        rx.get("k", source="0", timeout=PATIENCE_S, metadata=told)

    assert rx.get("k", source="0", timeout=PATIENCE_S).value == b"i" * 5000


def test_a_forked_child_leaves_the_dialect_alone(sender: TheirSender, rx: Connector) -> None:
    sender.put("k", b"parent's", plain=True)
    child = os.fork()
    if not child:
        code = 1
        try:
            rx.get("k", source="0", timeout=1.0)
        except stagelink.ForkedError:
            rx.close()
            gc.collect()
            code = 0
        finally:
            os._exit(code)

    assert os.waitpid(child, 0)[1] == 0
    assert rx.get("k", source="0", timeout=PATIENCE_S).value == b"parent's"


# --- both, and settings ------------------------------------------------------------------------


def test_a_middle_stage_of_ours_stands_between_two_of_theirs(sender: TheirSender) -> None:
    with (
        open_ours(
            "1", "peer", dialect_readers=("2",), dialect_senders={"0": sender.address}
        ) as middle,
        TheirReceiver(middle.dialect_endpoint) as last,
    ):
        sender.put("k", b"through" * 1000, plain=True)
        with middle.get("k", source="0", timeout=PATIENCE_S) as payload:
            middle.put("k", bytes(payload.value), to="2")
        assert last.get("k@1_2") == (b"through" * 1000, True)


def test_nothing_of_the_dialect_is_there_unless_it_is_asked_for() -> None:
    with stagelink.open(stage="0", role="sender", backend="memory") as plain:
        assert plain.dialect_endpoint == ""
        assert plain.health()["dialect"] == {}
    with open_ours("0", "sender") as deaf:
        assert deaf.dialect_endpoint == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"dialect": "nixl"}, {"dialect": "", "dialect_readers": ("1",)}, {"dialect_port": 70_000},
        {"dialect": "", "dialect_port": 5}, {"dialect_readers": ("",)}, {"dialect_readers": "1"},
        {"role": "receiver", "dialect_readers": ("1",)}, {"dialect_senders": {"0": "tcp://h:1"}},
        {"role": "peer", "dialect_senders": {"0": "ipc:///x"}},
        {"role": "peer", "dialect_senders": {"0": "tcp://h:0"}},
        {"role": "peer", "dialect_senders": {"0": "tcp://h:1"}, "senders": {"0": "memory://x"}},
        {"host": "0.0.0.0", "dialect_readers": ("1",)}, {"backend": "shm"},
        {"security": "curve", "keys": "/tmp"},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    settings = {
        "stage": "1", "role": "sender", "backend": "memory", "dialect": "vllm-omni-mori", **wrong
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        stagelink.open(**settings)
    assert caught.value.remedy


def test_a_port_that_is_taken_is_refused_and_nothing_is_left_open(tx: Connector) -> None:
    port = int(tx.dialect_endpoint.rpartition(":")[2])

    with pytest.raises(ConfigError, match="dialect"):
        open_ours("0", "sender", dialect_readers=("1",), dialect_port=port)


@pytest.mark.parametrize(
    "metadata",
    [{"data_size": 0, "is_fast_path": True}, {"data_size": 5, "is_fast_path": 1}, {"data_size": True, "is_fast_path": True},
     {"source_host": 7, "source_port": 1}, {"source_host": "h", "source_port": "1"}, {"source_host": "h", "source_port": 0}],
    ids=str,
)  # fmt: skip
def test_metadata_that_is_none_is_refused(rx: Connector, metadata: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        rx.get("k", source="0", metadata=metadata)
