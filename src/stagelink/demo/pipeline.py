"""What the three stages compute: a stand-in for a speech model, exact to the last bit.

```
Thinker   640 samples of sound  -> one hidden state, 2048 x bfloat16
Talker    hidden states         -> codec frames, 648 x int16, each made from the 25 before it
Code2Wav  25 frames of context + the new frames -> sound again
```

Every operation is exact (integers, or sums of integers below 2**53 in float64), so no result
depends on threads, on the order of a sum or on how the stream was cut: one process computing
everything gives the same bits as three. The codec loses nothing, so what comes out is the
recording; a lost, repeated or foreign frame turns the rest of its context into noise.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from torch import Tensor

HOP = 640
"""Samples a frame: 25 frames a second at 16 kHz."""

HIDDEN = 2048
"""Channels of a hidden state."""

CHUNK = 25
"""New frames a chunk."""

CONTEXT = 25
"""Frames of left context that Code2Wav needs."""

STYLES = 8
"""Codes of a frame that describe its style; the other ``HOP`` carry its sound."""

FEATURES = HIDDEN - 2 * HOP
CODES = HOP + STYLES


@functools.cache
def torch() -> ModuleType:
    """Import torch, once, and keep it to one thread.

    Raises:
        ConfigError: it is not installed; the remedy names the extra.
    """
    try:
        import torch as module  # noqa: PLC0415  the demo alone needs it
    except ImportError as error:
        msg = f"the demo computes with torch, which cannot be imported: {error}"
        raise ConfigError(msg, remedy="pip install 'stagelink[torch]'") from error
    module.set_num_threads(1)
    return module


def chunks(samples: bytes, frames: int = CHUNK) -> Iterator[bytes]:
    """Cut 16-bit *samples* into runs of *frames* frames; the last run may be shorter."""
    step = frames * HOP * 2
    for at in range(0, len(samples), step):
        yield samples[at : at + step]


class Thinker:
    """Sound to hidden states. Keeps nothing from one chunk to the next."""

    def __init__(self) -> None:
        self._torch = torch()
        rows = self._torch.arange(HOP, dtype=self._torch.int64).unsqueeze(1)
        columns = self._torch.arange(FEATURES, dtype=self._torch.int64)
        mixed = (rows * 7919 + columns * 104729 + 13) * 2654435761
        self._weights = ((mixed >> 13) % 7 - 3).to(self._torch.float64)

    def think(self, samples: bytes) -> Tensor:
        """Return [T, 2048] bfloat16 for 16-bit *samples*; silence fills the last frame."""
        torch = self._torch
        padded = bytearray(samples) + bytes(-len(samples) % (HOP * 2))
        sound = torch.frombuffer(padded, dtype=torch.int16).view(-1, HOP).to(torch.int32)
        features = sound.to(torch.float64) @ self._weights / 1024
        # Eight bits and a sign fit a bfloat16 exactly, sixteen do not.
        halves = torch.cat([sound >> 8, sound & 0xFF], dim=1).to(torch.float32)
        hidden: Tensor = torch.cat([halves, features.to(torch.float32)], dim=1).to(torch.bfloat16)
        return hidden


class Talker:
    """Hidden states to codec frames, one after another; remembers the last 25 frames."""

    def __init__(self) -> None:
        self._torch = torch()
        self._context = self._torch.zeros((0, CODES), dtype=self._torch.int16)

    def talk(self, hidden: Tensor) -> Tensor:
        """Return [C + T, 648] int16: the frames of *hidden* after up to 25 earlier ones."""
        torch = self._torch
        exact = hidden.to(torch.float32)
        sound = (exact[:, :HOP] * 256 + exact[:, HOP : 2 * HOP]).to(torch.int64)
        styles = exact[:, 2 * HOP :].to(torch.int64).view(-1, STYLES, FEATURES // STYLES).sum(2)
        frames: Tensor = self._context
        for tone, style in zip(sound, wrapped(styles), strict=True):
            coded = wrapped(tone + style.repeat(HOP // STYLES) + mixture(frames))
            frames = torch.cat([frames, torch.cat([coded, style]).to(torch.int16).unsqueeze(0)])
        self._context = frames[-CONTEXT:]
        return frames


class Code2Wav:
    """Codec frames with their left context to sound. Keeps nothing."""

    def speak(self, codes: Tensor, context: int, samples: int) -> bytes:
        """Return *samples* 16-bit samples of the frames after the first *context* of *codes*."""
        module = torch()
        sound = []
        for at in range(context, codes.shape[0]):
            frame = codes[at].to(module.int64)
            style = frame[HOP:].repeat(HOP // STYLES)
            sound.append(wrapped(frame[:HOP] - style - mixture(codes[:at])))
        return raw(module.cat(sound).to(module.int16))[: samples * 2]


def mixture(frames: Tensor) -> Tensor:
    """A fixed mixture, [640] int64, of the last 25 of *frames* (fewer: silence before them)."""
    last = frames[-CONTEXT:, :HOP]
    module = torch()
    weights = module.arange(last.shape[0], 0, -1, dtype=module.int64) * 2 + 1
    mixed: Tensor = (last.to(module.int64) * weights.unsqueeze(1)).sum(0)
    return mixed


def wrapped(numbers: Tensor) -> Tensor:
    """*numbers* modulo 2**16, as signed 16-bit values."""
    return ((numbers + 0x8000) & 0xFFFF) - 0x8000


def raw(tensor: Tensor) -> bytes:
    """The bytes of a tensor, without numpy."""
    whole = tensor.contiguous()
    return ctypes.string_at(whole.data_ptr(), whole.numel() * whole.element_size())


def digest(tensor: Tensor) -> str:
    """A fingerprint of shape, type and every byte."""
    label = f"{tuple(tensor.shape)} {tensor.dtype}".encode()
    return hashlib.blake2b(label + raw(tensor), digest_size=16).hexdigest()


def touch_pages(tensor: Tensor) -> int:
    """Read one byte of every 4096, so that what is measured includes the page faults."""
    return int(tensor.view(-1).view(torch().uint8)[::4096].sum())


class Streamed(NamedTuple):
    """What one request left at each station: fingerprints by chunk, and the sound."""

    hidden: list[str]
    codes: list[str]
    sound: bytes


def in_one_process(samples: bytes, frames: int = CHUNK) -> Streamed:
    """Run the whole pipeline here and now: what three processes must reproduce bit for bit."""
    thinker, talker, speaker = Thinker(), Talker(), Code2Wav()
    streamed, sound = Streamed([], [], b""), bytearray()
    for chunk in chunks(samples, frames):
        hidden = thinker.think(chunk)
        codes = talker.talk(hidden)
        streamed.hidden.append(digest(hidden))
        streamed.codes.append(digest(codes))
        sound += speaker.speak(codes, codes.shape[0] - hidden.shape[0], len(chunk) // 2)
    return streamed._replace(sound=bytes(sound))
