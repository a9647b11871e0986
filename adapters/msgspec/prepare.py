"""The payload of one tensor, laid out before the tensor is computed: nothing is copied at all."""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from stagelink.adapters.msgspec import leaves as lv
from stagelink.adapters.msgspec.staged import framed
from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagelink.ports.memory import DeviceBytes


class Prepared:
    """Room for one tensor or array: ``size`` bytes, of which :meth:`open` writes the ``head``."""

    __slots__ = ("_make", "_nbytes", "head", "size")

    def __init__(
        self, code: int, dtype: object, shape: tuple[int, ...], nbytes: int, traceparent: str
    ) -> None:
        self.head, self.size = framed(code, dtype, shape, nbytes, traceparent)
        self._nbytes = nbytes
        self._make: Callable[[Any, int], Any] = _maker(code, dtype, shape, nbytes)

    def open(self, target: Any) -> Any:  # noqa: ANN401 - any buffer; a tensor or an array
        """Make the first ``size`` bytes of *target* the payload; return its tensor, to be filled.

        The tensor keeps *target* alive and its values are undefined until written.

        Raises:
            ConfigError: *target* is read-only or too small.
        """
        view = memoryview(target).cast("B")
        if view.readonly or len(view) < self.size:
            msg = f"the target has {len(view)} bytes (read-only: {view.readonly})"
            raise ConfigError(msg, remedy=f"give {self.size} writable ones")
        offset = len(self.head)
        view[:offset] = self.head
        return self._make(target, offset)

    def open_there(self, target: DeviceBytes) -> Any:  # noqa: ANN401 - a torch tensor
        """As :meth:`open`, in device memory of at least ``size`` bytes."""
        target.fill([(0, self.head)])
        return self._make(target.tensor(len(self.head), self._nbytes), 0)


def prepare(
    shape: Sequence[int], dtype: object, traceparent: str = "", *, on_device: bool = False
) -> Prepared:
    """Measure a tensor of *shape* and *dtype*, which is to lie in device memory if *on_device*.

    A torch dtype, or a name where torch is installed, makes a tensor; a numpy dtype, or a name
    where it is not, makes an array. *traceparent*, if any, is where one can be filled in later.

    Raises:
        ConfigError: *shape* or *dtype* is none.
    """
    lengths = _check_shape(shape)
    if dtype is None:
        msg = "a dtype is needed"
        raise ConfigError(msg, remedy="name one, for example 'bfloat16'")
    if on_device or _is_torch(dtype):
        from stagelink.adapters.msgspec.tensors import name_and_size  # noqa: PLC0415 - heavy

        name, item_bytes = name_and_size(dtype)
        code = lv.DEVICE_TENSOR if on_device else lv.TENSOR
        return _tensor(code, name, lengths, math.prod(lengths) * item_bytes, traceparent)
    from stagelink.adapters.msgspec import arrays  # noqa: PLC0415 - numpy is heavy

    description, item_bytes = arrays.description_and_size(dtype)
    return Prepared(lv.ARRAY, description, lengths, math.prod(lengths) * item_bytes, traceparent)


@lru_cache(256)
def _tensor(
    code: int, name: str, shape: tuple[int, ...], nbytes: int, traceparent: str
) -> Prepared:
    """The same rooms are wanted again and again; they hold nothing of what they are opened in."""
    return Prepared(code, name, shape, nbytes, traceparent)


def _check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        lengths = tuple(shape)
    except TypeError:
        msg = f"a shape is a sequence of ints, not {shape!r:.80}"
        raise ConfigError(msg, remedy="give one length per dimension") from None
    if len(lengths) > lv.DIMENSION_LIMIT:
        msg = f"a shape of {len(lengths)} dimensions"
        raise ConfigError(msg, remedy=f"at most {lv.DIMENSION_LIMIT} can be sent")
    for length in lengths:
        if type(length) is not int or not 0 <= length < 1 << 63:
            msg = f"a shape is made of ints from 0, not {lengths!r:.80}"
            raise ConfigError(msg, remedy="give one length per dimension")
    return lengths


def _is_torch(dtype: object) -> bool:
    if isinstance(dtype, str):
        return "torch" in sys.modules or find_spec("torch") is not None
    return type(dtype).__module__ == "torch"


def _maker(
    code: int, dtype: object, shape: tuple[int, ...], nbytes: int
) -> Callable[[Any, int], Any]:
    if code == lv.DEVICE_TENSOR:
        from stagelink.adapters.msgspec.tensors import shaped  # noqa: PLC0415 - torch is heavy

        return lambda flat, _: shaped(flat, nbytes, dtype, shape)
    if code == lv.TENSOR:
        from stagelink.adapters.msgspec import tensors  # noqa: PLC0415 - torch is heavy

        return lambda buffer, offset: tensors.make(buffer, offset, nbytes, dtype, shape)
    from stagelink.adapters.msgspec import arrays  # noqa: PLC0415 - numpy is heavy

    return lambda buffer, offset: arrays.make(buffer, offset, nbytes, dtype, shape)
