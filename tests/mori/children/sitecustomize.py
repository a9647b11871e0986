"""Every Python that a test of this folder starts loads the simulators before anything else."""

from __future__ import annotations

from tests.sims import verbsim

verbsim.setup()
