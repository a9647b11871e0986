"""The same decoders under atheris, which keeps what reaches new code: where it is installed.

pip install atheris
python -m tests.fuzz.guided --seconds 60
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.fuzz.decoders import Decoder

MOST_FRAMES = 4
LONGEST = 1 << 14


def packed(decoder: int, frames: Sequence[bytes]) -> bytes:
    """One input: which decoder, how many frames, the length of each but the last, and they."""
    lengths = b"".join(len(frame).to_bytes(2, "little") for frame in frames[:-1])
    return bytes((decoder, len(frames))) + lengths + b"".join(frames)


def unpacked(data: bytes, decoders: int) -> tuple[int, list[bytes]]:
    """The decoder and the frames of any input at all."""
    head = data[:2].ljust(2, b"\0")
    count, rest = head[1] % (MOST_FRAMES + 1), data[2:]
    lengths = [int.from_bytes(rest[2 * at : 2 * at + 2], "little") for at in range(count - 1)]
    rest, frames = rest[2 * len(lengths) :], []
    for length in lengths:
        frames.append(rest[:length])
        rest = rest[length:]
    return head[0] % decoders, [*frames, rest][:count]


def write_seeds(table: Iterable[Decoder], folder: Path) -> None:
    """What honest parties send, to begin with."""
    for number, decoder in enumerate(table):
        for at, frames in enumerate(decoder.seeds):
            if len(frames) <= MOST_FRAMES and sum(map(len, frames)) < LONGEST:
                (folder / f"{decoder.name}-{at}").write_bytes(packed(number, frames))


def guided(seconds: float, folder: Path) -> None:
    """Fuzz for *seconds* from what is in *folder*; atheris ends this process."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["stagelink"]):
        decoders = importlib.import_module("tests.fuzz.decoders")
    table = decoders.decoders()
    write_seeds(table, folder)

    def one(data: bytes) -> None:
        number, frames = unpacked(data, len(table))
        try:
            table[number].read(frames)
        except Exception as error:
            if not decoders.is_typed(error, table[number]):
                raise

    limits = f"-max_total_time={seconds:.0f}", f"-max_len={LONGEST}", "-len_control=0"
    artifacts = f"-artifact_prefix={tempfile.gettempdir()}/stagelink-"
    atheris.Setup([sys.argv[0], *limits, artifacts, str(folder)], one)
    atheris.Fuzz()


def main() -> int:
    """Parse the command line, and fuzz in another process: 0 if nothing was found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.guided", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.corpus is not None:
        guided(asked.seconds, asked.corpus)
    if importlib.util.find_spec("atheris") is None:
        sys.stderr.write("atheris is not installed: pip install atheris\n")
        return 2
    again = [sys.executable, "-m", "tests.fuzz.guided", "--seconds", str(asked.seconds)]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([*again, "--corpus", folder], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
