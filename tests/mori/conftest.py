"""Tests on AMD's real engine. They are collected only where it is installed: ``make test-mori``."""

from __future__ import annotations

import os
from pathlib import Path

from tests.sims import verbsim

# Read when the engine is loaded. It would take XGMI for two GPUs of one host, whatever the test is
# about; and its log goes to stdout.
os.environ.setdefault("MORI_DISABLE_AUTO_XGMI", "1")
os.environ.setdefault("MORI_IO_LOG_LEVEL", "critical")

verbsim.setup()

# Connectors of the conformance kit run in processes that import nothing of the tests.
_root = Path(__file__).parents[2]
_paths = [str(Path(__file__).parent / "children"), str(_root), str(_root / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join([*_paths, os.environ.get("PYTHONPATH", "")])
