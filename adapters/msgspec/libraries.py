"""Torch and numpy, each imported once a value of it is seen."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from stagelink.core.errors import PayloadError


def tensors() -> Any:  # noqa: ANN401 - a module
    """The module of torch's values; PayloadError without torch."""
    return MODULES.get("tensors") or _import("tensors")


def arrays() -> Any:  # noqa: ANN401 - a module
    """The module of numpy's values; PayloadError without numpy."""
    return MODULES.get("arrays") or _import("arrays")


def _import(name: str) -> Any:  # noqa: ANN401 - a module
    try:
        module = import_module(f"stagelink.adapters.msgspec.{name}")
    except ImportError as error:
        msg = f"the payload holds {name}, which need a library that is not here: {error}"
        raise PayloadError(msg, remedy="install it on this side too") from error
    MODULES[name] = module
    return module


MODULES: dict[str, Any] = {}
