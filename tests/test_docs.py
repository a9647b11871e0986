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
ROOMS = sorted([*ROOT.glob("docs/tutorials/*.md"), *ROOT.glob("docs/how-to/*.md")])
FENCE = re.compile(r"```python\n(?:# (\w+\.py)\n)?(.*?)```", re.DOTALL)
"""Code to run; a first line such as ``# encoder.py`` says under which name it is saved."""
WITHOUT_CODE = {"measure.md", "replace-the-vllm-omni-connector.md"}
"""Pages about commands and files only."""
PATIENCE_S = 100.0
ENV = os.environ | {"PYTHONPATH": str(ROOT / "src")}
SCRIPTS = [
    (page, number, name, code)
    for page in [ROOT / "README.md", *ROOMS, *sorted(ROOT.glob("docs/reference/*.md"))]
    for number, (name, code) in enumerate(FENCE.findall(page.read_text(encoding="utf-8")))
]


def test_every_tutorial_and_how_to_has_code_that_runs() -> None:
    with_code = {page for page, *_ in SCRIPTS}

    assert {page.name for page in ROOMS if page not in with_code} == WITHOUT_CODE


@pytest.mark.parametrize(
    ("name", "code"),
    [(name, code) for _, _, name, code in SCRIPTS if not name or name.startswith("test_")],
    ids=[
        f"{page.stem}-{number}"
        for page, number, name, _ in SCRIPTS
        if not name or name.startswith("test_")
    ],
)
def test_the_examples_of_a_page_run(name: str, code: str, tmp_path: Path) -> None:
    if find_spec("torch") is None and "import torch" in code:
        pytest.skip("this example uses torch, and it is an extra")
    script = ["-c", code]
    if name:
        (tmp_path / name).write_text(code, encoding="utf-8")
        script = ["-m", "pytest", "-q", "-p", "no:cacheprovider", name]

    done = subprocess.run(
        [sys.executable, "-W", "error", *script],
        env=ENV, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_two_terminals_of_the_tutorial_show_what_it_says(tmp_path: Path) -> None:
    page = (ROOT / "docs/tutorials/first-transfer.md").read_text(encoding="utf-8")
    for name, code in FENCE.findall(page):
        if name:
            (tmp_path / name).write_text(code, encoding="utf-8")
    shown = re.findall(r"```text\n(.*?)```", page, re.DOTALL)[0]

    with subprocess.Popen(
        [sys.executable, "encoder.py"], env=ENV, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as encoder:
        assert encoder.stdout is not None
        endpoint = encoder.stdout.readline().split()[-1]
        prefill = subprocess.run(
            [sys.executable, "prefill.py", endpoint],
            env=ENV, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        said = encoder.stdout.read()

    assert (prefill.stdout, prefill.stderr) == (shown, "")
    assert (said, encoder.returncode) == ("all taken: True\n", 0)


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
