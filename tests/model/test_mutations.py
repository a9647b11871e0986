"""The explorer can fail: it finds every one of these mistakes within seconds."""

from __future__ import annotations

import pytest
from tests.model.explorer import Explorer
from tests.model.mutations import MUTATIONS, mutated


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_explorer_finds_the_mistake(name: str) -> None:
    mutation = MUTATIONS[name]

    with mutated(mutation):
        result = Explorer(name, mutation.bounds, progress_every=25).run(seconds=250.0)

    assert result.violation, f"{name} survives {result.states} states"
    print(result)
