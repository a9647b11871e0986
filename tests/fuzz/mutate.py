"""Valid messages, spoilt: by bits, by bytes and by fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import DecodeError
from msgspec.msgpack import Ext, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.5, float("nan"),
    float("inf"), -1e308, "", "x", "\x00\x1f", "é" * 300, "x" * 70_000, b"", b"\xff" * 16,
    bytes(70_000), [], [0] * 70_000, {}, {"a": 1}, Ext(1, b""), Ext(0, b"\x93\x00\xa1x\x90"),
    Ext(-128, bytes(100)), [[[[[]]]]],
)  # fmt: skip
"""Values that no field of ours has, or only at its bounds."""

BYTES = (
    b"\xc6\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01", b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", b"\xc1", b"\xd9\xff",
    b"\x91" * 2000, b"\x81\x00" * 1500, b"\x80", b"\x00" * 8, b"\xff" * 8, b"SLNK\x01\x00", b"SLNK\x02\x00",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff", b"\xff\xff\xff\xff\x00\x00\x00\x00", b"\xd4\x00\x00",
)  # fmt: skip
"""Huge lengths, deep nesting, other versions: bytes that mean something to some decoder."""

LONGEST = 1 << 18


class Mutator:
    """Spoils frames, the same way for the same *random*."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ways: tuple[Callable[[bytes, bytes], bytes], ...] = (
            self._flip, self._flip, self._replace, self._truncate, self._extend, self._splice,
            self._repeat, self._insert, self._fields, self._fields, self._fields,
        )  # fmt: skip

    def spoil(self, frames: Sequence[bytes], others: Sequence[bytes], head: int) -> list[bytes]:
        """*frames* with one to three things wrong; what comes after *head* bytes is MessagePack.

        Parts of the *others* are mixed in, whole frames added, doubled or left out.
        """
        random = self._random
        out = list(frames)
        chance = random.random()
        if chance < 0.02:
            out.append(random.choice(others))
        elif chance < 0.03:
            out = out[1:]
        self._head = head
        for _ in range(1 + (chance > 0.6) + (chance > 0.9)):
            if not out:
                break
            place = random.randrange(len(out))
            spoilt = random.choice(self._ways)(out[place], random.choice(others))
            out[place] = spoilt[:LONGEST]
        return out

    # --- bytes ---------------------------------------------------------------------------

    def _flip(self, frame: bytes, _: bytes) -> bytes:
        if not frame:
            return b"\x00"
        out = bytearray(frame)
        for _number in range(self._random.choice((1, 1, 1, 2, 8))):
            out[self._random.randrange(len(out))] ^= 1 << self._random.randrange(8)
        return bytes(out)

    def _replace(self, frame: bytes, _: bytes) -> bytes:
        odd = self._random.choice(BYTES)[:16]
        at = self._at(frame)
        return frame[:at] + odd + frame[at + len(odd) :]

    def _truncate(self, frame: bytes, _: bytes) -> bytes:
        return frame[: self._at(frame)]

    def _extend(self, frame: bytes, _: bytes) -> bytes:
        return frame + self._random.randbytes(self._random.choice((1, 7, 64, 4096)))

    def _splice(self, frame: bytes, other: bytes) -> bytes:
        return frame[: self._at(frame)] + other[self._at(other) :]

    def _repeat(self, frame: bytes, _: bytes) -> bytes:
        start, stop = sorted((self._at(frame), self._at(frame)))
        return frame[:stop] + frame[start:stop] * self._random.choice((1, 2, 9)) + frame[stop:]

    def _insert(self, frame: bytes, _: bytes) -> bytes:
        at = self._at(frame)
        return frame[:at] + self._random.choice(BYTES) + frame[at:]

    def _at(self, frame: bytes) -> int:
        return self._random.randint(0, len(frame))

    # --- fields --------------------------------------------------------------------------

    def _fields(self, frame: bytes, other: bytes) -> bytes:
        """Put a value in the place of another, wherever in the tree; or double, drop, swap some."""
        try:
            tree = decode(frame[self._head :])
            return frame[: self._head] + encode(self._spoilt(tree, 0))
        except (DecodeError, ValueError, TypeError, RecursionError, OverflowError):
            return self._flip(frame, other)

    def _spoilt(self, tree: Any, depth: int) -> Any:
        random = self._random
        if depth and random.random() < 0.25:
            return random.choice(ODD)
        if isinstance(tree, list) and tree:
            out = list(tree)
            at = random.randrange(len(out))
            chance = random.random()
            if chance < 0.08:
                out.insert(at, out[at])
            elif chance < 0.16:
                del out[at]
            elif chance < 0.24:
                out[at], out[0] = out[0], out[at]
            else:
                out[at] = self._spoilt(out[at], depth + 1)
            return out
        if isinstance(tree, dict) and tree:
            key = random.choice(list(tree))
            return {**tree, key: self._spoilt(tree[key], depth + 1)}
        if isinstance(tree, Ext):
            return self._extension(tree, depth)
        if isinstance(tree, int) and random.random() < 0.5:
            return tree + random.choice((-1, 1, 64, 2**32))
        return random.choice(ODD)

    def _extension(self, ext: Ext, depth: int) -> Ext:
        random = self._random
        if random.random() < 0.2:
            return Ext(random.randint(-128, 127), ext.data)
        try:
            return Ext(ext.code, encode(self._spoilt(decode(ext.data), depth + 1)))
        except DecodeError:
            return Ext(ext.code, self._flip(bytes(ext.data), b""))
