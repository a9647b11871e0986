"""A digest behind every payload, computed where it was written and compared before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core import envelope
from stagelink.core.errors import ConfigError
from stagelink.core.payload import DIGEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.ports import Staged

    Hash = Callable[[memoryview], int]


class Integrity:
    """Adds digests if *algorithm* says so; checks those that come whenever it can.

    Any thread may call it; nothing is locked, and the library lets go of the interpreter lock.

    Args:
        algorithm: ``"xxh3"``, or empty: nothing is added, and what carries no digest is not
            looked at.

    Attributes:
        tail: bytes that are needed behind a payload.

    Raises:
        ConfigError: *algorithm* needs a package that is not there.
    """

    def __init__(self, algorithm: str = "") -> None:
        self._wanted = bool(algorithm)
        self._looked = self._wanted
        self._hash: Hash | None = None
        self.tail = DIGEST_BYTES if algorithm else 0
        if algorithm:
            self._hash = _xxh3()
            if self._hash is None:
                msg = f"integrity={algorithm!r} needs the package xxhash"
                raise ConfigError(msg, remedy="pip install stagelink[integrity], or leave it out")

    def wrap(self, staged: Staged) -> Staged:
        """*staged*, to be written with its digest."""
        return Sealed(staged, self) if self._wanted else staged

    def seal(self, data: memoryview) -> None:
        """Add the digest of the finished payload in *data*, its last ``tail`` bytes being free."""
        if self._wanted and self._hash is not None:
            envelope.end_seal(data, self._hash(envelope.begin_seal(data)))

    def flaw(self, data: memoryview) -> str:
        """Why *data* is not what was put, with both digests; empty if nothing is known against it.

        A sender that adds no digest is believed, but for what the payload's own prefix shows.
        """
        promised = envelope.digest_of(data)
        if promised is None:
            return envelope.flaw(data) if self._wanted else ""
        check = self._hash if self._looked else self._look()
        if check is None:
            return ""  # the sender's precaution; this side did not ask for it
        found = check(data[:-DIGEST_BYTES])
        if found == promised:
            return ""
        return f"xxh3 digest {found:016x} of {len(data)} bytes, {promised:016x} was sent"

    def _look(self) -> Hash | None:
        """Find the package once a digest has come; import takes a moment, so not before."""
        self._hash, self._looked = _xxh3(), True
        return self._hash


class Sealed:
    """A staged value with room for its digest behind it."""

    __slots__ = ("_integrity", "_staged", "size")

    def __init__(self, staged: Staged, integrity: Integrity) -> None:
        self._staged = staged
        self._integrity = integrity
        self.size = staged.size + integrity.tail

    def write(self, target: memoryview) -> None:
        """Write the payload and then its digest: ``size`` bytes in all."""
        self._staged.write(target[: self._staged.size])
        self._integrity.seal(target)


def _xxh3() -> Hash | None:
    try:
        from xxhash import xxh3_64_intdigest  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return xxh3_64_intdigest
