"""The same decoders under atheris, which is guided by the code that it reaches; if it is there."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tests.fuzz.decoders import decoders, is_typed

LEAST = 2


def guided(seconds: float) -> int:
    """Fuzz for *seconds*; atheris ends the process itself, with an error where it found one."""
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        sys.stderr.write("atheris is not installed: pip install atheris\n")
        return 1
    table = decoders()

    def one(data: bytes) -> None:
        if len(data) < LEAST:
            return
        decoder, cut = table[data[0] % len(table)], data[1]
        frames = [data[2:]] if cut < 250 else [data[2 : 2 + cut], data[2 + cut :]]
        try:
            decoder.read(frames)
        except Exception as error:
            if not is_typed(error, decoder):
                raise

    atheris.Setup([sys.argv[0], f"-max_total_time={seconds:.0f}"], one)
    atheris.Fuzz()
    return 0
