"""The explorer can fail: it finds every one of these mistakes within seconds."""

from __future__ import annotations

import pytest
from tests.model.hunt import MISTAKES, hunt_mistake


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MISTAKES)
def test_the_explorer_finds_the_mistake(name: str) -> None:
    result = hunt_mistake(name)

    assert result.violation, f"{name} survives {result.states} states"
    print(result)
