"""Tests on AMD's real engine. They are collected only where it is installed: ``make test-mori``."""

from __future__ import annotations

import os

from tests.sims import verbsim

# Read when the engine is loaded. It would take XGMI for two GPUs of one host, whatever the test is
# about; and its log goes to stdout.
os.environ.setdefault("MORI_DISABLE_AUTO_XGMI", "1")
os.environ.setdefault("MORI_IO_LOG_LEVEL", "critical")

verbsim.setup()
