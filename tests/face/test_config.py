from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

import stagelink
from stagelink.config import Config, check_port, load_config
from stagelink.core.errors import ConfigError

GIVEN = {"stage": "thinker", "role": "sender"}


def load(**settings: Any) -> Config:
    return load_config({**GIVEN, **settings})


def test_stage_and_role_are_enough() -> None:
    config = load()

    assert config.host == "127.0.0.1"
    assert (config.pool_bytes, config.alignment) == (256 << 20, 4096)
    assert (config.eager_limit, config.inline_bytes) == (65 << 10, 64 << 20)
    assert (config.backend, config.readers, config.on_duplicate) == ("auto", 1, "error")


def test_a_receiver_may_learn_of_its_senders_later() -> None:
    assert load(role="receiver").sender is None


@pytest.mark.parametrize("missing", ["stage", "role"])
def test_what_has_no_default_is_asked_for(missing: str) -> None:
    with pytest.raises(ConfigError, match=missing):
        load_config({name: value for name, value in GIVEN.items() if name != missing})


@pytest.mark.parametrize(
    ("misspelt", "right"),
    [("zmq_prot", "zmq_port"), ("pool_byte", "pool_bytes"), ("Backend", "backend")],
)
def test_a_misspelt_setting_suggests_the_right_one(misspelt: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"{misspelt!r}.*did you mean '{right}'"):
        load(**{misspelt: 1})


def test_a_setting_like_no_other_lists_all() -> None:
    with pytest.raises(ConfigError, match="known settings: stage, role"):
        load(xyzzy=1)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 512 << 20), ("1g", 1 << 30), ("8192", 8192), (" 64 KiB ", 65536), (4096, 4096)],
)
def test_a_pool_is_sized_in_bytes_or_in_words(text: object, size: int) -> None:
    assert load(pool_bytes=text).pool_bytes == size


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stage", 3),
        ("role", "reader"),
        ("zmq_port", -1),
        ("zmq_port", 65536),
        ("zmq_port", "5555"),
        ("pool_bytes", 4095),
        ("pool_bytes", -1),
        ("pool_bytes", nan),
        ("pool_bytes", "lots"),
        ("pool_bytes", "-1MiB"),
        ("alignment", 0),
        ("alignment", 1000),
        ("eager_limit", -1),
        ("inline_bytes", -1),
        ("replica", -1),
        ("rank", -1),
        ("readers", -1),
        ("max_writes", 0),
        ("send_share", nan),
        ("send_share", -0.1),
        ("receive_share", 1.5),
        ("receive_share", inf),
        ("on_duplicate", "ignore"),
        ("allow_wildcard", "yes"),
        ("sender", 5),
        ("senders", ["tcp://127.0.0.1:1"]),
        ("timeouts", {"query_s": "soon"}),
    ],
)
def test_a_wrong_value_names_its_setting_and_a_remedy(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**{name: value})

    word = "port" if name == "zmq_port" else name
    assert word in str(caught.value)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stage", ["", "a\nb"])
def test_a_stage_needs_a_name(stage: str) -> None:
    with pytest.raises(ConfigError, match="stage"):
        load(stage=stage)
    with pytest.raises(ConfigError, match="stage"):
        load(senders={stage: "tcp://127.0.0.1:1"})


def test_a_page_is_the_smallest_pool() -> None:
    assert load(pool_bytes=4096).pool_bytes == 4096


def test_shares_may_fill_the_pool_but_no_more() -> None:
    assert load(send_share=0.5, receive_share=0.5).send_share == 0.5
    with pytest.raises(ConfigError, match="together"):
        load(send_share=0.6, receive_share=0.5)


def test_timeouts_are_checked_together() -> None:
    assert load(timeouts={"ttl_s": 60.0}).policy.ttl_s == 60.0
    with pytest.raises(ConfigError, match=r"query_s is 70.0 s, ttl_s only 60.0 s"):
        load(timeouts={"ttl_s": 60.0, "query_s": 70.0})


@pytest.mark.parametrize("value", [0.0, -1.0, nan, inf])
def test_a_timeout_that_never_ends_or_began_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="query_s"):
        load(timeouts={"query_s": value})


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        load().stage = "other"  # type: ignore[misc]


@pytest.mark.parametrize("port", [True, "80", 1.0, None, -1, 65536])
def test_a_port_is_a_number_in_range(port: object) -> None:
    with pytest.raises(ConfigError, match="use 0 for any free port"):
        check_port(port)


@pytest.mark.parametrize("port", [0, 1, 65535])
def test_the_ends_of_the_port_range_are_in_it(port: int) -> None:
    assert check_port(port) == port


# --- the backends over Mori ----------------------------------------------------------------------


def test_moris_settings_have_the_defaults_of_vllm_omni() -> None:
    mori = load().mori
    assert (mori.device_name, mori.qp_per_transfer, mori.post_batch_size) == ("", 1, -1)
    assert (mori.num_worker_threads, mori.xgmi_num_streams, mori.xgmi_num_events) == (1, 64, 64)
    assert (mori.poll_cq_mode, mori.enable_notification) == ("polling", False)


def test_a_misspelt_setting_of_mori_suggests_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"unknown mori setting 'qp_per.*'qp_per_transfer'"):
        load(mori={"qp_per_transfers": 2})


@pytest.mark.parametrize("device", ["", "cpu", "cuda", "cuda:1", "hip:12"])
def test_a_pool_of_moris_lies_on_the_cpu_or_a_device(device: str) -> None:
    assert load(mori={"memory_pool_device": device}).mori.memory_pool_device == device


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_pool_device", "tpu"),
        ("memory_pool_device", "cuda:"),
        ("memory_pool_device", "cuda:-1"),
        ("memory_pool_device", "cpu:0"),
        ("qp_per_transfer", 0),
        ("num_worker_threads", -1),
        ("xgmi_num_streams", 0),
        ("xgmi_num_events", 1 << 31),
        ("post_batch_size", 0),
        ("post_batch_size", -2),
        ("chunk_bytes", 0),
    ],
)
def test_a_setting_of_mori_out_of_range_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"setting 'mori.{name}' is "):
        load(mori={name: value})


@pytest.mark.parametrize("value", [{"poll_cq_mode": "busy"}, {"qp_per_transfer": "x"}, 3])
def test_a_setting_of_mori_of_another_type_is_named(value: object) -> None:
    with pytest.raises(ConfigError, match=r"wrong setting: .*\$\.mori"):
        load(mori=value)


def test_xgmi_refuses_a_pool_on_the_cpu() -> None:
    with pytest.raises(ConfigError, match=r"cannot reach memory of the CPU.*mori-rdma"):
        load(backend="mori-xgmi", mori={"memory_pool_device": "cpu"})
    rdma = load(backend="mori-rdma", mori={"memory_pool_device": "cpu"})
    assert rdma.mori.memory_pool_device == "cpu"


def test_what_would_serve_is_told_without_opening_anything() -> None:
    assert stagelink.check(stage="a", role="peer", backend="memory") == ("memory",)
    with pytest.raises(ConfigError, match="unknown backend 'memry'"):
        stagelink.check(stage="a", role="peer", backend="memry")
    with pytest.raises(ConfigError, match="unknown setting 'rank_'"):
        stagelink.check(stage="a", role="peer", rank_=1)
