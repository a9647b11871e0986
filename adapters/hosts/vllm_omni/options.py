"""What ``extra`` of the deploy YAML says, checked where it enters.

The keys are those that vLLM-Omni 0.30.0 has for MoriTransferEngineConnector, one that it has for
Mooncake, and a few of ours. All the rest are the models' own, and nobody's business here.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

BACKENDS = {"xgmi": "mori-xgmi", "rdma": "mori-rdma"}
"""Mori's names of its backends, and ours."""

ROLES = ("sender", "receiver", "peer", "auto")
_DEVICE = re.compile(r"(cpu|(cuda|hip)(:\d{1,4})?)\Z")
_MORI = (
    "device_name", "qp_per_transfer", "post_batch_size", "num_worker_threads",
    "xgmi_num_streams", "xgmi_num_events",
)  # fmt: skip
_WORDS = {"device_name", "host", "memory_pool_device", "backend_type", "role"}


class Options(NamedTuple):
    """The connector's configuration, complete and checked.

    Attributes:
        host: to bind; ``auto`` stands for the address that other hosts know us by.
        base_port: that all ports are counted from.
        backend: ``auto``, or the name of one of stagelink's backends.
        pool_bytes, pool_device: of each direction's pool.
        sender_host, sender_port: where to get from unless told otherwise; empty and 0: by rule.
        purpose: ``request_forwarding`` or ``kv_transfer``, which have ports of their own.
        ttl_s, put_s: how long an unread payload is kept, and a put waits for room.
        mori: fields of stagelink's ``mori`` setting.
        settings: settings of :func:`stagelink.open` that win over all of these.
    """

    host: str
    base_port: int
    backend: str
    pool_bytes: int
    pool_device: str
    sender_host: str
    sender_port: int
    purpose: str
    ttl_s: float
    put_s: float
    mori: dict[str, Any]
    settings: dict[str, Any]

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Options:
        """Check *extra*, the connector's part of the YAML and what the host has added to it.

        Raises:
            ConfigError: names the key, its value and the remedy.
        """
        words = {name: _word(extra, name) for name in _WORDS}
        role = words["role"].lower()
        if role and role not in ROLES:
            refuse("role", extra["role"], f"use one of {', '.join(ROLES)}, or leave it out")
        device = words["memory_pool_device"].lower() or "cpu"
        if not _DEVICE.match(device):
            refuse("memory_pool_device", device, "use 'cpu', 'cuda', or for example 'cuda:1'")
        backend = words["backend_type"].lower() or "auto"
        if backend == "xgmi" and device == "cpu":
            remedy = "XGMI links GPUs: set memory_pool_device: cuda, or backend_type: auto"
            refuse("memory_pool_device", device, remedy)
        return cls(
            host=words["host"] or "127.0.0.1",
            base_port=port(extra, "zmq_port", 50051),
            backend=BACKENDS.get(backend, backend),
            pool_bytes=_whole(extra, "memory_pool_size", 1 << 30, 1 << 16, 1 << 50),
            pool_device=device,
            sender_host=_word(extra, "sender_host"),
            sender_port=port(extra, "sender_zmq_port", 0),
            purpose=_purpose(extra),
            ttl_s=_seconds(extra, "buffer_ttl_seconds", 600.0),
            put_s=_seconds(extra, "put_timeout_seconds", 30.0),
            mori=_mori(extra, backend),
            settings=_settings(extra),
        )

    def opened_with(self, **ours: Any) -> dict[str, Any]:  # noqa: ANN401 - any setting
        """Settings of :func:`stagelink.open`: *ours*, what both halves have, the user's own."""
        theirs = dict(self.settings)
        timeouts = {**self.timeouts(), **theirs.pop("timeouts", {})}
        return {
            "backend": self.backend,
            "pool_bytes": self.pool_bytes,
            "pool_device": self.pool_device,
            "mori": {"memory_pool_device": self.pool_device, **self.mori},
            "timeouts": timeouts,
            **ours,
            **theirs,
        }

    def timeouts(self) -> dict[str, float]:
        """The durations in stagelink's words; nobody waits longer than a payload is kept."""
        return {
            "ttl_s": self.ttl_s,
            "put_s": min(self.put_s, self.ttl_s / 2),
            "transfer_base_s": min(30.0, self.ttl_s / 2),
            "query_s": min(5.0, self.ttl_s / 2),
        }


def _purpose(extra: Mapping[str, Any]) -> str:
    """The host names a stage, or an edge, to all but those that carry KV caches."""
    named = extra.get("stage_id") is not None or extra.get("from_stage") is not None
    return "request_forwarding" if named else "kv_transfer"


def _mori(extra: Mapping[str, Any], backend: str) -> dict[str, Any]:
    chosen = {name: extra[name] for name in _MORI if extra.get(name) is not None}
    for name, value in chosen.items():
        if name != "device_name":
            chosen[name] = _whole(extra, name, value, -1, 1 << 31)
    if backend == "xgmi":
        chosen.pop("device_name", None)  # it needs no NIC
    return chosen


def _settings(extra: Mapping[str, Any]) -> dict[str, Any]:
    settings = extra.get("stagelink") or {}
    if not isinstance(settings, dict):
        refuse("stagelink", settings, "give a mapping of settings of stagelink.open()")
    if not isinstance(settings.get("timeouts", {}), dict):
        refuse("stagelink.timeouts", settings["timeouts"], "give a mapping of seconds by name")
    return dict(settings)


def _word(extra: Mapping[str, Any], name: str) -> str:
    value = extra.get(name)
    if value is not None and not isinstance(value, str):
        refuse(name, value, "give a string")
    return expanded(name, value or "").strip()


def port(extra: Mapping[str, Any], name: str, default: int) -> int:
    """A TCP port; 0 only as the *default*.

    Raises:
        ConfigError: it is none.
    """
    return _whole(extra, name, default, 1, 65535)


def _whole(extra: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    value: Any = extra.get(name)
    if value is None:
        return default
    if isinstance(value, str):
        text = expanded(name, value).strip()
        value = int(text) if text.removeprefix("-").isdecimal() else value
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        refuse(name, value, f"give a whole number from {least} to {most}")
    return int(value)


def _seconds(extra: Mapping[str, Any], name: str, default: float) -> float:
    value = extra.get(name)
    if value is None:
        return default
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0.001 <= value <= 1e9:  # noqa: PLR2004
        refuse(name, value, "give seconds, above 0 and finite")
    return float(value)


def expanded(name: str, text: str) -> str:
    """*text* with ``$VARIABLES`` of the environment in place, as the host writes them.

    Raises:
        ConfigError: one of them is not set.
    """
    full = os.path.expandvars(text)
    if "$" in full:
        refuse(name, text, "set the environment variable, or write the value itself")
    return full


def refuse(name: str, value: object, remedy: str) -> None:
    """Raise the ConfigError of one key."""
    msg = f"StagelinkConnector: extra.{name} is {value!r}"
    raise ConfigError(msg, remedy=remedy)
