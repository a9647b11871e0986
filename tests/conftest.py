from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

KITS = """
aborts calls channel channel_deaths compressor connector credits deaths elsewhere ends kit listening meeting parties plane plane_deaths
plane_ends readers
"""

for kit in KITS.split():
    pytest.register_assert_rewrite(f"stagelink.plugins.conformance.{kit}")

# What has an environment of its own; a plain run names what it leaves out and goes on.
APART = {"mori": ("amd-mori", "make test-mori"), "vllm_omni": ("vllm-omni", "make test-vllm-omni")}
collect_ignore = [folder for folder in APART if not importlib.util.find_spec(folder)]


def pytest_report_header() -> list[str]:
    return [
        "tests/{} is left out: {} is not installed here, {} brings it".format(one, *APART[one])
        for one in collect_ignore
    ]


class Kept(logging.Handler):
    """Keeps the records that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    """Everything that stagelink logs during the test."""
    logger, kept = logging.getLogger("stagelink"), Kept()
    before = logger.level
    logger.addHandler(kept)
    logger.setLevel(logging.DEBUG)
    yield kept.records
    logger.setLevel(before)
    logger.removeHandler(kept)
