"""Values in the form in which vLLM-Omni's connectors move them, as of its 0.30.0.

A tensor or bytes travel as they are, without shape or type. Everything else is MessagePack, in
which maps with a marker stand for tensors, arrays and pictures:

``{"__tensor__": true, "dtype": "bfloat16", "shape": [2, 3], "data": bytes}``, ``__ndarray__`` with
numpy's name for the type (``<f4``), and ``__pil_image__`` with ``mode`` in its place.
"""

from __future__ import annotations

import sys
from math import prod
from typing import Any, NamedTuple, NoReturn

import msgspec

from stagelink.core.errors import PayloadError, Reason

TENSOR, ARRAY, PICTURE = "__tensor__", "__ndarray__", "__pil_image__"

TORCH_TYPES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2,
    "uint32": 4, "uint64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "complex64": 8, "complex128": 16, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
"""Element types of torch that are taken, with their bytes; never whatever attribute is named."""

ARRAY_KINDS = "biufcSUmM"
"""Kinds of numpy's types that are data: no objects, no records."""

MODES = {"1": 1, "L": 1, "P": 1, "RGB": 3, "RGBA": 4, "CMYK": 4, "YCbCr": 3, "HSV": 3, "LAB": 3}
"""Modes of pictures that are taken, with the bytes of a pixel."""

DIMENSIONS = 32


class Form(NamedTuple):
    """A value as they move it: its bytes, and whether they are plain (``is_fast_path``)."""

    data: memoryview
    plain: bool


def encode(value: Any) -> Form:  # noqa: ANN401 - whatever was put
    """*value* in their form; a plain one is a view of it where it is contiguous on the host.

    Raises:
        PayloadError: something in it has no form of theirs.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Form(memoryview(value).cast("B"), plain=True)
    if _is_tensor(value):
        return Form(memoryview(_tensor_bytes(value)).cast("B"), plain=True)
    try:
        return Form(memoryview(_encode(value)), plain=False)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        msg = f"a {type(value).__name__} has no form in vLLM-Omni's dialect: {error}"
        raise PayloadError(msg, remedy="put tensors, arrays, and plain containers") from error


def plain_size(value: object) -> int:
    """The bytes of a value that travels as it is; -1: it is packed, or has no form."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return memoryview(value).nbytes
    if _is_tensor(value):
        tensor: Any = value
        known = str(tensor.dtype).removeprefix("torch.") in TORCH_TYPES
        return int(tensor.nbytes) if known and not tensor.is_sparse else -1
    return -1


def decode(data: bytes | bytearray | memoryview) -> Any:  # noqa: ANN401 - whatever they put
    """The value of packed *data*; tensors and arrays are copies. Other objects stay maps.

    Raises:
        PayloadError: it is not in their form; or a library is missing that a part of it needs.
    """
    try:
        return _restored(msgspec.msgpack.decode(data))
    except PayloadError:
        raise
    except (ValueError, TypeError, RecursionError, MemoryError, OverflowError) as error:
        _malformed(str(error) or type(error).__name__, error)


# --- to their form -----------------------------------------------------------------------------


def _hook(value: Any) -> Any:  # noqa: ANN401 - whatever MessagePack does not know
    if _is_tensor(value):
        name = str(value.dtype).removeprefix("torch.")
        return _marked(TENSOR, "dtype", name, value.shape, _tensor_bytes(value))
    numpy, pictures = sys.modules.get("numpy"), sys.modules.get("PIL.Image")
    if numpy is not None and isinstance(value, numpy.ndarray):
        if value.dtype.kind not in ARRAY_KINDS:
            msg = f"an array of {value.dtype}"
            raise TypeError(msg)
        return _marked(ARRAY, "dtype", value.dtype.str, value.shape, value.tobytes())
    if pictures is not None and isinstance(value, pictures.Image):
        return _picture(value)
    if isinstance(value, slice):
        return (value.start, value.stop, value.step)
    msg = f"{type(value).__name__} is none of tensor, array, picture and plain data"
    raise TypeError(msg)


def _marked(
    marker: str, kind: str, name: str, shape: Any, data: bytes | memoryview  # noqa: ANN401
) -> dict[str, Any]:  # fmt: skip
    return {marker: True, kind: name, "shape": list(shape), "data": data}


def _picture(value: Any) -> dict[str, Any]:  # noqa: ANN401 - Pillow has no types here
    if value.mode not in MODES or value.mode == "1":
        msg = f"a picture of mode {value.mode!r}"
        raise TypeError(msg)
    bands = len(value.getbands())
    shape = (value.height, value.width, *([bands] if bands > 1 else []))
    return _marked(PICTURE, "mode", value.mode, shape, value.tobytes())


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _tensor_bytes(tensor: Any) -> memoryview:  # noqa: ANN401 - torch is not imported here
    import torch  # noqa: PLC0415 - it is loaded: there is a tensor

    if str(tensor.dtype).removeprefix("torch.") not in TORCH_TYPES or tensor.is_sparse:
        msg = f"a tensor of {tensor.dtype}, {tensor.layout}"
        raise PayloadError(msg + " has no form in vLLM-Omni's dialect", remedy="convert it first")
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(plain.view(torch.uint8).numpy())


_encode = msgspec.msgpack.Encoder(enc_hook=_hook).encode

# --- and back ----------------------------------------------------------------------------------


def _restored(value: Any) -> Any:  # noqa: ANN401 - whatever they put
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    for marker, restore in _RESTORERS.items():
        if value.get(marker):
            return restore(value)
    return {key: _restored(item) for key, item in value.items()}


def _tensor(found: dict[Any, Any]) -> Any:  # noqa: ANN401 - torch is not imported here
    name, shape, data = _parts(found, "dtype")
    width = TORCH_TYPES.get(name)
    if width is None:
        _malformed(f"a tensor of {name!r:.80}")
    _check_size(shape, width, data)
    try:
        import torch  # noqa: PLC0415 - only who is sent tensors needs it
    except ImportError as error:
        msg = "the payload holds a tensor, and torch is not installed"
        raise PayloadError(msg, remedy="pip install 'stagelink[torch]'") from error
    kind = getattr(torch, name, None)
    if kind is None:
        _malformed(f"this torch has no {name}")
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(kind).reshape(shape)


def _array(found: dict[Any, Any]) -> Any:  # noqa: ANN401 - numpy is not imported here
    name, shape, data = _parts(found, "dtype")
    try:
        import numpy as np  # noqa: PLC0415 - only who is sent arrays needs it
    except ImportError as error:
        msg = "the payload holds an array, and numpy is not installed"
        raise PayloadError(msg, remedy="pip install 'stagelink[numpy]'") from error
    kind = np.dtype(name) if len(name) <= 16 and name[:1] in "<>|=" else None  # noqa: PLR2004
    if kind is None or kind.kind not in ARRAY_KINDS or not kind.itemsize:
        _malformed(f"an array of {name!r:.80}")
    _check_size(shape, kind.itemsize, data)
    return np.frombuffer(bytearray(data), dtype=kind).reshape(shape)


def _image(found: dict[Any, Any]) -> Any:  # noqa: ANN401 - Pillow is not imported here
    mode, shape, data = _parts(found, "mode")
    pixel = MODES.get(mode, 0)
    flat, deep = len(shape) == 2 and pixel == 1, len(shape) == 3 and shape[2:] == [pixel]  # noqa: PLR2004
    if not pixel or mode == "1" or not (flat or deep) or not all(shape[:2]):
        _malformed(f"a picture of mode {mode!r:.80} and shape {shape}")
    _check_size(shape, 1, data)
    try:
        from PIL import Image  # noqa: PLC0415 - only who is sent pictures needs it
    except ImportError as error:
        msg = "the payload holds a picture, and Pillow is not installed"
        raise PayloadError(msg, remedy="pip install pillow") from error
    return Image.frombytes(mode, (shape[1], shape[0]), data)


_RESTORERS = {TENSOR: _tensor, ARRAY: _array, PICTURE: _image}


def _parts(found: dict[Any, Any], kind: str) -> tuple[str, list[int], bytes]:
    """The name of the type, the shape and the bytes of a marked map, checked for their types."""
    name, shape, data = found.get(kind), found.get("shape"), found.get("data")
    if not isinstance(name, str) or not isinstance(data, bytes) or not isinstance(shape, list):
        _malformed(f"a marked map with the keys {sorted(map(str, found))}"[:200])
    if len(shape) > DIMENSIONS or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        _malformed(f"the shape {shape!r:.80}")
    return name, shape, data


def _check_size(shape: list[int], width: int, data: bytes) -> None:
    if prod(shape) * width != len(data):
        _malformed(f"{len(data)} bytes for the shape {shape} of {width} bytes each")


def _malformed(what: str, error: BaseException | None = None) -> NoReturn:
    msg, remedy = (
        f"these bytes are no payload of vLLM-Omni's: {what}",
        "compare its version with 0.30.0",
    )
    raise PayloadError(msg, reason=Reason.PROTOCOL, remedy=remedy) from error
