"""How a simulation fails."""

from __future__ import annotations


class SimulationError(AssertionError):
    """A seed that ends badly, with what happened last."""
