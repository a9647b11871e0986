"""The host's objects as stagelink's values, and back.

vLLM-Omni's own serializer knows what its objects look like on the wire: it lays out the tree, as
one MessagePack header. Tensors and arrays stay out of it: they go beside the header, where their
bytes are copied once and are views at the other end. The result is what the host's serializer
alone would have given, and there is no pickle.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from msgspec import msgpack
from torch import Tensor
from vllm_omni.distributed.omni_connectors.utils import serialization as theirs
from vllm_omni.distributed.omni_connectors.utils.serialization import (
    OmniMsgpackDecoder,
    OmniMsgpackEncoder,
    OmniSerializer,
)

from stagelink.adapters.hosts.vllm_omni.buffers import Buffer, is_buffer

if TYPE_CHECKING:
    from stagelink import Payload

BESIDE = 17
"""The MessagePack extension that stands for the n-th item beside the header, n in 4 bytes."""

FLAG = 18
"""The extension that is a tensor of one truth value: each chunk has two or three of them, which
beside the header would cost more than all that they say."""

_TRUE, _FALSE = msgpack.Ext(FLAG, b"\1"), msgpack.Ext(FLAG, b"\0")

_PICTURE = "__pil_image__"
_SPECIAL = tuple(
    name.encode()
    for name in (
        "__tensor__", "__ndarray__", _PICTURE, "finish_reason", "final_output_type", "images",
        "prompt_token_ids",
    )
)  # fmt: skip
"""The host's decoder makes objects of dicts only where one of these is a key."""


class Outward(OmniMsgpackEncoder):  # type: ignore[misc]  # the host has no types here
    """The host's encoder, which leaves the bulk beside; for one value at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.beside: list[Any] = []

    def laid_out(self, data: Any) -> tuple[bytes, list[Any]]:  # noqa: ANN401
        """The header of *data*, and what is beside it; none of it is kept.

        Raises:
            TypeError, ValueError: the host's serializer takes no such thing.
        """
        try:
            header: bytes = self.encode(data)
            return header, self.beside
        finally:
            self.beside = []

    def _left(self, bulk: Any) -> msgpack.Ext:  # noqa: ANN401 - a tensor or an array
        self.beside.append(bulk)
        return msgpack.Ext(BESIDE, (len(self.beside) - 1).to_bytes(4, "little"))

    def _encode_tensor(self, tensor: Tensor) -> Any:  # noqa: ANN401
        if tensor.dtype is torch.bool and tensor.dim() == 0 and tensor.device.type == "cpu":
            return _TRUE if tensor.numpy() else _FALSE  # by numpy, which keeps the GIL
        return self._left(tensor)

    def _encode_ndarray(self, arr: Any) -> Any:  # noqa: ANN401
        return self._left(arr)

    def _encode_pil_image(self, img: Any) -> dict[str, Any]:  # noqa: ANN401
        pixels = np.ascontiguousarray(np.asarray(img, dtype=np.uint8))
        data = self._left(pixels.reshape(-1))
        return {_PICTURE: True, "mode": img.mode, "shape": list(pixels.shape), "data": data}


def outward(data: Any) -> Any:  # noqa: ANN401 - whatever the host puts
    """What to put for *data*: raw bytes as they are, all else as a header and what is beside it.

    Raises:
        TypeError, ValueError: the host's serializer takes no such thing.
    """
    if isinstance(data, Tensor):
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return np.frombuffer(data, np.uint8)
    if is_buffer(data):
        return _within(data)
    header, beside = _encoder().laid_out(data)
    return [memoryview(header), *beside] if beside else header


def _within(buffer: Any) -> Tensor:  # noqa: ANN401 - of any connector
    if not isinstance(buffer.tensor, Tensor):
        msg = f"a {type(buffer).__name__} that has been released, or never had a tensor"
        raise ValueError(msg)  # noqa: TRY004 - not its type is wrong
    return buffer.tensor


def _encoder() -> Outward:
    """This thread's: one for each value would be a cycle of references that holds its tensors."""
    encoder: Outward | None = getattr(_OF_THREAD, "encoder", None)
    if encoder is None:
        encoder = _OF_THREAD.encoder = Outward()
    return encoder


def wholly(data: Any) -> Any:  # noqa: ANN401 - whatever the host puts
    """What to put for *data* if :func:`outward` will not do: the host's own bytes, all of them.

    Raises:
        TypeError, ValueError: the host's serializer takes no such thing.
    """
    header: bytes = OmniSerializer.serialize(data)
    return header


def inward(payload: Payload, *, apart: bool) -> Any:  # noqa: ANN401 - whatever was put
    """What the host gets for *payload*: views of it, or copies if *apart* (it is closed then).

    Raises:
        StagelinkError, msgspec.DecodeError, LookupError: it is none of ours.
    """
    value = payload.value
    if isinstance(value, bytes):
        payload.close()
        return _decoded(value, [])
    if not isinstance(value, list):
        return _raw(payload, value, apart)
    header, *beside = value
    if apart:
        beside = [_copied(item) for item in beside]
    decoded = _decoded(bytes(header), beside)
    del value, header, beside
    payload.close()  # what is viewed of it stays until the last view has gone
    return decoded


def _raw(payload: Payload, value: Any, apart: bool) -> Buffer:  # noqa: ANN401 - as it was put
    buffer = Buffer(payload, _copied(value) if apart else value)
    if apart:
        payload.close()
    return buffer


def _decoded(header: bytes, beside: list[Any]) -> Any:  # noqa: ANN401
    def there(code: int, data: memoryview) -> Any:  # noqa: ANN401
        if code == FLAG:
            return torch.from_numpy(np.array(bool(data[0])))
        if code == BESIDE:
            return beside[int.from_bytes(data, "little")]
        return msgpack.Ext(code, bytes(data))

    tree = msgpack.Decoder(ext_hook=there).decode(header)
    if any(name in header for name in _SPECIAL):
        return _DECODER._post_process(tree)  # noqa: SLF001 - it has no other name for it
    return tree


def _copied(bulk: Any) -> Any:  # noqa: ANN401
    return bulk.clone() if isinstance(bulk, Tensor) else np.array(bulk)


_OF_THREAD = threading.local()
_DECODER: Any = OmniMsgpackDecoder()
assert theirs._PIL_IMAGE_MARKER == _PICTURE, "this vLLM-Omni lays out pictures in another way"  # noqa: SLF001
