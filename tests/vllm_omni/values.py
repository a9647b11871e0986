"""Whatever vLLM-Omni's serializer takes, and whether two of a kind are the same."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = (
    "payload struct", "empty struct", "nested", "dtypes", "odd tensors", "arrays", "picture",
    "request output", "completion output", "omni request output", "dataclass", "text", "none",
    "zero", "false", "no text", "no list", "no dict", "list", "large",
)  # fmt: skip
RAW = ("bytes", "uint8 tensor", "many bytes", "float tensor")


@dataclass
class Point:
    """A class that the serializer has never heard of."""

    x: int
    y: float


def made(kind: str) -> Any:
    """A value of that kind; the same each time."""
    maker: Callable[[], Any] = _RAW.get(kind) or _VALUES[kind]
    return maker()


def _struct() -> Any:
    import torch
    from vllm_omni.data_entry_keys import (
        CodesStruct,
        EmbeddingsStruct,
        HiddenStatesStruct,
        IdsStruct,
        MetaStruct,
        OmniPayloadStruct,
    )

    return OmniPayloadStruct(
        codes=CodesStruct(audio=torch.arange(800), ref=torch.zeros(0, dtype=torch.int64)),
        embed=EmbeddingsStruct(prefill=torch.randn(5, 64, generator=_seed()).bfloat16(), decode_token_start=3),
        hidden_states=HiddenStatesStruct(layers={0: torch.ones(2, 3), 24: torch.ones(3, 2)}),
        ids=IdsStruct(all=[1, 2, 3], prompt=[]),
        meta=MetaStruct(finished=torch.tensor(data=True), left_context_size=25, req_id=["a", "b"]),
        speaker="Ethan",
    )  # fmt: skip


def _empty_struct() -> Any:
    from vllm_omni.data_entry_keys import OmniPayloadStruct

    return OmniPayloadStruct()


def _seed() -> Any:
    import torch

    return torch.Generator().manual_seed(7)


def _dtypes() -> Any:
    import torch

    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2"]  # fmt: skip
    plain = torch.arange(24) % 7
    return {name: plain.to(getattr(torch, name)) for name in names}


def _odd() -> Any:
    import torch

    whole = torch.arange(60.0).reshape(3, 4, 5)
    return {
        "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4), "turned": whole.permute(2, 0, 1),
        "part": whole[:, ::2], "wide": torch.ones(1, 1).expand(3, 3),
        "grad": torch.ones(2, requires_grad=True),
    }  # fmt: skip


def _picture() -> Any:
    import numpy as np
    from PIL import Image

    pixels = (np.arange(48 * 32 * 3) % 251).astype(np.uint8).reshape(48, 32, 3)
    return {"rgb": Image.fromarray(pixels), "grey": Image.fromarray(pixels[..., 0]), "n": 2}


def _completion() -> Any:
    import torch
    from vllm.outputs import CompletionOutput

    made = CompletionOutput(
        index=0, text="hi", token_ids=[1, 2], cumulative_logprob=-0.5, logprobs=None
    )
    made.multimodal_output = {"audio": torch.arange(9.0)}
    return made


def _request() -> Any:
    import torch
    from vllm.outputs import RequestOutput

    made = RequestOutput(
        request_id="r", prompt="p", prompt_token_ids=[1], prompt_logprobs=None,
        outputs=[_completion()], finished=True,
    )  # fmt: skip
    made.multimodal_output = {"audio": torch.arange(5)}
    return made


def _omni_request() -> Any:
    import torch
    from vllm_omni.outputs import OmniRequestOutput

    return OmniRequestOutput(
        request_id="r", finished=True, final_output_type="image", images=[_picture()["rgb"]],
        latents=torch.arange(6.0),
    )  # fmt: skip


def _arrays() -> Any:
    import numpy as np

    return {
        "f": np.arange(6, dtype=np.float32).reshape(2, 3),
        "i": np.arange(4)[::2],
        "none": np.zeros(0),
    }


def _nested() -> Any:
    import torch

    return {
        "a": [{"b": (1, 2.5, None, True, "ü", b"raw")}, [torch.arange(3)]],
        "s": slice(1, 5),
        "": {},
    }


def _large() -> Any:
    import torch

    return {"hidden": torch.arange(3 << 20, dtype=torch.int32), "more": [torch.ones(1 << 18)] * 2}


_VALUES: dict[str, Callable[[], Any]] = {
    "payload struct": _struct, "empty struct": _empty_struct, "nested": _nested, "dtypes": _dtypes,
    "odd tensors": _odd, "arrays": _arrays, "picture": _picture, "request output": _request,
    "completion output": _completion, "omni request output": _omni_request,
    "dataclass": lambda: {"at": Point(1, 2.0)}, "text": lambda: "words", "none": lambda: None,
    "zero": lambda: 0, "false": lambda: False, "no text": lambda: "", "no list": list,
    "no dict": dict, "list": lambda: [1, "two", None], "large": _large,
}  # fmt: skip


def _tensor(kind: str, count: int) -> Any:
    import torch

    return (torch.arange(count) % 251).to(getattr(torch, kind))


_RAW: dict[str, Callable[[], Any]] = {
    "bytes": lambda: b"words", "uint8 tensor": lambda: _tensor("uint8", 70_001),
    "many bytes": lambda: bytes(range(256)) * 20_000,
    "float tensor": lambda: _tensor("bfloat16", 1024).reshape(32, 32),
}  # fmt: skip


def differences(found: Any, wanted: Any, at: str = "value") -> list[str]:
    """Where the two differ; of tensors and arrays the kind, the shape and every bit."""
    import numpy as np
    import torch
    from PIL import Image

    if type(found) is not type(wanted):
        return [f"{at}: {type(found).__name__}, not {type(wanted).__name__}"]
    if isinstance(wanted, torch.Tensor):
        alike = (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        flat = [one.detach().contiguous().reshape(-1).view(torch.uint8) for one in (found, wanted)]
        return [] if alike and torch.equal(*flat) else [f"{at}: {found.dtype} {found.shape}"]
    if isinstance(wanted, np.ndarray):
        alike = (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        return [] if alike and np.array_equal(found, wanted) else [f"{at}: {found!r}"]
    if isinstance(wanted, Image.Image):
        alike = (found.mode, found.size) == (wanted.mode, wanted.size)
        return [] if alike and found.tobytes() == wanted.tobytes() else [f"{at}: another picture"]
    return _within(found, wanted, at)


def _within(found: Any, wanted: Any, at: str) -> list[str]:
    if isinstance(wanted, dict):
        if list(found) != list(wanted):
            return [f"{at}: keys {list(found)}, not {list(wanted)}"]
        pairs = [(name, found[name], wanted[name]) for name in wanted]
    elif isinstance(wanted, (list, tuple)):
        if len(found) != len(wanted):
            return [f"{at}: {len(found)} items, not {len(wanted)}"]
        pairs = [(str(n), found[n], one) for n, one in enumerate(wanted)]
    elif is_dataclass(wanted):
        names = {*(one.name for one in fields(wanted)), *vars(wanted)}
        pairs = [(name, getattr(found, name), getattr(wanted, name)) for name in sorted(names)]
    elif hasattr(wanted, "__dict__"):
        pairs = [(name, getattr(found, name), one) for name, one in vars(wanted).items()]
    else:
        return [] if found == wanted else [f"{at}: {found!r}, not {wanted!r}"]
    return [
        one for name, mine, theirs in pairs for one in differences(mine, theirs, f"{at}.{name}")
    ]


def put(label: str, kind: str) -> bool:
    """Put a value of that kind."""
    from tests.vllm_omni import acts

    return bool(acts.MADE[label].put("0", "1", f"v {kind}_0_0", made(kind))[0])


def get(label: str, kind: str, where: Any, patience_s: float = 15.0) -> list[str]:
    """How what arrives differs from what the host's serializer alone would have made of it."""
    import time

    from tests.vllm_omni import acts
    from vllm_omni.distributed.omni_connectors.utils.serialization import OmniSerializer

    until_s = time.monotonic() + patience_s
    found = None
    while found is None and time.monotonic() < until_s:
        found = acts.MADE[label].get("0", "1", f"v {kind}_0_0", where)
        time.sleep(0.001)
    if found is None:
        return ["it did not come"]
    if kind in RAW:
        return _raw(found, made(kind))
    return differences(found[0], OmniSerializer.deserialize(OmniSerializer.serialize(made(kind))))


def _raw(found: Any, wanted: Any) -> list[str]:
    """Raw bytes come as something with ``tensor`` and ``release``, which is how the host takes them."""
    import torch

    buffer, size = found
    flat = (
        wanted
        if isinstance(wanted, bytes)
        else bytes(wanted.contiguous().view(torch.uint8).numpy().tobytes())
    )
    tensor = buffer.tensor
    wrong = (
        []
        if (tensor.dtype, tensor.dim()) == (torch.uint8, 1)
        else [f"{tensor.dtype} {tensor.shape}"]
    )
    if size != len(flat) and size < len(flat):
        wrong.append(f"size {size}, not {len(flat)}")
    if tensor.numpy().tobytes() != flat:
        wrong.append("other bytes")
    buffer.release()
    return wrong
