"""Promises about the shape of the package that no linter checks for us."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
FACE = ROOT / "src" / "stagelink"
LAYERS = ["core", "ports", "adapters", "plugins"]
# The demo is a program that uses the face, with processes and threads of its own.
HOLDS_NO_THREAD = [
    "compose", "config", "connector", "failures", "hosts", "metrics", "payload", "prometheus",
    "tracing", "__init__",
]  # fmt: skip


def modules(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """The top-level name of everything that *path* imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            yield (node.module or "").partition(".")[0]


Documented = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Public classes and functions, at the top or in a public class, without a docstring."""
    if tree.body and not ast.get_docstring(tree):
        yield "the module"
    bodies = [tree.body]
    while bodies:
        for node in bodies.pop():
            if isinstance(node, Documented) and not node.name.startswith("_"):
                overload = any(ast.unparse(one) == "overload" for one in node.decorator_list)
                if not ast.get_docstring(node) and not overload:
                    yield f"{node.name}, line {node.lineno}"
                if isinstance(node, ast.ClassDef):
                    bodies.append(node.body)


def python(code: str) -> str:
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layer_is_linked_into_the_package(layer: str) -> None:
    link = FACE / layer

    assert link.is_symlink(), "clone with symbolic links on: git config core.symlinks true"
    assert not link.readlink().is_absolute()
    assert link.resolve() == ROOT / layer


def test_importing_stagelink_loads_no_technology() -> None:
    heavy = "{'torch', 'numpy', 'zmq', 'mori', 'typer', 'rich'}"

    assert python(f"import sys, stagelink; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_listing_the_backends_loads_none() -> None:
    heavy = "{'torch', 'numpy', 'zmq', 'mori'}"
    code = "import sys; from stagelink.plugins import Manager; Manager().backends"

    assert python(f"{code}; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_everything_the_face_promises_is_there() -> None:
    code = "import stagelink; [getattr(stagelink, n) for n in stagelink.__all__]; print('all')"

    assert python(code) == "all"


def test_a_name_that_the_face_does_not_have_is_an_attribute_error() -> None:
    code = "import stagelink; print(hasattr(stagelink, 'opne'), hasattr(stagelink, 'open'))"

    assert python(code) == "False True"


@pytest.mark.parametrize("path", modules(ROOT / "core"), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_imports_the_standard_library_only(path: Path) -> None:
    assert set(imports(path)) - {"stagelink"} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", HOLDS_NO_THREAD)
def test_the_face_holds_no_thread_and_no_socket(name: str) -> None:
    held = {"threading", "select", "selectors", "socket", "zmq", "torch", "queue"}

    assert not held & set(imports(FACE / f"{name}.py"))


@pytest.mark.parametrize("layer", [*LAYERS, "src/stagelink"])
def test_everything_public_is_documented(layer: str) -> None:
    found = modules(ROOT / layer)
    bare = {
        str(path.relative_to(ROOT)): names
        for path in found
        if (names := list(undocumented(ast.parse(path.read_text()))))
    }

    assert found
    assert bare == {}


@pytest.mark.parametrize("folder", [*LAYERS, "src", "tests", "docs", "benchmarks"])
def test_no_file_names_a_path_of_somebodys_machine(folder: str) -> None:
    homes = re.compile(r"(?<![\w.])/(?:home|root|work|Users|mnt|opt)/\w")
    texts = [p for p in (ROOT / folder).rglob("*") if p.suffix in {".py", ".md", ".toml", ".txt"}]
    named = [str(p.relative_to(ROOT)) for p in texts if homes.search(p.read_text())]

    assert texts
    assert named == []
