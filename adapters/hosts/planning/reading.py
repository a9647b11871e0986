"""From files to one document, as vLLM-Omni puts them together, with the line of every path."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from stagelink.adapters.hosts.planning.values import Document, Finding, Place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BASES = 8
"""Files that may be based on one another; more is a circle."""
PATHS = 100_000
"""Paths whose line is kept; a file with more of them means no deployment."""
_DEEP = frozenset((
    "default_sampling_params", "default_pooling_params", "subtalker_sampling_params",
    "engine_extras", "engine_args",
))  # fmt: skip
"""What a stage of an overlay adds to; everything else of a stage it replaces."""


class UnreadableError(Exception):
    """There is no document: a file is missing, is no YAML, or holds no table."""


def read_document(path: Path) -> Document:
    """The deploy file at *path*, on top of the files that ``base_config`` names.

    Raises:
        UnreadableError: one of them cannot be read, or they go round in a circle.
    """
    return _read(path, BASES)


def _read(path: Path, left: int) -> Document:
    if not left:
        msg = f"{path}: base_config goes through more than {BASES} files: is it a circle?"
        raise UnreadableError(msg)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        msg = f"{path} cannot be read: {reason}"
        raise UnreadableError(msg) from error
    document = parse_text(str(path), text)
    base = document.data.pop("base_config", None)
    if base is None:
        return document
    return lay_over(_read(path.parent / str(base), left - 1), document)


def parse_text(name: str, text: str) -> Document:
    """The document in *text*; *name* is that of its file.

    Raises:
        UnreadableError: it is no YAML, or no table.
    """
    import yaml  # noqa: PLC0415 - only this command needs it

    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        data = None if root is None else loader.construct_document(root)
        paths = list(islice(_walk(root, ""), PATHS))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        msg = f"{name} is no YAML: {' '.join(str(error).split())}"
        raise UnreadableError(msg) from error
    if not isinstance(data, dict):
        kind = "is empty" if data is None else f"holds a {type(data).__name__}"
        msg = f"{name} {kind}, and a deployment is a table of stages and connectors"
        raise UnreadableError(msg)
    places: dict[str, Place] = {}
    findings: list[Finding] = []
    for path, line, again in paths:
        place = Place(name, line)
        if again:
            what = f"the key stands twice, at line {places[path].line} and at line {line}"
            remedy = "keep one of them: vLLM-Omni refuses the file"
            findings.append(Finding("duplicate-key", "error", path, what, remedy, place))
        places[path] = place
    return Document(data, places, (name,), tuple(findings))


def _walk(node: Any, path: str) -> Iterator[tuple[str, int, bool]]:  # noqa: ANN401 - a yaml.Node
    """Every path below *node*, its line, and whether its table has it already."""
    if node is None:
        return
    if node.id == "mapping":
        seen: set[str] = set()
        for key, value in node.value:
            here = f"{path}.{key.value}" if path else str(key.value)
            yield here, key.start_mark.line + 1, here in seen
            seen.add(here)
            yield from _walk(value, here)
    elif node.id == "sequence":
        for index, item in enumerate(node.value):
            here = f"{path}[{_label(item, path, index)}]"
            yield here, item.start_mark.line + 1, False
            yield from _walk(item, here)


def _label(item: Any, path: str, index: int) -> str:  # noqa: ANN401 - a yaml.Node
    """How an item of a list is called: a stage by its id."""
    if path.endswith("stages") and item.id == "mapping":
        for key, value in item.value:
            if key.value == "stage_id" and value.id == "scalar":
                return str(value.value)
    return str(index)


def lay_over(base: Document, top: Document) -> Document:
    """*top* over *base*, as vLLM-Omni merges them."""
    apart = ("connectors", "stages", "platforms")
    merged = {**base.data, **{k: v for k, v in top.data.items() if k not in apart}}
    if base.data.get("connectors") or top.data.get("connectors"):
        merged["connectors"] = _deep(_table(base, "connectors"), _table(top, "connectors"))
    merged["stages"] = _stages(base.data.get("stages"), top.data.get("stages"))
    if base.data.get("platforms") or top.data.get("platforms"):
        merged["platforms"] = _platforms(_table(base, "platforms"), _table(top, "platforms"))
    return Document(
        merged, base.places | top.places, top.files + base.files, base.findings + top.findings
    )


def _table(document: Document, key: str) -> dict[str, Any]:
    found = document.data.get(key)
    return found if isinstance(found, dict) else {}


def _stages(base: Any, top: Any) -> Any:  # noqa: ANN401 - what a file holds
    """Both lists by their ids; what is no list is left for the parser to find."""
    for told in (top, base):
        if told is not None and not isinstance(told, list):
            return told
    merged: dict[object, Any] = {}
    for stage in (*(base or ()), *(top or ())):
        number = stage.get("stage_id") if isinstance(stage, dict) else None
        known = number if isinstance(number, int) else ("no id", len(merged))
        merged[known] = _stage(merged[known], stage) if known in merged else stage
    return list(merged.values())


def _stage(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    deep = {
        key: _deep(base[key], top[key])
        for key in _DEEP & base.keys() & top.keys()
        if isinstance(base[key], dict) and isinstance(top[key], dict)
    }
    return {**base, **top, **deep}


def _platforms(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = {}
    for name in dict.fromkeys((*base, *top)):
        under, over = _section(base, name), _section(top, name)
        stages = _stages(under.get("stages"), over.get("stages"))
        merged[name] = {**under, **over, "stages": stages}
    return merged


def _section(platforms: dict[str, Any], name: str) -> dict[str, Any]:
    found = platforms.get(name)
    return found if isinstance(found, dict) else {}


def _deep(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        both = isinstance(merged.get(key), dict) and isinstance(value, dict)
        merged[key] = _deep(merged[key], value) if both else value
    return merged
