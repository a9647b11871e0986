"""The whole contract of a connector of vLLM-Omni, as far as it can be kept without vLLM-Omni."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from tests.hosts.conftest import is_free

import stagelink

pytest.importorskip("torch", reason="vLLM-Omni is made of torch, and it is an extra")

import torch

PATIENCE_S = 10.0


def taken(connector: Any, edge: str, key: str, metadata: Any = None) -> Any:
    """What a host that polls gets in the end."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        got = connector.get(edge[0], edge[1], key, metadata)
        if got is not None:
            return got[0]
        time.sleep(0.001)
    pytest.fail(f"{key!r} has not come")


def there(port: int) -> dict[str, Any]:
    return {"source_host": "127.0.0.1", "source_port": port}


def chunk(number: int = 0) -> dict[str, Any]:
    return {
        "codes": {"audio": torch.arange(50) + number},
        "meta": {"finished": torch.tensor(False)},
    }


def is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_equal(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)


# --- where senders are -------------------------------------------------------------------


def test_host_and_port_are_metadata_enough(build: Any, base: int) -> None:
    sender, receiver = build(stage_id=0, role="sender"), build(stage_id=1, role="receiver")

    assert sender.put("0", "1", "r_0_0", chunk())[0]

    assert is_equal(taken(receiver, "01", "r_0_0", there(base)), chunk())


def test_no_metadata_leads_to_the_port_of_the_hosts_rule(build: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)

    sender.put("0", "1", "r_0_0", chunk())

    assert is_equal(taken(receiver, "01", "r_0_0"), chunk())


def test_what_put_returned_leads_to_the_sender_wherever_it_is(build: Any, base: int) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1, zmq_port=base + 7)

    _, size, metadata = sender.put("0", "1", "r_0_0", chunk())

    assert {"source_host": "127.0.0.1", "source_port": base, "data_size": size}.items() <= (
        metadata.items()
    )
    assert is_equal(taken(receiver, "01", "r_0_0", metadata), chunk())


def test_the_sender_may_be_told_later(build: Any, base: int) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1, zmq_port=base + 7)
    sender.put("0", "1", "r_0_0", chunk())
    assert receiver.get("0", "1", "r_0_0") is None

    receiver.update_sender_info("127.0.0.1", base)

    assert is_equal(taken(receiver, "01", "r_0_0"), chunk())
    assert (receiver.sender_host, receiver.sender_zmq_port) == ("127.0.0.1", base)


def test_kv_caches_of_each_rank_have_a_port_of_their_own(
    build: Any, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = build(role="receiver")

    for rank in (0, 1):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert build(role="sender").put("0", "1", f"r_0_0_{rank}_0", b"shard%d" % rank)[0]

    for rank in (0, 1):
        shard = taken(receiver, "01", f"r_0_0_{rank}_0", there(base + 100 + 16 * rank))
        assert shard.to_bytes() == b"shard%d" % rank
        shard.release()


def test_a_replica_has_a_port_of_its_own(
    build: Any, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_OMNI_REPLICA_ID", "1")

    metadata = build(stage_id=0).put("0", "1", "r_0_0", chunk())[2]

    assert metadata["source_port"] == base + 1024


# --- what is bound, and when -------------------------------------------------------------


def test_nothing_is_bound_before_the_first_put(build: Any, base: int) -> None:
    sender = build(stage_id=0, role="sender")
    assert is_free(base)
    assert sender.get_connection_info()["endpoint"] == ""

    sender.put("0", "1", "r_0_0", chunk())

    assert not is_free(base)
    assert sender.get_connection_info()["zmq_port"] == base


def test_who_only_gets_binds_nothing(build: Any, base: int) -> None:
    receiver = build(role="receiver")

    assert receiver.get("0", "1", "omni_0_to_1_kv_cache_r") is None

    assert all(is_free(port) for port in (base, base + 1, base + 100, base + 101))


def test_two_of_one_configuration_share_a_port_and_one_outlives_the_other(build: Any) -> None:
    first, second = build(stage_id=0, role="sender"), build(stage_id=0, role="sender")
    receiver = build(stage_id=1)
    assert first.put("0", "1", "r_0_0", chunk(0))[0]
    assert second.put("0", "1", "r_0_1", chunk(1))[0]

    first.close()

    assert second.put("0", "1", "r_0_2", chunk(2))[0]
    for number in range(3):
        assert is_equal(taken(receiver, "01", f"r_0_{number}"), chunk(number))


def test_a_port_that_another_process_has_is_a_put_that_failed(build: Any, base: int) -> None:
    taken_by_another = stagelink.open(stage="x", role="sender", zmq_port=base, pool_bytes=1 << 20)
    sender = build(stage_id=0)

    with taken_by_another:
        assert sender.put("0", "1", "r_0_0", chunk()) == (False, 0, None)

    assert sender.put("0", "1", "r_0_0", chunk())[0]


def test_a_stage_in_the_middle_gets_and_puts(build: Any) -> None:
    first, middle, last = build(stage_id=0), build(stage_id=1, role="receiver"), build(stage_id=2)
    first.put("0", "1", "r_0_0", chunk())

    assert middle.put("1", "2", "r_1_0", taken(middle, "01", "r_0_0"))[0]

    assert is_equal(taken(last, "12", "r_1_0"), chunk())


def test_no_get_waits_for_the_memory_of_its_connector(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stagelink.adapters.hosts.vllm_omni import shared

    may_open = threading.Event()

    def slowly(settings: dict[str, Any]) -> Any:
        may_open.wait(PATIENCE_S)
        return shared.open_best(settings)

    sender, receiver = build(stage_id=0), build(stage_id=1)
    sender.put("0", "1", "k", chunk())
    monkeypatch.setattr(shared.REGISTRY, "_open", slowly)

    for _ in range(3):
        assert receiver.get("0", "1", "k") is None
    late = time.monotonic() + 0.01
    assert receiver.get_with_deadline("0", "1", "k", None, deadline=late) is None
    may_open.set()

    assert is_equal(taken(receiver, "01", "k"), chunk())


def test_who_maps_the_senders_pool_takes_no_memory_for_its_own(build: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)
    sender.put("0", "1", "k", {"x": torch.ones(1 << 20)})

    assert taken(receiver, "01", "k")["x"].sum() == 1 << 20
    assert receiver.health()["receiving"][0]["pool_size"] == 1 << 20


# --- values ------------------------------------------------------------------------------


def test_values_come_as_the_hosts_own_serializer_would_give_them(build: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)
    value: dict[str, Any] = {
        "layers": {3: torch.ones(2, 3, dtype=torch.bfloat16)},
        "pair": (1, "two"),
        "array": np.arange(6.0).reshape(2, 3),
        "none": None,
        "big": torch.arange(1 << 18),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(2.5),
        "flags": [torch.tensor(True), torch.tensor(False), torch.tensor([True])],
        "strided": torch.arange(12).reshape(3, 4).T,
        "raw": b"bytes",
        "images": [],
    }

    assert sender.put("0", "1", "k", value)[0]

    assert is_equal(taken(receiver, "01", "k"), {**value, "pair": [1, "two"]})


@pytest.mark.parametrize(
    "raw", [b"cache", bytearray(b"cache"), torch.tensor(list(b"cache"), dtype=torch.uint8)]
)
def test_raw_bytes_come_as_a_buffer(build: Any, raw: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)
    sender.put("0", "1", "k", raw)

    buffer = taken(receiver, "01", "k")

    assert (len(buffer), buffer.to_bytes()) == (5, b"cache")
    assert (buffer.tensor.dtype, buffer.tensor.shape) == (torch.uint8, (5,))
    buffer.release()
    buffer.release()


def test_a_buffer_can_be_put_on(build: Any) -> None:
    first, middle, last = build(stage_id=0), build(stage_id=1), build(stage_id=2)
    first.put("0", "1", "k", torch.arange(1 << 16, dtype=torch.int32))
    buffer = taken(middle, "01", "k")

    assert middle.put("1", "2", "k", buffer)[0]
    buffer.release()

    with taken(last, "12", "k") as got:
        assert torch.equal(got.as_tensor(torch.int32, (1 << 16,)), torch.arange(1 << 16))


@pytest.mark.parametrize("nothing", [b"", torch.empty(0)])
def test_raw_bytes_that_are_none_are_not_put(build: Any, nothing: Any) -> None:
    assert build(stage_id=0).put("0", "1", "k", nothing) == (False, 0, None)


def test_what_cannot_be_serialized_is_told_and_its_key_is_free(
    build: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)

    assert sender.put("0", "1", "r_0_0", {"x": object()}) == (False, 0, None)
    assert sender.put("0", "1", "r_0_0", chunk(1))[0]

    assert is_equal(taken(receiver, "01", "r_0_0"), chunk(1))
    assert "'r_0_0' was not put from stage 0 for stage 1: TypeError" in caplog.text


def test_nothing_that_was_put_or_taken_is_kept(build: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)
    tensor = torch.ones(1 << 16)
    put, refused = weakref.ref(tensor), {"x": tensor, "y": object()}
    sender.put("0", "1", "bad", refused)
    sender.put("0", "1", "k", {"x": tensor})
    del tensor, refused

    assert put() is None
    got = taken(receiver, "01", "k")
    left = weakref.ref(got["x"])
    del got
    assert left() is None


def test_a_key_that_is_put_again_has_the_later_value(build: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)

    assert sender.put("0", "1", "k", chunk(1))[0]
    assert sender.put("0", "1", "k", chunk(2))[0]

    assert is_equal(taken(receiver, "01", "k"), chunk(2))
    assert receiver.get("0", "1", "k") is None


def test_results_that_the_host_keeps_do_not_fill_the_pool(build: Any) -> None:
    sender, receiver = build(stage_id=0, put_timeout_seconds=1), build(stage_id=1)

    kept = []
    for number in range(20):  # 20 MiB, of a pool of 8
        assert sender.put("0", "1", f"k{number}", {"x": torch.full((1 << 18,), number)})[0]
        kept.append(taken(receiver, "01", f"k{number}")["x"])

    assert [int(x[-1]) for x in kept] == list(range(20))


# --- gets that find nothing --------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [None, {}, [], "words", {"source_host": "127.0.0.1"}, {"source_host": [], "source_port": 7},
     {"source_host": 7, "source_port": "x"}, {"source_host": "127.0.0.1", "source_port": 99999}],
)  # fmt: skip
def test_a_get_never_raises(build: Any, metadata: Any) -> None:
    receiver = build(stage_id=1)

    assert receiver.get("0", "1", "k", metadata) is None
    assert receiver.get("0", "1", "k", metadata) is None
    assert receiver.get(0, None, 5, metadata) is None
    assert receiver.get("nowhere", "1", "k", metadata) is None


def test_a_sender_that_is_gone_costs_nothing_and_its_successor_is_found(build: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)
    sender.put("0", "1", "r_0_0", chunk())
    taken(receiver, "01", "r_0_0")
    sender.close()

    start_s = time.monotonic()
    for number in range(200):
        assert receiver.get("0", "1", f"r_1_{number}") is None
    assert time.monotonic() - start_s < PATIENCE_S / 2

    assert build(stage_id=0).put("0", "1", "r_2_0", chunk(2))[0]
    assert is_equal(taken(receiver, "01", "r_2_0"), chunk(2))


def test_a_sender_that_is_never_met_is_told_once(
    build: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stagelink.adapters.hosts.vllm_omni import receiving

    monkeypatch.setattr(receiving, "UNMET_S", -1.0)
    receiver = build(stage_id=1)

    until_s = time.monotonic() + PATIENCE_S
    while "no sender met yet" not in caplog.text and time.monotonic() < until_s:
        assert receiver.get("0", "1", "k") is None
    for _ in range(3):
        assert receiver.get("0", "1", "k") is None

    assert caplog.text.count("no sender met yet") == 1


def test_a_get_with_a_deadline_waits_for_what_is_put_meanwhile(build: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)
    sender.put("0", "1", "other", chunk())
    taken(receiver, "01", "other")
    later = threading.Timer(0.05, sender.put, ("0", "1", "k", chunk(1)))
    later.start()

    got = receiver.get_with_deadline("0", "1", "k", None, deadline=time.monotonic() + PATIENCE_S)

    receiver.abandon_get("k")
    later.join()
    assert got is not None
    assert is_equal(got[0], chunk(1))


def test_a_get_ends_at_its_deadline_and_may_be_repeated(build: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)
    sender.put("0", "1", "other", chunk())
    taken(receiver, "01", "other")

    for patience_s in (0.02, -1.0):
        late = time.monotonic() + patience_s
        assert receiver.get_with_deadline("0", "1", "k", None, deadline=late) is None
        receiver.abandon_get("k")

    sender.put("0", "1", "k", chunk(1))
    assert is_equal(taken(receiver, "01", "k"), chunk(1))


def test_a_wait_can_be_abandoned_from_another_thread(build: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)
    sender.put("0", "1", "other", chunk())
    taken(receiver, "01", "other")
    got: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    waiting = threading.Thread(
        target=lambda: got.append(
            receiver.get_with_deadline("0", "1", "k", None, deadline=deadline)
        )
    )
    waiting.start()

    while waiting.is_alive():
        receiver.abandon_get("k")

    assert got == [None]
    assert time.monotonic() < deadline


# --- the rest ----------------------------------------------------------------------------


def test_the_models_find_their_keys_where_they_look(build: Any) -> None:
    connector = build(stage_id=2, codec_chunk_frames=25)

    assert connector.config["codec_chunk_frames"] == 25
    assert (connector.stage_id, connector.supports_raw_data, connector.can_put) == (2, True, True)
    assert build().stage_id == -1


def test_cleanup_takes_back_what_nobody_has_taken(build: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)
    for key in ("keep", "drop"):
        sender.put("0", "1", key, chunk())

    sender.cleanup("drop")
    sender.cleanup("unknown")

    taken(receiver, "01", "keep")
    assert receiver.get("0", "1", "drop") is None


def test_the_host_lets_us_clean_up_after_an_abort_and_that_request_alone_is_gone(
    build: Any,
) -> None:
    from vllm_omni.distributed.omni_connectors.connectors import shm_connector

    sender, receiver = build(stage_id=0), build(stage_id=1)
    for key in ("r1_0_0", "r1_0_1", "r10_0_0"):
        assert sender.put("0", "1", key, chunk())[0]

    assert isinstance(sender, shm_connector.SharedMemoryConnector)
    for number in range(3):  # the last one was never put, or has failed
        sender.cleanup(f"r1_0_{number}")

    assert sender.health()["sending"][0]["ledger"]["entries"] == 1
    assert is_equal(taken(receiver, "01", "r10_0_0"), chunk())


def test_cleanup_drops_what_has_come_and_not_what_is_put_later(build: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)
    for key in ("first", "k"):
        sender.put("0", "1", key, chunk(1))
    taken(receiver, "01", "first")

    receiver.cleanup("k")
    assert receiver.get("0", "1", "k") is None
    sender.put("0", "1", "k", chunk(2))

    assert is_equal(taken(receiver, "01", "k"), chunk(2))


def test_health_counts_calls_and_tells_of_both_halves(build: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)
    assert sender.health()["status"] == "healthy"
    sender.put("0", "1", "k", chunk())
    sender.put("0", "1", "k", b"")
    taken(receiver, "01", "k")

    mine, theirs = sender.health(), receiver.health()

    assert (mine["puts"], mine["errors"], theirs["gets"]) == (1, 1, 1)
    assert mine["bytes_transferred"] == theirs["bytes_transferred"] > 0
    assert (len(mine["sending"]), len(theirs["receiving"])) == (1, 1)


def test_closing_twice_is_fine_and_afterwards_there_is_nothing(build: Any) -> None:
    connector = build(stage_id=1)
    connector.put("1", "2", "k", chunk())
    connector.get("0", "1", "k")

    connector.close()
    connector.close()

    assert connector.put("1", "2", "k", chunk()) == (False, 0, None)
    assert connector.get("0", "1", "k") is None
    late = time.monotonic() + PATIENCE_S
    assert connector.get_with_deadline("0", "1", "k", None, deadline=late) is None
    connector.abandon_get("k")
    connector.cleanup("k")
    connector.reap_consumed()
    assert connector.health()["status"] == "unhealthy"


def test_closing_beside_gets_and_puts_hangs_nobody(build: Any) -> None:
    connector = build(stage_id=1)
    begun, stop = threading.Event(), threading.Event()

    def busy() -> None:
        while not stop.is_set():
            connector.get("0", "1", "k")
            connector.put("1", "2", "k", chunk())
            begun.set()

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.wait(PATIENCE_S)

    connector.close()
    stop.set()

    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


WRONG: dict[str, list[Any]] = {
    "role": [7, "boss"],
    "host": [7],
    "zmq_port": [True, "x", 0, 70000, 1.5],
    "memory_pool_size": ["big", -1],
    "memory_pool_device": ["disk", 3],
    "backend_type": [5],
    "num_worker_threads": ["many"],
    "sender_host": [["a"]],
    "sender_zmq_port": ["x"],
    "buffer_ttl_seconds": [0, "x", float("inf")],
    "stagelink": ["x", {"timeouts": 5}],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, many in WRONG.items() for v in many])
def test_a_wrong_key_is_named_with_its_value(build: Any, name: str, value: Any) -> None:
    with pytest.raises(stagelink.ConfigError, match=rf"extra\.{name}") as caught:
        build(**{name: value})

    assert caught.value.remedy


def test_variables_of_the_environment_are_put_in(
    build: Any, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT_OF_THIS", str(base))
    monkeypatch.delenv("NOT_SET", raising=False)

    assert build(zmq_port="${PORT_OF_THIS}").zmq_port == base
    with pytest.raises(stagelink.ConfigError, match="NOT_SET"):
        build(zmq_port="${NOT_SET}")


def test_xgmi_on_a_cpu_pool_is_refused(build: Any) -> None:
    with pytest.raises(stagelink.ConfigError, match="memory_pool_device"):
        build(backend_type="xgmi")


def test_a_backend_that_cannot_work_is_told_at_once_and_the_host_goes_on(
    build: Any, caplog: pytest.LogCaptureFixture
) -> None:
    connector = build(stage_id=0, backend_type="shmm")

    assert "unknown backend 'shmm'" in caplog.text
    assert "did you mean 'shm'?" in caplog.text
    assert connector.put("0", "1", "k", chunk()) == (False, 0, None)
    assert connector.get("0", "1", "k") is None


def test_what_is_opened_is_logged_once(build: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for connector in (
        build(stage_id=0, backend_type="shm"),
        build(stage_id=0, backend_type="shm"),
    ):
        connector.put("0", "1", "k", chunk())

    assert caplog.text.count("stage 0 puts at tcp://127.0.0.1:") == 1
    assert "by shm, with a pool of 8388608 bytes" in caplog.text


def test_settings_of_stagelink_win(build: Any) -> None:
    sender = build(stage_id=0, stagelink={"shortcut": False, "timeouts": {"ttl_s": 77.0}})
    sender.put("0", "1", "k", chunk())

    assert sender.health()["sending"][0]["pool_size"] == 8 << 20
    held = next(iter(sender._sending._held.values())).connector
    assert (held.config.shortcut, held.config.policy.ttl_s) == (False, 77.0)


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_what_a_parent_has_opened_is_opened_anew_in_its_child(build: Any, base: int) -> None:
    receiver, sender = build(stage_id=1), build(stage_id=0)
    sender.put("0", "1", "k", chunk(3))
    taken(receiver, "01", "k")
    sender.put("0", "1", "k", chunk(4))

    child = os.fork()
    if not child:
        got = [receiver.get("0", "1", "k") for _ in range(1)]
        while got[-1] is None:
            time.sleep(0.001)
            got.append(receiver.get("0", "1", "k"))
        os._exit(0 if is_equal(got[-1][0], chunk(4)) else 1)

    assert os.waitpid(child, 0)[1] == 0


def test_the_same_thing_is_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    from stagelink.adapters.hosts.vllm_omni.telling import EVERY_S, Teller

    now_s = [0.0]
    teller = Teller(lambda: now_s[0])
    caplog.set_level(logging.WARNING)

    for moment in (0.0, 1.0, 2.0, EVERY_S):
        now_s[0] = moment
        teller.say("this", "happens")
    teller.say("that", "happens too")

    assert [record.getMessage() for record in caplog.records] == [
        "StagelinkConnector: happens",
        "StagelinkConnector: happens (and 2 times more since it was last told)",
        "StagelinkConnector: happens too",
    ]


# --- what hosts and their clients may do -------------------------------------------------


@pytest.mark.parametrize(
    "key", ["r" * 5000 + "_0_0", "one\nline_0_0", "\x00_0_0", "\ud800_0_0", "\x85_0_0", "ü_é_0_0"]
)
def test_whatever_a_client_calls_its_request_it_is_carried(build: Any, key: str) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)

    assert sender.put("0", "1", key, chunk())[0]
    assert sender.put("0", "1", f"{key[:-1]}1", chunk(1))[0]

    assert is_equal(taken(receiver, "01", f"{key[:-1]}1"), chunk(1))
    deadline_s = time.monotonic() + PATIENCE_S
    got = receiver.get_with_deadline("0", "1", key, deadline=deadline_s)
    assert is_equal(got[0], chunk())
    receiver.abandon_get(key)
    sender.cleanup(key)


def test_a_sender_has_all_of_its_pool(build: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)
    size = (8 << 20) * 15 // 16

    assert sender.put("0", "1", "r_0_0", {"x": torch.ones(size, dtype=torch.uint8)})[0]

    assert taken(receiver, "01", "r_0_0")["x"].numel() == size


def test_raw_bytes_that_are_kept_do_not_keep_the_pool(build: Any) -> None:
    sender, receiver = build(stage_id=0, put_timeout_seconds=2.0), build(stage_id=1)

    kept = []
    for number in range(16):
        assert sender.put("0", "1", f"r_0_{number}", torch.full((1 << 20,), number).byte())[0]
        kept.append(taken(receiver, "01", f"r_0_{number}"))

    assert [int(buffer.tensor[-1]) for buffer in kept] == list(range(16))


def test_an_empty_array_is_a_value_as_any_other(build: Any) -> None:
    sender, receiver = build(stage_id=0), build(stage_id=1)

    assert sender.put("0", "1", "r_0_0", np.empty((0, 3), np.int16))[0]

    assert taken(receiver, "01", "r_0_0").shape == (0, 3)


@pytest.mark.parametrize("name", ["sparse", "released", "none"])
def test_what_cannot_be_put_is_told_and_raises_nothing(
    build: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Gone:
        tensor = None

        def release(self) -> None:
            pass

    bad = {"sparse": torch.eye(2).to_sparse(), "released": Gone(), "none": memoryview(b"")}

    assert build(stage_id=0).put("0", "1", "r_0_0", bad[name]) == (False, 0, None)
    assert "'r_0_0' was not put" in caplog.text


def test_a_port_that_is_taken_is_told_with_the_key_of_the_yaml(
    build: Any, base: int, caplog: pytest.LogCaptureFixture
) -> None:
    sender = build(stage_id=0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", base))
        other.listen()
        assert sender.put("0", "1", "r_0_0", chunk()) == (False, 0, None)
    assert f"port {base} of 127.0.0.1" in caplog.text
    assert f"another extra.zmq_port (it is {base})" in caplog.text

    assert sender.put("0", "1", "r_0_0", chunk())[0]


def test_a_connector_that_is_collected_while_another_is_opened_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, build: Any, base: int
) -> None:
    from stagelink.adapters.hosts.vllm_omni import shared
    from stagelink.adapters.hosts.vllm_omni.connector import StagelinkConnector

    config = {"stage_id": 1, "zmq_port": base, "memory_pool_size": 1 << 20}
    forgotten = [StagelinkConnector(config)]
    forgotten[0].put("1", "2", "r_1_0", chunk())
    really = shared.REGISTRY._open

    def collecting(settings: dict[str, Any]) -> Any:
        forgotten.clear()
        return really(settings)

    monkeypatch.setattr(shared.REGISTRY, "_open", collecting)
    done: list[bool] = []
    sender = build(stage_id=0)
    work = threading.Thread(
        target=lambda: done.append(sender.put("0", "1", "r_0_0", chunk())[0]), daemon=True
    )
    work.start()
    work.join(PATIENCE_S)

    assert done == [True]
    assert is_free(base + 1)


def test_a_close_ends_a_wait_although_another_holds_the_same(build: Any) -> None:
    sender, receiver, other = build(stage_id=0), build(stage_id=1), build(stage_id=1)
    sender.put("0", "1", "r_0_0", chunk())
    sender.put("0", "1", "r_0_1", chunk(1))
    taken(receiver, "01", "r_0_0")
    taken(other, "01", "r_0_1")

    began_s = time.monotonic()
    threading.Timer(0.1, receiver.close).start()
    got = receiver.get_with_deadline("0", "1", "r_0_2", deadline=began_s + PATIENCE_S)

    assert got is None
    assert time.monotonic() - began_s < PATIENCE_S / 2
    sender.put("0", "1", "r_0_3", chunk(3))
    assert is_equal(taken(other, "01", "r_0_3"), chunk(3))
