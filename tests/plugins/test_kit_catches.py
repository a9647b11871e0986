"""The conformance kit sees every mistake of the backends in ``broken``.

That it finds none in sound ones is shown by ``tests/adapters``, test by test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
PATIENCE_S = 170.0
AS_IN_CI = {"PYTHONPATH": str(ROOT / "src"), "CI": "true"}
"""There pytest cuts no message: a difference of megabytes must be told in a few words."""
SLIPS = ("TypeError", "AttributeError", "NameError", "ImportError", "fixture")
"""A backend that fails so is not broken in the way that it was meant to be."""


def ran(module: ModuleType, nodes: list[str], where: Path) -> dict[tuple[str, str], str]:
    """Run those tests of *module*; class and test to the message, empty for what passed."""
    report = where / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *(f"{module.__file__}::{node}" for node in nodes)],
        env=os.environ | AS_IN_CI, cwd=ROOT, capture_output=True,
        text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert report.exists(), done.stdout + done.stderr
    told: dict[tuple[str, str], str] = {}
    for case in Xml.parse(report).iter("testcase"):
        name = case.attrib["classname"].rpartition(".")[2], case.attrib["name"].partition("[")[0]
        failure = case.find("failure")
        message = "" if failure is None else failure.attrib["message"] or "failed"
        assert case.find("error") is None, f"{name}: {case.find('error')}"
        told[name] = told.get(name) or message
    return told


@pytest.mark.parametrize("kind", ["planes", "channels", "connectors"])
def test_the_kit_catches_every_broken_backend(kind: str, tmp_path: Path) -> None:
    module = import_module(f"tests.plugins.broken.{kind}")
    wanted = [
        (f"Test{broken.__name__}", test)
        for broken, tests in module.CAUGHT.items()
        for test in tests
    ]

    told = ran(module, ["::".join(one) for one in wanted], tmp_path)

    assert [one for one in wanted if not told[one]] == [], "not caught"
    assert [told[one] for one in wanted if any(slip in told[one] for slip in SLIPS)] == []
