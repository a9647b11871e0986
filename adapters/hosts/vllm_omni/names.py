"""The host's keys as ours: clients name requests, at any length and by any characters."""

from __future__ import annotations

from hashlib import sha256

PLAIN = 512
"""Characters up to which a key of printable ones stays as it is."""


def named(key: str) -> str:
    """*key*, or for what is no key of ours a digest of it; the same at both ends."""
    if type(key) is not str or (len(key) <= PLAIN and key.isprintable()):
        return key
    return f"sha256:{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"
