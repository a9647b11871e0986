"""Which backends are installed, whether each can work here, and what it can do."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from stagelink import __version__
from stagelink.config import load_config
from stagelink.plugins import BackendContext, Manager
from stagelink.plugins.hookspecs import PROJECT

if TYPE_CHECKING:
    from stagelink.config import Config
    from stagelink.plugins import Backend
    from stagelink.ports.plane import Capabilities


class BackendRow(NamedTuple):
    """One backend, or one plugin that failed to load.

    Attributes:
        name: what a user writes as ``backend=``; of a broken plugin its entry point's name.
        summary: one line of its own.
        available: whether it can work here.
        reason: why not; empty when it can.
        remedy: what to do about that; may be empty.
        automatic: whether ``auto`` considers it.
        capabilities: fields of :class:`stagelink.ports.plane.Capabilities`; None if unknown.
        provided_by: the distribution that contributes it.
    """

    name: str
    summary: str
    available: bool
    reason: str
    remedy: str
    automatic: bool
    capabilities: dict[str, Any] | None
    provided_by: str


def list_backends(
    manager: Manager | None = None, config: Config | None = None
) -> list[BackendRow]:
    """Every backend, best first, then every plugin that failed to load.

    Args:
        manager: where to look; None: what is installed.
        config: the configuration to judge by; None: the defaults.
    """
    manager = manager or Manager()
    config = config or load_config({"stage": "backends", "role": "peer"})
    context = BackendContext(secrets.token_bytes(16), config)
    ranked = sorted(manager.backends.values(), key=lambda b: (-b.rank, b.name))
    rows = [_row(manager, backend, context) for backend in ranked]
    return rows + [_broken(manager, name, error) for name, error in manager.broken.items()]


def capabilities_of(
    manager: Manager, backend: Backend, context: BackendContext
) -> Capabilities | None:
    """What *backend*'s plane says of itself; None if none can be made here."""
    try:
        plane = manager.build(backend.plane, context)
    except Exception:  # noqa: BLE001 - a plugin is anybody's code, and its probe has spoken
        return None
    try:
        found: Capabilities = plane.capabilities
        return found
    finally:
        plane.close()


def _row(manager: Manager, backend: Backend, context: BackendContext) -> BackendRow:
    try:
        why = manager.why_not(backend, context)
    except Exception as error:  # noqa: BLE001 - a plugin is anybody's code
        why = f"its probe failed: {type(error).__name__}: {error}"
    reason, _, remedy = why.partition("; ")
    found = None if why else capabilities_of(manager, backend, context)
    return BackendRow(
        backend.name, backend.summary, not why, reason, remedy, backend.rank > 0,
        None if found is None else found._asdict(),
        _distribution(manager, manager.provided_by(backend.name)),
    )  # fmt: skip


def _distribution(manager: Manager, plugin: str) -> str:
    return f"stagelink {__version__}" if plugin == PROJECT else manager.distribution_of(plugin)


def _broken(manager: Manager, name: str, error: BaseException) -> BackendRow:
    reason = f"the plugin failed to load: {type(error).__name__}: {error}"
    remedy = "repair or uninstall that plugin"
    return BackendRow(name, "", False, reason, remedy, False, None, manager.distribution_of(name))
