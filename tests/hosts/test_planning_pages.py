"""The pages about deployments: their files are planned, their codes are those that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.hosts.plans import codes

from stagelink.adapters.hosts.planning import Surroundings, assumed, make_plan, read_document

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PLANNING = ROOT / "adapters" / "hosts" / "planning"
PAGE = (DOCS / "how-to/replace-the-vllm-omni-connector.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference/plan.md").read_text(encoding="utf-8")
FILES = {"qwen3_omni_mi300x": "mi300x", "qwen3_omni_3_nvidia": "nvidia", "qwen3_omni_cpu": "cpu"}


def test_every_deploy_file_of_the_pages_is_planned() -> None:
    assert {path.stem for path in DOCS.glob("deploy/*.yaml")} == set(FILES)


@pytest.mark.parametrize(("name", "kind"), FILES.items())
def test_nothing_is_wrong_with_a_deploy_file_of_the_pages(name: str, kind: str) -> None:
    path = DOCS / "deploy" / f"{name}.yaml"

    plan = make_plan(read_document(path), assumed(kind), Surroundings({}))

    assert codes(plan) == []
    assert [(s.edge.name, s.connector, s.backend) for s in plan.served] == [
        ("0 -> 1", "StagelinkConnector", "shm"),
        ("1 -> 2", "StagelinkConnector", "shm"),
    ]


@pytest.mark.parametrize("name", FILES)
def test_a_page_shows_the_file_that_it_links_to(name: str) -> None:
    text = (DOCS / "deploy" / f"{name}.yaml").read_text(encoding="utf-8")

    assert f"](../deploy/{name}.yaml)" in PAGE
    assert f"```yaml\n{text}```\n" in PAGE


def test_every_code_of_a_finding_is_on_its_page_and_no_other() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in PLANNING.glob("*.py"))
    said = re.findall(
        r'Finding\(\s*"([a-z-]+)"|yield\s*\(?\s*"((?:mori|mooncake)-[a-z-]+)"', source
    )
    there = {one or other for one, other in said}

    assert len(there) > 30
    assert set(re.findall(r"^\| `([a-z-]+)` \|", REFERENCE, re.M)) == there
