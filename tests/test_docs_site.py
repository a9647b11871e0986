"""The site without building it: every page is found, every link leads, every public name is told."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
from pathlib import Path

import pytest

import stagelink

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
INDEX = (DOCS / "index.md").read_text(encoding="utf-8")
API = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("reference/api*.md"))
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
PUBLIC = [name for name in stagelink.__all__ if name != "__version__"]
CALLABLES = [
    (f"{name}.{member}", function)
    for name in PUBLIC
    if inspect.isclass(cls := getattr(stagelink, name)) and not issubclass(cls, BaseException)
    for member, function in inspect.getmembers(cls, inspect.isfunction)
    if not member.startswith("_")
] + [("open", stagelink.open)]
CHECKS = {"check_usable", "_cancel", "_check_open"}
"""What a call raises through."""
OURS_ALONE = {"cut", "disown", "placed", "take"}
"""Called by the rest of the face; nobody else has what they need."""
ERRORS = [name for name in PUBLIC if name.endswith("Error")]


def prose(page: Path) -> str:
    """A page without its code."""
    return CODE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def broken(page: Path, target: str) -> bool:
    """Whether an internal link leads nowhere."""
    if "://" in target:
        return False
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    if not there.exists():
        return True
    return bool(anchor) and anchor not in anchors(there)


def test_every_page_is_in_a_toctree() -> None:
    listed = re.findall(r"^((?:tutorials|how-to|reference|explanation)/[\w-]+)$", INDEX, re.M)

    assert sorted(listed) == sorted(
        page.relative_to(DOCS).with_suffix("").as_posix() for page in PAGES if page.stem != "index"
    )


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_every_link_of_a_page_leads_to_a_page_and_a_heading(page: Path) -> None:
    assert [target for target in LINK.findall(prose(page)) if broken(page, target)] == []


def test_a_link_into_the_void_is_seen() -> None:
    page = DOCS / "index.md"

    assert broken(page, "reference/errors.md#no-such-heading")
    assert broken(page, "no-such-page.md")
    assert not broken(page, "reference/errors.md#errors")


@pytest.mark.parametrize("picture", sorted(DOCS.glob("pictures/*.svg")), ids=lambda p: p.stem)
def test_every_picture_is_shown_somewhere(picture: Path) -> None:
    assert any(f"pictures/{picture.name}" in page.read_text(encoding="utf-8") for page in PAGES)


def test_the_pictures_are_what_their_script_draws() -> None:
    drawn = runpy.run_path(str(DOCS / "pictures/draw.py"))["PICTURES"]

    assert drawn == {
        path.stem: path.read_text(encoding="utf-8") for path in DOCS.glob("pictures/*.svg")
    }


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    assert re.search(rf":: stagelink\.{name}$", API, re.MULTILINE)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_member_is_in_the_reference(name: str) -> None:
    listed = re.search(rf":: stagelink\.{name}\n   :members:(.+)$", API, re.MULTILINE)
    members = inspect.getmembers(getattr(stagelink, name), is_shown) if listed else []
    public = {member for member, _ in members if not member.startswith("_")}

    assert public - OURS_ALONE - set(re.findall(r"\w+", listed[1] if listed else "")) == set()


def is_shown(member: object) -> bool:
    """Whether a member of a class is worth a line."""
    return inspect.isfunction(member) or isinstance(member, property)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring(name: str) -> None:
    found = getattr(stagelink, name)
    assert found.__doc__ if inspect.isfunction(found) else found.__dict__.get("__doc__")


@pytest.mark.parametrize(("name", "function"), CALLABLES, ids=[name for name, _ in CALLABLES])
def test_every_public_call_tells_what_it_takes_and_raises(name: str, function: object) -> None:
    text = inspect.getdoc(function) or ""

    assert text, f"{name} has no docstring"
    if raises(function):
        assert re.search(r"Raises:\n +\w*Error\b[\w, ]*: ", text), f"what does {name} raise?"
    explained = text.split("Args:", 1)[-1]
    for parameter in needing_words(function, text):
        assert re.search(
            rf"\*{parameter}\*|^\s*[\w, *]*\b{parameter}\b[\w, ]*:", explained, re.M
        ), f"{name} does not explain {parameter}"


def raises(function: object) -> bool:
    """Whether its own body raises, or checks whether the connector is usable."""
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(function)))  # type: ignore[arg-type]
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return bool(names & CHECKS) or any(isinstance(n, ast.Raise) for n in ast.walk(tree))


def needing_words(function: object, text: str) -> list[str]:
    """Its parameters, if it has a section for them."""
    if "Args:" not in text:
        return []
    return [
        parameter
        for parameter in inspect.signature(function).parameters  # type: ignore[arg-type]
        if parameter not in {"self", "cls"}
    ]


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_on_the_pages_of_errors_and_of_failures(name: str) -> None:
    for page in ("reference/errors.md", "how-to/handle-failures.md"):
        assert f"`{name}`" in (DOCS / page).read_text(encoding="utf-8"), page


def test_every_figure_of_health_is_explained() -> None:
    page = (DOCS / "reference/health.md").read_text(encoding="utf-8")
    with stagelink.open(stage="a", role="sender", backend="memory") as tx:
        senders = {"a": tx.endpoint}
        with stagelink.open(stage="b", role="receiver", backend="memory", senders=senders) as rx:
            tx.put("k", 1, to="b")
            rx.get("k", timeout=30.0).close()
            health = rx.health()

    tables = [health, *(health[name] for name in ("pool", "ledger", "inbox", "compression"))]
    tables += [rows[0] for rows in (health["sessions"], health["edges"])]
    told = set(re.findall(r"`(\w+)`", page))
    assert {key for table in tables for key in table} - told == set()


def test_every_command_and_option_of_bench_is_on_the_page_of_commands() -> None:
    from typer.main import get_command

    from stagelink.commands import app

    page = (DOCS / "reference/cli.md").read_text(encoding="utf-8")
    commands = getattr(get_command(app), "commands")  # noqa: B009 - of a click.Group
    options = [opt for p in commands["bench"].params for opt in p.opts if opt.startswith("--")]

    for name in commands:
        assert f"`stagelink {name}" in page
    assert [option for option in options if option not in page] == []
