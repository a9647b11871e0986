"""What honest parties send, to begin with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from msgspec.msgpack import encode
from tests.adapters.test_wire import SAMPLES

from stagelink.adapters.msgspec.serializer import PayloadSerializer
from stagelink.adapters.msgspec.wire import WireCodec
from stagelink.adapters.vllm_omni_mori import frames as their
from stagelink.adapters.vllm_omni_mori import values as values_of
from stagelink.adapters.wrap import Compression, Integrity, Wrapping
from stagelink.core.payload import DIGEST_BYTES, parse
from stagelink.plugins import Manager

Frames = list[bytes]
CODEC = WireCodec()


class Colour(Enum):
    """An enum to put."""

    RED = 1


@dataclass
class Point:
    """A dataclass to put."""

    x: int
    y: list[int]


def values() -> list[Any]:
    """A value of every kind that a payload may hold, as far as it is installed."""
    plain: list[Any] = [
        None, 1, 2**80, 1.5, 1j, "text", b"bytes", bytearray(b"more"), b"far" * 99, (1, 2), {3}, frozenset("a"),
        {"a": [1, {"b": None}], 5: ()}, {(1, 2): "key"}, Point(1, [2]), Colour.RED, memoryview(b"view" * 64),
    ]  # fmt: skip
    try:
        import numpy as np
        import torch
    except ImportError:
        return [*plain, plain]
    bulk = [
        torch.arange(6.0).reshape(2, 3),
        torch.zeros(0),
        np.arange(5, dtype="<i4"),
        np.float32(2),
    ]
    return [*plain, *bulk, {"all": [*plain, *bulk]}]


@lru_cache(1)
def wrapping() -> Wrapping:
    """Digests and every compressor that works here."""
    return Wrapping(Integrity("xxh3"), Compression(known=Manager().working_compressors()))


def written(staged: Any) -> bytes:
    """The bytes of a staged value."""
    out = bytearray(staged.size)
    staged.write(memoryview(out))
    return bytes(out)


def control() -> list[Frames]:
    """Every message."""
    return [CODEC.encode(message) for message in SAMPLES]


def dialect() -> list[Frames]:
    """Every frame of vLLM-Omni's Mori connector."""
    name = "req-7_0_3@0_1"
    messages: list[their.Request | their.Answer] = [
        their.Pull(name, b"engine" * 30, b"memory" * 30, 8192, 70_000), their.Query(name),
        their.Info(name, 70_000, is_fast_path=True), their.DONE, their.ERROR, their.NOT_FOUND,
    ]  # fmt: skip
    return [[their.encode(message)] for message in messages]


def their_values() -> list[Frames]:
    """Values as vLLM-Omni packs them."""
    plain: list[Any] = [
        {"meta": {"finished": True}, "ids": [1, 2, None], "text": "a", "bytes": b"b"},
        [],
        None,
    ]
    try:
        import numpy as np
        import torch
    except ImportError:
        return [[encode(value)] for value in plain]
    tree = {
        "hidden": torch.arange(6.0).reshape(2, 3),
        "ids": np.arange(5, dtype="<i4"),
        "one": torch.tensor(1),
    }
    return [[bytes(values_of.encode(value).data)] for value in (*plain, tree)]


def payloads() -> list[Frames]:
    """Every kind of value."""
    serializer = PayloadSerializer()
    return [[written(serializer.stage(value))] for value in values()]


def headers() -> list[Frames]:
    """Their headers alone, each with the lengths of its buffers."""
    made = []
    for [data] in payloads():
        layout = parse(data, len(data))
        lengths = [length for length, _ in layout.buffers]
        made.append([data[layout.header_start : layout.header_stop], encode(lengths)])
    return made


def wrapped() -> list[Frames]:
    """Payloads with a digest, and compressed ones with and without."""
    around, serializer = wrapping(), PayloadSerializer()
    made: list[Frames] = []
    for value in ({"z": b"z" * 4000}, b"short", [b"a" * 900, "b" * 900]):
        made.append([written(around.wrap(serializer.stage(value), "", False))])
        for name in around.compression.names:
            sealed = written(around.wrap(serializer.stage(value), name, False))
            made += [[sealed], [sealed[:-DIGEST_BYTES]]]
    return made


def settings() -> list[Frames]:
    """Configurations, as MessagePack."""
    return [
        [encode({"stage": "a", "role": "peer", "sender": "tcp://127.0.0.1:5", "pool_bytes": "64MiB"})],
        [encode({"stage": "a", "role": "sender", "timeouts": {"ttl_s": 500.0}, "alignment": 4096,
                 "compression": {"b": "zstd"}, "senders": {"x": "ipc:///tmp/s"}, "host": "auto"})],
    ]  # fmt: skip


def metadata() -> list[Frames]:
    """A receipt's metadata, whole and as another side may build it."""
    return [
        [encode({"endpoint": "tcp://127.0.0.1:5", "key": "k@a_b", "size": 5, "generation": 2, "instance": "0f" * 16})],
        [encode({"source_host": "::1", "source_port": 5, "size": 0})],
    ]  # fmt: skip


def texts() -> list[Frames]:
    """Keys, stages and addresses."""
    some = (
        "k%40@a%5Fb_c",
        "req-7_0_3",
        "tcp://127.0.0.1:5555",
        "tcp://[::1]:1",
        "ipc:///tmp/x",
        "\x1fend 3 12",
    )
    return [[text.encode()] for text in some]
