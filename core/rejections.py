"""What a receiver will never want: counted as read when it is known, or as soon as it comes.

A rejection of an ordinary key covers one payload; one of a stream, every entry up to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.core.handshake.fetch import HELD
from stagelink.core.messages import ERROR, Announce
from stagelink.core.streams import is_first, is_stream, named, stream_of

if TYPE_CHECKING:
    from stagelink.core.events import Action
    from stagelink.core.gets import Gets
    from stagelink.core.source import Source

REJECTED_KEYS = 1024
"""Rejections of what has not come, for each sender; the oldest is forgotten first."""


def reject(gets: Gets, source: Source, key: str, out: list[Action]) -> None:
    """Count us as a reader of *key*, or of every entry of the stream it names."""
    if is_stream(key):
        _reject_stream(gets, source, key, out)
        return
    known = source.inbox.get(key)
    if known is None:
        _remember(source, key)
        return
    at_work = gets.fetches.get(known.fetch)
    if at_work is None or at_work.state != HELD:
        source.consume(key, known.generation, known.size)
        gets.touch(source, out)
    if is_first(key) and known.how != ERROR:
        _reject_stream(gets, source, named(key, known.generation), out)


def reject_announced(gets: Gets, source: Source, message: Announce, out: list[Action]) -> None:
    """Apply an earlier rejection to what has just come to be known."""
    key, stream = message.key, stream_of(message.key)
    if key in source.rejected:
        del source.rejected[key]
        reject(gets, source, key, out)
    elif stream in source.rejected:
        if message.how == ERROR:  # its end, or the producer's reason to give up
            del source.rejected[stream]
        reject(gets, source, key, out)


def _reject_stream(gets: Gets, source: Source, name: str, out: list[Action]) -> None:
    ended = False
    for key in source.inbox.known():
        if stream_of(key) == name:
            known = source.inbox.get(key)
            ended = ended or (known is not None and known.how == ERROR)
            reject(gets, source, key, out)
    if not ended:
        _remember(source, name)


def _remember(source: Source, key: str) -> None:
    source.rejected[key] = None
    if len(source.rejected) > REJECTED_KEYS:
        del source.rejected[next(iter(source.rejected))]
