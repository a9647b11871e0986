"""Loads AMD's transfer engine (``amd-mori``) on a machine without ROCm and without torch."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tests.sims import building, stubs

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPOLOGY = Path(__file__).parent / "topology"


def load() -> None:
    """Import ``mori.io``, once the runtime that stands for HIP has been loaded.

    Raises:
        ImportError: ``amd-mori`` is not installed.
        CannotBuildError: there is no C compiler.
    """
    folder = installed()
    if folder is None:
        msg = "AMD's engine is not installed: pip install 'amd-mori==1.2.4'"
        raise ImportError(msg)
    ctypes.CDLL(str(build_pci()), mode=ctypes.RTLD_GLOBAL)
    stubs.load_missing(sorted(folder.glob("*.so")))
    with _something_called_torch():
        import mori.io  # noqa: F401


def installed() -> Path | None:
    """The folder of the engine's package, or nothing."""
    spec = importlib.util.find_spec("mori")
    return Path(spec.origin).parent if spec and spec.origin else None


def build_pci() -> Path:
    """The PCI bus that the engine is shown, with the GPUs and the cards of the simulators."""
    flags = [f"-Wl,--version-script={TOPOLOGY / 'pci.map'}"]
    return building.shared_library("pci", "libpci.so.3", [TOPOLOGY / "pci.c"], flags)


def build_smi() -> Path:
    """ROCm's library for system management, which tells how those GPUs are linked."""
    return building.shared_library("smi", "librocm_smi64.so.1", [TOPOLOGY / "smi.c"])


@contextmanager
def _something_called_torch() -> Iterator[None]:
    """The engine names ``torch.Tensor`` in a signature, and does without it.

    It goes again, so that nobody else takes it for the real one.
    """
    if "torch" in sys.modules or importlib.util.find_spec("torch"):
        yield
        return
    torch = ModuleType("torch")
    torch.Tensor = type("Tensor", (), {})  # type: ignore[attr-defined]
    sys.modules["torch"] = torch
    try:
        yield
    finally:
        del sys.modules["torch"]
