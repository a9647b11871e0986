"""What the demo's stages compute, and what they read."""

from __future__ import annotations

import struct
import wave
from array import array
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelink.core.errors import ConfigError
from stagelink.demo.report import RECORDING
from stagelink.demo.wav import Recording, parse_wav, read_wav, write_wav

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

import torch

from stagelink.demo import pipeline


def noise(samples: int, seed: int) -> bytes:
    generator = torch.Generator().manual_seed(seed)
    sound = torch.randint(-(1 << 15), 1 << 15, (samples,), generator=generator)
    return pipeline.raw(sound.to(torch.int16))


def run(samples: bytes, frames: int) -> tuple[bytes, bytes, bytes]:
    """Everything that hidden states, new codec frames and sound hold, chunks joined."""
    thinker, talker, speaker = pipeline.Thinker(), pipeline.Talker(), pipeline.Code2Wav()
    hiddens, news, sound = b"", b"", b""
    for part in pipeline.chunks(samples, frames):
        hidden = thinker.think(part)
        codes = talker.talk(hidden)
        context = codes.shape[0] - hidden.shape[0]
        hiddens += pipeline.raw(hidden)
        news += pipeline.raw(codes[context:])
        sound += speaker.speak(codes, context, len(part) // 2)
    return hiddens, news, sound


@settings(deadline=None, max_examples=15)
@given(
    st.integers(1, 40 * pipeline.HOP), st.integers(1, 30), st.integers(1, 30), st.integers(0, 99)
)
def test_cutting_the_stream_in_any_way_gives_the_same_bits(
    samples: int, frames: int, others: int, seed: int
) -> None:
    sound = noise(samples, seed)

    assert run(sound, frames) == run(sound, others)


@pytest.mark.parametrize("samples", [1, 639, 640, 641, 16_000, 16_001])
def test_a_length_of_any_number_of_samples_comes_out_as_it_went_in(samples: int) -> None:
    sound = noise(samples, 7)

    assert pipeline.in_one_process(sound).sound == sound


def test_the_shapes_are_those_of_a_speech_pipeline() -> None:
    thinker, talker = pipeline.Thinker(), pipeline.Talker()
    parts = list(pipeline.chunks(noise(60 * pipeline.HOP, 1)))

    hidden = [thinker.think(part) for part in parts]
    codes = [talker.talk(states) for states in hidden]

    assert [tuple(states.shape) for states in hidden] == [(25, 2048), (25, 2048), (10, 2048)]
    assert {states.dtype for states in hidden} == {torch.bfloat16}
    assert [tuple(frames.shape) for frames in codes] == [(25, 648), (50, 648), (35, 648)]
    assert {frames.dtype for frames in codes} == {torch.int16}


def test_a_wrong_frame_of_context_is_heard() -> None:
    samples = noise(30 * pipeline.HOP, 2)
    thinker, talker, speaker = pipeline.Thinker(), pipeline.Talker(), pipeline.Code2Wav()
    first, second = (talker.talk(thinker.think(part)) for part in pipeline.chunks(samples))
    spoiled = second.clone()
    spoiled[3, 100] += 1

    right = speaker.speak(second, 25, 5 * pipeline.HOP)
    wrong = speaker.speak(spoiled, 25, 5 * pipeline.HOP)

    assert first.shape[0] == 25
    assert samples.endswith(right)
    assert wrong != right


def test_the_digest_tells_shape_type_and_bytes_apart() -> None:
    zeros = torch.zeros((4, 8), dtype=torch.int16)
    other = zeros.clone()
    other[3, 7] = 1

    digests = [zeros, zeros.view(8, 4), zeros.view(torch.bfloat16), other]

    assert len({pipeline.digest(tensor) for tensor in digests}) == 4


def test_the_recording_in_the_package_is_three_seconds_of_speech() -> None:
    recording = read_wav(RECORDING)

    assert recording.rate == 16_000
    assert 3.0 <= recording.seconds <= 5.0


def test_more_threads_give_the_same_bits() -> None:
    recording = read_wav(RECORDING)
    pipeline.torch()
    try:
        torch.set_num_threads(2)
        two = pipeline.in_one_process(recording.samples)
    finally:
        torch.set_num_threads(1)

    assert pipeline.in_one_process(recording.samples) == two
    assert two.sound == recording.samples


def wav(tag: int, channels: int, bits: int, data: bytes, extra: bytes = b"") -> bytes:
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", tag, channels, 8000, 8000 * frame, frame, bits) + extra
    body = b"WAVE" + b"fmt " + struct.pack("<I", len(form)) + form
    body += b"LIST\x03\x00\x00\x00abc\x00" + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def heard(content: bytes) -> list[int]:
    return list(array("h", parse_wav(content, "some.wav").samples))


@pytest.mark.parametrize(
    ("tag", "bits", "data"),
    [
        (1, 8, bytes([0, 128, 255])),
        (1, 16, struct.pack("<3h", -32768, 0, 32512)),
        (1, 24, b"\x00\x00\x80" + b"\x00\x00\x00" + b"\xff\x00\x7f"),
        (1, 32, struct.pack("<3i", -(1 << 31), 0xFFFF, 32512 << 16)),
    ],
)
def test_every_width_of_integer_samples_is_read(tag: int, bits: int, data: bytes) -> None:
    assert heard(wav(tag, 1, bits, data)) == [-32768, 0, 32512]


def test_float_samples_are_clipped_and_no_number_is_silence() -> None:
    data = struct.pack("<5f", -2.0, -1.0, 0.0, 3.0, float("nan"))

    assert heard(wav(3, 1, 32, data)) == [-32768, -32768, 0, 32767, 0]


def test_channels_are_mixed_down() -> None:
    assert heard(wav(1, 2, 16, struct.pack("<4h", 100, 300, -32768, -32768))) == [200, -32768]


def test_an_extensible_header_is_read_by_its_subformat() -> None:
    extra = struct.pack("<HHIH", 22, 16, 0, 1) + b"\x00" * 14

    assert heard(wav(0xFFFE, 1, 16, struct.pack("<2h", 5, -5), extra)) == [5, -5]


def test_a_recording_cut_off_in_a_frame_keeps_the_whole_frames() -> None:
    assert heard(wav(1, 2, 16, struct.pack("<3h", 2, 4, 9))) == [3]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a WAV"),
        (b"OggS" + bytes(100), "not a WAV"),
        (b"RIFF\x04\x00\x00\x00WAVE", "no fmt chunk"),
        (wav(1, 1, 16, b""), "is empty"),
        (wav(1, 2, 16, b"abc"), "is empty"),
        (wav(7, 1, 8, b"abc"), "tag 7"),
        (wav(1, 1, 12, b"abc"), "12 bits"),
        (wav(1, 0, 16, b"abc"), "0 channels"),
        (wav(1, 1, 16, b"")[:30], "no data chunk"),
        (b"RIFF\x10\x00\x00\x00WAVEfmt \x02\x00\x00\x00ab" + b"data\x02\x00\x00\x00ab", "2 bytes"),
    ],
)
def test_what_is_no_recording_gets_an_error_that_says_why(content: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_wav(content, "some.wav")

    assert caught.value.remedy
    assert "some.wav" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.wav.*No such file"):
        read_wav(tmp_path / "nothing.wav")


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    path, recording = tmp_path / "out.wav", Recording(noise(1000, 3), 44_100)

    write_wav(path, recording)

    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getnframes()) == (1, 2, 1000)
    assert read_wav(path) == recording


def test_an_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        write_wav(tmp_path / "no" / "out.wav", Recording(b"\0\0", 8000))
