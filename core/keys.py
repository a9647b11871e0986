"""Keys and stage names: what is allowed, and the one string that both ends make of them.

Hosts that need one string for (key, from, to) get it from :func:`wire_key` on both sides, so that
the two ends cannot build different ones.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stagelink.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

KEY_LIMIT = 1024
"""Characters of a key."""

STAGE_LIMIT = 256
"""Characters of a stage name."""

PENDING_LIMIT = 5
"""Keys that an error lists; more would hide the message."""

# C0, DEL and C1 control characters would forge log lines; a lone surrogate has no UTF-8.
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# The numbers a host appends to its request id: ranks, stages, chunks.
COUNTERS = re.compile(r"(?:[_/:#]\d+)+$")
SEPARATORS = "_/:#@"


def check_key(key: str) -> str:
    """Return *key* if it may name a payload.

    Raises:
        ConfigError: it is no string, empty, longer than 1024 characters, or holds a control
            character or a lone surrogate.
    """
    if type(key) is str and 0 < len(key) <= KEY_LIMIT and key.isascii() and key.isprintable():
        return key  # what follows takes longer, and would say the same
    return _check("key", key, KEY_LIMIT)


def check_stage(stage: str) -> str:
    """Return *stage* if it may name a stage.

    Raises:
        ConfigError: as :func:`check_key`, with a limit of 256 characters.
    """
    plain = type(stage) is str and stage.isascii() and stage.isprintable()
    if plain and 0 < len(stage) <= STAGE_LIMIT:
        return stage
    return _check("stage name", stage, STAGE_LIMIT)


def wire_key(key: str, from_stage: str, to_stage: str) -> str:
    """``key@from_to``: different arguments never make the same string.

    ``%`` becomes ``%25`` in all three, ``@`` ``%40`` in *key* and ``_`` ``%5F`` in *from_stage*;
    ordinary names stay as they are.
    """
    source = _escape(from_stage).replace("_", "%5F")
    return f"{_escape(key).replace('@', '%40')}@{source}_{_escape(to_stage)}"


def parse_wire_key(text: str) -> tuple[str, str, str]:
    """The (key, from stage, to stage) of which :func:`wire_key` made *text*.

    Raises:
        ConfigError: :func:`wire_key` makes no such string.
    """
    key, _, edge = text.partition("@")
    source, _, target = edge.partition("_")
    parts = (
        _unescape(key.replace("%40", "@")),
        _unescape(source.replace("%5F", "_")),
        _unescape(target),
    )
    if wire_key(*parts) != text:
        msg = f"{text!r} is no key of an edge"
        raise ConfigError(msg, remedy="it reads key@from_to, as wire_key() makes it")
    return parts


def pending_with_same_request(key: str, keys: Iterable[str]) -> list[str]:
    """Up to five others of *keys* that belong to the request of *key*, the most alike first.

    The request is *key* without the numbers at its end (``req-7_0_3`` is of ``req-7``). A get
    that timed out shows these, for then the two ends mostly disagree about one number.
    """
    request = COUNTERS.sub("", key.partition("@")[0]) or key
    others = {other for other in keys if other != key and _belongs(other, request)}
    return sorted(others, key=lambda other: (-_common(key, other), other))[:PENDING_LIMIT]


def _check(what: str, text: str, limit: int) -> str:
    if type(text) is not str:
        msg = f"a {what} is a str, not {type(text).__name__}: {text!r:.80}"
        raise ConfigError(msg, remedy="convert it with str() where it is made")
    if not text:
        msg = f"a {what} must not be empty"
        raise ConfigError(msg, remedy="give it a name; an empty one selects nothing")
    if len(text) > limit:
        msg = f"a {what} has at most {limit} characters, this one {len(text)}: {text!r:.80}"
        raise ConfigError(msg, remedy="shorten it, or use a digest of it")
    if found := FORBIDDEN.search(text):
        odd = f"{found.group()!r} at {found.start()}"
        msg = f"a {what} holds no control characters or lone surrogates, this one {odd}"
        raise ConfigError(msg, remedy="leave it out, or escape it")
    return text


def _escape(text: str) -> str:
    return text.replace("%", "%25")


def _unescape(text: str) -> str:
    return text.replace("%25", "%")


def _belongs(key: str, request: str) -> bool:
    return key.startswith(request) and key[len(request) : len(request) + 1] in SEPARATORS


def _common(one: str, other: str) -> int:
    pairs = zip(one, other)  # noqa: B905 - the shorter one ends the comparison
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
