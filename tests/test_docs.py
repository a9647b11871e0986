"""The pages say what the code says, and their examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from stagelink.config import Config
from stagelink.core.errors import Context, Reason
from stagelink.core.events import Failure
from stagelink.core.timeouts import TimeoutPolicy
from stagelink.failures import error_of

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "docs/tutorials/first-transfer.md",
    "docs/how-to/stream-chunks.md",
    "docs/how-to/write-a-backend.md",
    "docs/how-to/monitor.md",
    "docs/how-to/check-and-compress.md",
    "docs/how-to/put-foreign-types.md",
    "docs/reference/runtimes.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S)
    assert blocks
    if find_spec("torch") is None and any("import torch" in block for block in blocks):
        pytest.skip("these examples use torch, and it is an extra")

    for block in blocks:
        env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", block],
            env=env, capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("field", Config.__struct_fields__)
def test_every_setting_is_explained(field: str) -> None:
    assert f"`{field}`" in (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("field", "default"), TimeoutPolicy()._asdict().items())
def test_every_timeout_is_explained_with_its_default(field: str, default: float) -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    assert f"| `{field}` | {default:g} |" in page


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_is_explained_with_its_class(reason: Reason) -> None:
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    kind = type(error_of(Failure(reason.value, ""), Context())).__name__
    assert f"| `{reason.value}` | `{kind}` |" in page


@pytest.mark.parametrize("page", [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"], ids=str)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
