"""One device: tensors over its memory, and copies to and from it in the order of its streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.adapters.device import dlpack
from stagelink.adapters.device.bytes import DeviceBytes
from stagelink.adapters.device.reaper import Reaper
from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from stagelink.adapters.device.runtime import Memories
    from stagelink.adapters.device.streams import Streams


def kind_of(runtime: str) -> int:
    """The kind of the devices of a *runtime*, as DLPack numbers it."""
    return dlpack.ROCM if runtime == "hip" else dlpack.CUDA


def find_device(name: str) -> int:
    """The number of the device that a user names.

    Raises:
        ConfigError: it is no device of a GPU, or there are not so many.
    """
    import torch  # noqa: PLC0415 - heavy

    remedy = "say 'cuda', or for example 'cuda:1' (on AMD as well)"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        msg = f"setting 'pool_device' is {name!r}"
        raise ConfigError(msg, remedy=remedy) from error
    if device.type != "cuda":
        msg = f"setting 'pool_device' is {name!r}, which is no device of a GPU"
        raise ConfigError(msg, remedy=remedy)
    numbered = ":" in str(device)
    index = device.index if numbered else torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        msg = f"setting 'pool_device' is {name!r}, torch sees {torch.cuda.device_count()} devices"
        raise ConfigError(msg, remedy="see CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES")
    return index


class Space:
    """A :class:`stagelink.ports.memory.DeviceSpace`, and all that its memory needs.

    Args:
        runtime: allocates memory of the device, and opens what other processes have shared.
        streams: the order of what is done there.
        kind: the device's kind as DLPack numbers it.
        index: the device's number in this process.

    Attributes:
        device: its name, as torch writes it.
    """

    def __init__(
        self, runtime: Memories, streams: Streams, kind: int = dlpack.CUDA, index: int = 0
    ) -> None:
        self.runtime = runtime
        self.streams = streams
        self.reaper = Reaper(streams)
        self.index = index
        self._kind = kind
        self._type = "cpu" if kind == dlpack.CPU else "cuda"
        self.device = "cpu" if kind == dlpack.CPU else f"cuda:{index}"

    def at(self, address: int, size: int, keep: object) -> DeviceBytes:
        """The *size* bytes at *address*, which are there as long as *keep* is."""
        return DeviceBytes(self, address, size, keep)

    def holds(self, tensor: Any) -> bool:  # noqa: ANN401 - a torch tensor
        """Whether it lies on a device of our type, ours or another one."""
        return bool(tensor.device.type == self._type)

    def tensor(self, address: int, nbytes: int, keep: object) -> Any:  # noqa: ANN401
        """A uint8 tensor in place."""
        if not nbytes:
            import torch  # noqa: PLC0415 - heavy

            return torch.empty(0, dtype=torch.uint8, device=self.device)
        return dlpack.tensor(address, nbytes, self._kind, self.index, keep)

    def fill(self, target: DeviceBytes, parts: Sequence[tuple[int, Any]]) -> None:
        """Copy *parts*, then wait for these copies alone."""
        sources = [source for _, source in parts if hasattr(source, "device")]
        with self.streams.after(sources):
            stream = self.streams.current()
            handle = self.streams.handle(stream)
            for offset, source in parts:
                place = target.address + offset
                if not hasattr(source, "device"):
                    self.runtime.send(place, source, handle)
                elif self._is_plain(source):
                    self.runtime.copy(place, source.data_ptr(), source.nbytes, handle)
                else:
                    copy(target, offset, source)
        self.streams.wait(stream)

    def download(self, source: DeviceBytes, offset: int, nbytes: int) -> bytearray:
        """Host bytes of a part, whose writes are done: the caller's stream is not waited for."""
        return self.runtime.fetch(source.address + offset, nbytes, self.streams.aside())

    def read(self, tensor: Any) -> bytearray | None:  # noqa: ANN401 - a torch tensor
        """By one call of the runtime; torch takes twice as long to get there."""
        if not self._is_plain(tensor):
            return None
        # Our device is current within it: the handle of a default stream means the current one's.
        with self.streams.after([tensor]):
            stream = self.streams.handle(self.streams.current())
            return self.runtime.fetch(tensor.data_ptr(), tensor.nbytes, stream)

    def _is_plain(self, tensor: Any) -> bool:  # noqa: ANN401 - a torch tensor
        """Whether its bytes lie on our device as they are to be."""
        if self._kind != dlpack.CPU and tensor.get_device() != self.index:
            return False
        return bool(tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj()))

    def upload(self, data: memoryview) -> Any:  # noqa: ANN401 - a torch tensor
        """A copy of host bytes on the device, in the order of the current stream."""
        import torch  # noqa: PLC0415 - heavy

        source = bytearray(data)
        if self._kind == dlpack.CPU and source:
            return torch.frombuffer(source, dtype=torch.uint8)
        target = torch.empty(len(source), dtype=torch.uint8, device=self.device)
        if self._kind == dlpack.ROCM and source:  # HIP may read it later
            target.copy_(torch.frombuffer(source, dtype=torch.uint8))
        elif source:  # not by torch, whose way there takes several times as long
            with self.streams.after([target]):
                stream = self.streams.handle(self.streams.current())
                self.runtime.send(target.data_ptr(), source, stream)
        return target

    def moment(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The calling thread's current streams on the devices of *tensors*."""
        return self.streams.moment(tensors)

    def within(self, moment: Any) -> AbstractContextManager[Any]:  # noqa: ANN401 - of moment()
        """On whatever thread, those streams are current again."""
        return self.streams.within(moment)

    def settle(self) -> None:
        """Wait for what is queued on the current stream."""
        self.streams.wait(self.streams.current())

    def close(self) -> None:
        """Finish what was lent. Twice is fine."""
        self.reaper.close()


def copy(target: DeviceBytes, offset: int, source: Any) -> None:  # noqa: ANN401
    """Queue the copy of a tensor of any strides, bit by bit, in C order."""
    import torch  # noqa: PLC0415 - heavy

    if not source.numel():
        return
    plain = source.detach().resolve_conj().resolve_neg()
    bits = BITS.get(plain.element_size())
    place = target.tensor(offset, plain.nbytes)
    if bits is None:  # complex128: two words an item
        plain, bits = torch.view_as_real(plain), "int64"
    dtype = getattr(torch, bits)
    place.view(dtype).view(plain.shape).copy_(plain.view(dtype), non_blocking=True)


BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""Bits are copied as integers: some dtypes have no kernel, and floats need not keep every NaN."""
