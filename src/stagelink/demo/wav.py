"""Read any PCM recording as 16-bit mono; write one.

The standard library's ``wave`` knows neither WAVE_FORMAT_EXTENSIBLE (before Python 3.12) nor
float samples, which ordinary recorders write.
"""

from __future__ import annotations

import struct
import sys
import wave
from array import array
from typing import TYPE_CHECKING, NamedTuple

from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PCM = 1
FLOAT = 3
EXTENSIBLE = 0xFFFE
REMEDY = "give a WAV of 8, 16, 24 or 32-bit PCM or 32-bit float samples"


class Recording(NamedTuple):
    """One voice: *samples* are 16-bit signed, native byte order, *rate* of them a second."""

    samples: bytes
    rate: int

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return len(self.samples) / 2 / self.rate


class Format(NamedTuple):
    """What a ``fmt`` chunk says."""

    tag: int
    channels: int
    rate: int
    width: int


def read_wav(path: Path) -> Recording:
    """Return the recording at *path*, its channels mixed down, its samples cut to 16 bits.

    Raises:
        ConfigError: missing, unreadable, no WAV, of a format not known here, or empty.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror or error}"
        raise ConfigError(msg, remedy="name a WAV file that exists") from error
    return parse_wav(content, str(path))


def parse_wav(content: bytes, name: str) -> Recording:
    """As :func:`read_wav`, of the bytes of a file called *name*."""
    if len(content) < 12 or content[:4] != b"RIFF" or content[8:12] != b"WAVE":  # noqa: PLR2004
        msg = f"{name} is not a WAV file ({len(content)} bytes)"
        raise ConfigError(msg, remedy=REMEDY)
    chunks = dict(_chunks(content))
    if b"fmt " not in chunks or b"data" not in chunks:
        msg = f"{name} has no {'fmt' if b'fmt ' not in chunks else 'data'} chunk"
        raise ConfigError(msg, remedy="the file is damaged; record or export it again")
    form = _format(chunks[b"fmt "], name)
    frame = form.channels * form.width
    data = chunks[b"data"]
    whole = len(data) - len(data) % frame
    if not whole:
        msg = f"{name} is empty: {len(data)} bytes of sound, a frame takes {frame}"
        raise ConfigError(msg, remedy="give a recording of at least one sample")
    return Recording(_mono(_wide(bytes(data[:whole]), form), form).tobytes(), form.rate)


def write_wav(path: Path, recording: Recording) -> None:
    """Write *recording* as a 16-bit mono WAV.

    Raises:
        ConfigError: *path* cannot be written.
    """
    samples = array("h", recording.samples)
    if sys.byteorder == "big":
        samples.byteswap()
    try:
        with path.open("wb") as file, wave.open(file, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(recording.rate)
            out.writeframes(samples.tobytes())
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror or error}"
        raise ConfigError(msg, remedy="choose another --output") from error


def _chunks(content: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yield (name, body); a length beyond the end of the file means "up to the end"."""
    view, at = memoryview(content), 12
    while at + 8 <= len(content):
        name, length = struct.unpack_from("<4sI", content, at)
        yield name, view[at + 8 : at + 8 + length]
        at += 8 + length + length % 2


def _format(body: memoryview, name: str) -> Format:
    if len(body) < 16:  # noqa: PLR2004
        msg = f"{name} has a fmt chunk of {len(body)} bytes, 16 are the least"
        raise ConfigError(msg, remedy="the file is damaged; record or export it again")
    tag, channels, rate, _, frame, bits = struct.unpack_from("<HHIIHH", body)
    if tag == EXTENSIBLE and len(body) >= 26:  # noqa: PLR2004
        tag = struct.unpack_from("<H", body, 24)[0]
    known = (tag == PCM and bits in {8, 16, 24, 32}) or (tag == FLOAT and bits == 32)  # noqa: PLR2004
    if not known or not channels or not rate or frame != channels * bits // 8:
        what = f"tag {tag}, {bits} bits, {channels} channels, {rate} Hz"
        msg = f"{name} holds a format not known here: {what}"
        raise ConfigError(msg, remedy=REMEDY)
    return Format(tag, channels, rate, bits // 8)


def _wide(data: bytes, form: Format) -> array[int]:
    """The samples as 32-bit integers at full scale, channels still interleaved."""
    if form.tag == FLOAT:
        return array("i", [_from_float(x) for (x,) in struct.iter_unpack("<f", data)])
    if form.width == 1:  # the only unsigned one
        data = bytes(byte ^ 0x80 for byte in data)
    raised = bytearray(len(data) // form.width * 4)
    for byte in range(form.width):
        raised[4 - form.width + byte :: 4] = data[byte :: form.width]
    wide = array("i", bytes(raised))
    if sys.byteorder == "big":
        wide.byteswap()
    return wide


def _from_float(sample: float) -> int:
    """Full scale is one; what lies beyond is clipped and what is no number is silence."""
    if sample != sample:  # noqa: PLR0124  NaN
        return 0
    return int(max(-1.0, min(sample, 1.0)) * 0x7FFFFFFF)


def _mono(wide: array[int], form: Format) -> array[int]:
    columns: list[Sequence[int]] = [wide[at :: form.channels] for at in range(form.channels)]
    if form.channels == 1:
        return array("h", [sample >> 16 for sample in wide])
    return array(
        "h", [(sum(frame) // form.channels) >> 16 for frame in zip(*columns, strict=True)]
    )
