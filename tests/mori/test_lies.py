"""Descriptions altered at random, under a digest that is right, on Mori's real ``unpack``."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.mori.parties import on_rdma, on_xgmi

from stagelink.adapters.mori import card
from stagelink.adapters.mori.link import meet
from stagelink.core.errors import TransportError
from stagelink.plugins.conformance.meeting import REGION

if TYPE_CHECKING:
    from stagelink.plugins.conformance.plane import MakeParty

LIES = 4000


def altered(packed: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, left out, or put in."""
    lie = bytearray(packed)
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(lie))
        how = chance.randrange(4)
        if how == 0:
            lie[at] = chance.randrange(256)
        elif how == 1:
            lie[at] ^= 1 << chance.randrange(8)
        elif how == 2:
            del lie[at : at + chance.randrange(1, 9)]
        else:
            lie.insert(at, chance.choice(b"\x00\x7f\x80\x90\xc0\xc4\xc6\xd9\xdb\xdd\xdf\xff"))
        lie = lie or bytearray(1)
    return bytes(lie)


@pytest.mark.parametrize("make", [on_xgmi, on_rdma])
def test_whatever_is_altered_is_refused_or_names_what_it_says(make: MakeParty) -> None:
    """Nothing but our own error leaves it, and what is taken has the name and size it should."""
    chance, party = random.Random(11), make(1 << 16)
    party.plane.register(REGION, party.memory)
    good, fabric = card.unpack(party.plane.describe(), party.instance), party.plane._fabric  # type: ignore[attr-defined]
    refused = 0
    for _ in range(LIES):
        row = good.rows[0]
        if chance.randrange(2):
            lie = good._replace(rows=(row._replace(memory=altered(row.memory, chance)),))
        else:
            lie = good._replace(engine=altered(good.engine, chance))
        refused += 1
        with suppress(TransportError):
            met = meet(fabric, card.pack(lie), party.instance)
            refused -= 1
            assert met.sizes == {REGION: 1 << 16}
            assert met.key.startswith(card.key_head(party.instance))
    party.plane.close()
    assert LIES * 0.6 < refused < LIES
