"""The table of behaviours names tests that exist; no row lacks one, no behaviour test a row."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/behaviours.md"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
HEAD = "| what goes wrong elsewhere | what stagelink does | test |"


def rows_of(page: str) -> list[list[str]]:
    """The cells of every row below a heading of the table."""
    rows, in_table = [], False
    for line in page.splitlines():
        if line == HEAD:
            in_table = True
        elif not line.startswith("|"):
            in_table = False
        elif in_table and not line.startswith("|---"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def named_in(cell: str) -> list[str]:
    """The tests that a cell names."""
    return re.findall(r"`([^`]+::[^`]+)`", cell)


@cache
def defined_in(path: Path) -> frozenset[str]:
    """``test`` or ``Class::test`` for every test that a file defines, by parsing it."""
    found: set[str] = set()
    if path.is_file():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, FUNCTIONS):
                found.add(node.name)
            elif isinstance(node, ast.ClassDef):
                methods = (part for part in node.body if isinstance(part, FUNCTIONS))
                found.update(f"{node.name}::{method.name}" for method in methods)
    return frozenset(name for name in found if name.rpartition("::")[2].startswith("test_"))


def exists(test: str) -> bool:
    """Whether *test*, ``file::test`` or ``file::Class::test``, is defined."""
    file, _, name = test.partition("::")
    return name in defined_in(ROOT / file)


ROWS = rows_of(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_every_row_names_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 3
    assert all(row), "no cell is empty"
    named = named_in(row[2])
    assert named, "a row names its test"
    assert [test for test in named if not exists(test)] == []


def test_every_test_of_a_behaviour_has_its_row() -> None:
    named = {test for row in ROWS for test in named_in(row[2])}
    folder = ROOT / "tests/behaviours"
    defined = {
        f"{file.relative_to(ROOT)}::{name}"
        for file in folder.glob("test_*.py")
        for name in defined_in(file)
    }
    assert defined - named == set()


def test_a_contract_that_is_named_is_run_by_somebody() -> None:
    named = {test for row in ROWS for test in named_in(row[2])}
    contracts = {test.split("::")[1] for test in named if test.count("::") == 2}
    assert contracts
    for contract in contracts:
        assert is_run(contract), contract


def is_run(contract: str) -> bool:
    """Whether a class of ours runs it, by itself or as a part of another contract."""
    kits = [*(ROOT / "plugins/conformance").glob("*.py"), *(ROOT / "tests").rglob("test_*.py")]
    heirs: set[str] = set()
    for file in kits:
        text = file.read_text(encoding="utf-8")
        heirs.update(re.findall(rf"^class (\w+)\([^)]*\b{contract}\b[^)]*\)", text, re.M))
    return any(heir.startswith("Test") or is_run(heir) for heir in heirs)


def test_the_check_itself_can_fail() -> None:
    assert rows_of(f"{HEAD}\n|---|---|---|\n| a | b |  |\n\n| c | d | e |") == [["a", "b", ""]]
    assert not exists("tests/behaviours/test_pool.py::test_of_nothing")
    assert not exists("tests/behaviours/test_nowhere.py::test_of_nothing")
    assert not is_run("NobodysContract")
