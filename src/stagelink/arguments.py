"""Checks of what callers pass to a connector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from stagelink.core.errors import ConfigError
from stagelink.core.keys import check_key, check_stage
from stagelink.core.values import NO_INSTANCE


class MetadataFields(NamedTuple):
    """A receipt's metadata, checked; every field is optional."""

    endpoint: str
    key: str
    size: int
    generation: int
    instance: bytes

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> MetadataFields:
        """Check *metadata*.

        Raises:
            ConfigError: a field has the wrong type or is out of range.
        """
        if not isinstance(metadata, Mapping):
            msg = f"metadata is a dictionary, not {type(metadata).__name__}"
            raise ConfigError(msg, remedy="pass receipt.metadata, unchanged")
        endpoint = metadata.get("endpoint") or _endpoint_of(metadata)
        instance = metadata.get("instance") or ""
        numbers = [metadata.get(name, 0) for name in ("size", "generation")]
        for name, number in zip(("size", "generation"), numbers, strict=True):
            if (
                isinstance(number, bool)
                or not isinstance(number, int)
                or not 0 <= number < 1 << 63
            ):
                _bad_field(name, number)
        for name, text in (("endpoint", endpoint), ("key", metadata.get("key") or "")):
            if not isinstance(text, str):
                _bad_field(name, text)
        try:
            raw = bytes.fromhex(instance)
        except (TypeError, ValueError):
            raw = b"?"
        if len(raw) not in {0, 16}:
            _bad_field("instance", instance)
        size, generation = numbers
        return cls(endpoint, metadata.get("key") or "", size, generation, raw or NO_INSTANCE)


def _endpoint_of(metadata: Mapping[str, Any]) -> str:
    """The endpoint that host and port make, empty unless both are given."""
    host, port = metadata.get("source_host"), metadata.get("source_port")
    if not host or not port:
        return ""
    if not isinstance(host, str):
        _bad_field("source_host", host)
    return f"tcp://{bracketed(host)}:{port}"


def check_readers(readers: object) -> int | tuple[str, ...] | None:
    """How many readers, or which: ``talker/0/0`` is the first of a stage, as ``talker`` is.

    0 is whoever takes it first.

    Raises:
        ConfigError: neither a number, nor names, nor None.
    """
    if readers is None:
        return None
    if isinstance(readers, int) and not isinstance(readers, bool) and 0 <= readers < 1 << 31:
        return readers
    if isinstance(readers, (set, frozenset, list, tuple)) and readers:
        return tuple(sorted({check_stage(name).removesuffix("/0/0") for name in readers}))
    msg = f"readers is {readers!r}, not a number, a set of identities or None"
    raise ConfigError(msg, remedy="use readers=1, readers={'talker/0/0', …} or readers=None")


def check_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Many keys, each checked.

    Raises:
        ConfigError: *keys* is one string, or no collection of keys.
    """
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        msg = f"keys is {keys!r:.80}, not a collection of keys"
        raise ConfigError(msg, remedy="pass a list of strings")
    return tuple(check_key(key) for key in keys)


def _bad_field(name: str, value: object) -> None:
    msg = f"metadata field {name!r} is {value!r}"
    raise ConfigError(msg, remedy="pass a receipt's metadata unchanged")


def bracketed(host: str) -> str:
    """*host* as an address shows it: IPv6 literals in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
