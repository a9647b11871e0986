"""Streams in terms of payloads: what each chunk is called, and what says that no more follow.

Chunk *n* of a stream is an ordinary payload under a key of its own: the stream's key, the
generation of its chunk 0, and *n*, with a control character between that no user's key may hold.
Chunk 0 has no generation to name yet, so its key alone is the same for every stream of a key. An
instance and the generation of chunk 0 name a stream, so no chunk of one is ever taken for a chunk
of another.

The end is an entry at the next number that carries an error's words instead of bytes, so that it
never needs room: either :class:`End`, or whatever reason the producer gave up for.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from stagelink.core.keys import KEY_LIMIT

MARK = "\x1f"
"""Between the parts of a derived key; :func:`stagelink.core.keys.check_key` refuses it."""

DERIVED_LIMIT = KEY_LIMIT + 64
"""Characters of a derived key: two marks and two numbers of 63 bits more than the user's."""

REASON_LIMIT = 1024
"""Characters of a reason to give up that are kept."""

_END = re.compile(f"{MARK}end ([0-9]{{1,19}}) ([0-9]{{1,19}})")


class Progress(NamedTuple):
    """Where a stream has got to, at either end of it.

    ``first`` is the generation of chunk 0, 0 until there is one; ``chunks`` how many there were
    and ``size`` their bytes in sum.
    """

    key: str
    first: int = 0
    chunks: int = 0
    size: int = 0

    @property
    def next_key(self) -> str:
        """The derived key of the next entry."""
        return f"{self.name}{MARK}{self.chunks}" if self.first else first_key(self.key)

    @property
    def name(self) -> str:
        """What covers every entry that may follow: the stream's name, or the key of chunk 0."""
        return f"{self.key}{MARK}{self.first}" if self.first else first_key(self.key)

    def after(self, generation: int, size: int) -> Progress:
        """The progress with one chunk more, published as *generation* with *size* bytes."""
        first = self.first or generation
        return Progress(self.key, first, self.chunks + 1, self.size + size)


class End(NamedTuple):
    """The producer's last word on a stream: how many chunks, and how many bytes in sum."""

    chunks: int
    size: int

    @property
    def text(self) -> str:
        """How it is published; no reason of :func:`reason_text` looks like that."""
        return f"{MARK}end {self.chunks} {self.size}"


def parse_end(text: str) -> End | None:
    """The end that *text* says, or None: it is a reason to give up."""
    match = _END.fullmatch(text)
    return None if match is None else End(int(match[1]), int(match[2]))


def reason_text(reason: object) -> str:
    """*reason* as it may be published: some words, none of them like an :class:`End`."""
    text = str(reason).replace(MARK, " ")[:REASON_LIMIT]
    return text.encode("utf-8", "replace").decode().strip() or "aborted"


def first_key(key: str) -> str:
    """The derived key of chunk 0."""
    return f"{key}{MARK}0"


def is_first(derived: str) -> bool:
    """Whether this is the key of some stream's chunk 0."""
    return derived.endswith(f"{MARK}0") and derived.count(MARK) == 1


def is_stream(name: str) -> bool:
    """Whether this names a stream, and so all its chunks but the first."""
    return name.count(MARK) == 1 and not is_first(name)


def stream_of(derived: str) -> str:
    """The stream that this is a later chunk of; empty for chunk 0 and for ordinary keys."""
    if MARK not in derived:
        return ""
    name = derived.rpartition(MARK)[0]
    return name if MARK in name else ""


def is_entry(derived: str, key: str) -> bool:
    """Whether this is a chunk, or the end, of some stream of *key*."""
    return derived.startswith(key) and derived[len(key) : len(key) + 1] == MARK


def named(first: str, generation: int) -> str:
    """The stream whose chunk 0 has the derived key *first* and that generation."""
    return f"{first[:-1]}{generation}"


def shown(derived: str) -> str:
    """A key for people: ``key[3]`` for chunk 3, an ordinary key as it is."""
    if MARK not in derived:
        return derived
    return f"{derived.partition(MARK)[0]}[{derived.rpartition(MARK)[2]}]"
