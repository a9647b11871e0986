"""Every frame that vLLM-Omni's MoriTransferEngineConnector sends or takes, as of its 0.30.0.

A receiver asks over REQ, the sender answers from a ROUTER, one body each:

* ``query_info`` and {request_id}; then ``info_not_found`` or {request_id, data_size, is_fast_path}
* {request_id, engine_desc_packed, mem_desc_packed, dst_offset, length}; then ``trans_done`` or
  ``trans_error``

Braces are MessagePack maps with these names as keys. No answer says which question it is for: one
question at a time on a socket.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, NoReturn, TypeVar, Union

import msgspec
from msgspec import Meta

from stagelink.core.errors import ProtocolViolationError, Reason
from stagelink.core.keys import FORBIDDEN, KEY_LIMIT, STAGE_LIMIT

TRANS_DONE = b"trans_done"
TRANS_ERROR = b"trans_error"
QUERY_INFO = b"query_info"
INFO_NOT_FOUND = b"info_not_found"

FRAME_LIMIT = 64 << 10
"""Bytes of a body; a longer one is not looked at."""

CARD_LIMIT = 16 << 10
"""Bytes of a packed descriptor; real ones have a few hundred."""

REQUEST_LIMIT = KEY_LIMIT + 2 * STAGE_LIMIT + 2
"""Characters of a request id."""

MOST = (1 << 63) - 1

T = TypeVar("T")

RequestId = Annotated[str, Meta(min_length=1, max_length=REQUEST_LIMIT)]
Packed = Annotated[bytes, Meta(min_length=1, max_length=CARD_LIMIT)]
Size = Annotated[int, Meta(ge=1, le=MOST)]


class Pull(msgspec.Struct, frozen=True):
    """Write ``length`` bytes to ``dst_offset`` of the memory described: the payload of a key.

    Names are those on the wire. Fields that a later version may add are ignored, as theirs does.
    """

    request_id: RequestId
    engine_desc_packed: Packed
    mem_desc_packed: Packed
    dst_offset: Annotated[int, Meta(ge=0, le=MOST)]
    length: Size


class Query(msgspec.Struct, frozen=True):
    """Is there a payload of this key, and of what size?"""

    request_id: RequestId


class Info(msgspec.Struct, frozen=True):
    """There is: ``data_size`` bytes; plain ones, or (not ``is_fast_path``) packed ones."""

    request_id: RequestId
    data_size: Size
    is_fast_path: bool


class Word(NamedTuple):
    """An answer of one word, and no more: one of the constants above."""

    body: bytes


Request = Union[Pull, Query]
Answer = Union[Info, Word]

DONE, ERROR, NOT_FOUND = Word(TRANS_DONE), Word(TRANS_ERROR), Word(INFO_NOT_FOUND)
_WORDS = {word.body: word for word in (DONE, ERROR, NOT_FOUND)}

_encode = msgspec.msgpack.Encoder().encode
_pulls = msgspec.msgpack.Decoder(Pull)
_queries = msgspec.msgpack.Decoder(Query)
_infos = msgspec.msgpack.Decoder(Info)


def encode(message: Request | Answer) -> bytes:
    """The body of *message*."""
    if isinstance(message, Word):
        return message.body
    return (QUERY_INFO if isinstance(message, Query) else b"") + _encode(message)


def decode_request(body: bytes) -> Request:
    """What a receiver asks.

    Raises:
        ProtocolViolationError: it is neither question, or a field is missing, of another type or
            out of range.
    """
    _check_length(body, "request")
    if body.startswith(QUERY_INFO):
        query = _decoded(_queries, memoryview(body)[len(QUERY_INFO) :], "query")
        _check_printable(query.request_id, "query")
        return query
    pull = _decoded(_pulls, body, "pull request")
    _check_printable(pull.request_id, "pull request")
    end = pull.dst_offset + pull.length
    if end > MOST:
        _refuse("pull request", f"its bytes would end at {end}")
    return pull


def decode_answer(body: bytes) -> Answer:
    """What a sender answers; which answers fit which question is for the one who asked.

    Raises:
        ProtocolViolationError: it is no answer, or a field is missing, of another type or out of
            range.
    """
    word = _WORDS.get(body)
    if word is not None:
        return word
    _check_length(body, "answer")
    info = _decoded(_infos, body, "answer")
    _check_printable(info.request_id, "answer")
    return info


def request_id(key: str, from_stage: str, to_stage: str) -> str:
    """How they name *key* of an edge. Nothing is escaped: other names may make the same."""
    return f"{key}@{from_stage}_{to_stage}"


def split(text: str, from_stage: str, to_stages: frozenset[str]) -> tuple[str, str] | None:
    """The key and the stage that request id *text* is for, if it is of an edge of ours.

    Where several stages would fit, it is for the one with the longest name.
    """
    for to in sorted(to_stages, key=len, reverse=True):
        tail = request_id("", from_stage, to)
        if text.endswith(tail) and 0 < len(text) - len(tail) <= KEY_LIMIT:
            return text[: -len(tail)], to
    return None


def _decoded(decoder: msgspec.msgpack.Decoder[T], body: bytes | memoryview, what: str) -> T:
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError, MemoryError) as error:  # DecodeError is a ValueError
        _refuse(what, str(error) or type(error).__name__)


def _check_length(body: bytes, what: str) -> None:
    if len(body) > FRAME_LIMIT:
        _refuse(what, f"it has {len(body)} bytes, allowed are {FRAME_LIMIT}")


def _check_printable(text: str, what: str) -> None:
    if found := FORBIDDEN.search(text):
        _refuse(what, f"its request id holds {found.group()!r} at {found.start()}")


def _refuse(what: str, why: str) -> NoReturn:
    msg = f"this is no {what} of vLLM-Omni's Mori connector: {why}"
    remedy = "compare its version with 0.30.0, whose frames these are, and who dials this port"
    raise ProtocolViolationError(msg, reason=Reason.PROTOCOL, remedy=remedy)
