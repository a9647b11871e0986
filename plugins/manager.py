"""Finds backends by hook and entry point, and builds the one that a configuration names."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pluggy

from stagelink.core.envelope import NAME_LIMIT
from stagelink.core.errors import ConfigError
from stagelink.plugins import builtin, hookspecs, zstd
from stagelink.plugins.hookspecs import PROJECT, Backend, ChannelKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.metadata import EntryPoint

    from stagelink.plugins.hookspecs import BackendContext
    from stagelink.ports import Compressor, TypeCodec


class Manager:
    """Every backend and channel known, by name; a plugin that fails to load harms nobody else.

    Args:
        plugins: objects with hook implementations, besides ours and the installed ones.
    """

    def __init__(self, plugins: Iterable[object] = ()) -> None:
        self._pluggy = pluggy.PluginManager(PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        self.broken: dict[str, BaseException] = {}
        self._distributions: dict[str, str] = {}
        self._register(builtin, "stagelink")
        self._register(zstd, "stagelink-zstd")
        for plugin in plugins:
            self._register(plugin, getattr(plugin, "__name__", type(plugin).__name__))
        for entry in entry_points(group=PROJECT):
            self._load(entry)
        self._owner: dict[tuple[str, str], str] = {}
        self.backends: dict[str, Backend] = self._collect("stagelink_backends")
        self.channels: dict[str, ChannelKind] = self._collect("stagelink_channels")
        self.codecs: dict[str, TypeCodec] = self._owned("stagelink_codecs")
        self.compressors: dict[str, Compressor] = self._owned("stagelink_compressors")

    def provided_by(self, backend: str) -> str:
        """The plugin that contributed *backend*."""
        return self._owner["stagelink_backends", backend]

    def distribution_of(self, plugin: str) -> str:
        """The installed distribution that *plugin* came from; else the plugin's own name."""
        return self._distributions.get(plugin, plugin)

    def choose(self, name: str, context: BackendContext) -> list[Backend]:
        """The backends that *name* stands for, best first.

        One for a name, which is strict and never falls back; for ``auto`` all those that share
        channel and pool with the best one that works here.

        Raises:
            ConfigError: unknown (lists the known ones), or it cannot work here (says why).
        """
        if name != "auto":
            backend = self._named(name)
            reason = self.why_not(backend, context)
            if reason:
                msg = f"backend {name!r} cannot work here: {reason}"
                raise ConfigError(msg, remedy="put that right, or choose another backend")
            return [backend]
        ranked = sorted(
            (b for b in self.backends.values() if b.rank), key=lambda b: b.rank, reverse=True
        )
        reasons = {b.name: self.why_not(b, context) for b in ranked}
        works = [b for b in ranked if not reasons[b.name]]
        if not works:
            said = "; ".join(f"{name}: {why}" for name, why in reasons.items()) or "none is known"
            msg = f"no backend works here: {said}"
            raise ConfigError(msg, remedy="put one of these right, or name a backend")
        best = works[0]
        return [b for b in works if (b.channel, b.provider) == (best.channel, best.provider)]

    def why_not(self, backend: Backend, context: BackendContext) -> str:
        """Why *backend* cannot work here, with the remedy; empty when it can."""
        return "" if backend.probe is None else str(self.build(backend.probe, context))

    def build(self, factory: str, context: BackendContext) -> Any:  # noqa: ANN401 - any port
        """Call the factory that a ``"module:function"`` string names.

        Raises:
            ConfigError: it cannot be imported; the cause is its own error.
        """
        module, _, attribute = factory.partition(":")
        try:
            return getattr(import_module(module), attribute)(context)
        except ImportError as error:
            msg = f"{factory} cannot be loaded: {error}"
            raise ConfigError(msg, remedy="install what the backend needs") from error

    def channel(self, name: str, context: BackendContext) -> Any:  # noqa: ANN401 - a channel
        """Build the control channel *name*.

        Raises:
            ConfigError: it does not do what ``security`` asks for.
        """
        kind = self.channels[name]
        wanted = getattr(context.config, "security", "none")
        if wanted not in kind.security:
            msg = f"the control channel {name!r} ({kind.summary}) knows no security={wanted!r}"
            raise ConfigError(msg, remedy="choose a backend between processes, or leave it out")
        return self.build(kind.factory, context)

    def compressor(self, name: str) -> Compressor:
        """The compressor *name*.

        Raises:
            ConfigError: unknown (lists the known ones), or it cannot work here (says why).
        """
        found = self.compressors.get(name)
        if found is None:
            msg = f"unknown compressor {name!r}"
            raise ConfigError(msg, remedy=f"known: {', '.join(sorted(self.compressors))}")
        reason = _why_not(found)
        if reason:
            msg = f"compressor {name!r} cannot work here: {reason}"
            raise ConfigError(msg, remedy="put that right, or leave it out of compression=")
        return found

    def working_compressors(self) -> dict[str, Compressor]:
        """Those that can undo here what others have compressed."""
        return {c.name: c for c in self.compressors.values() if not _why_not(c)}

    def _named(self, name: str) -> Backend:
        backend = self.backends.get(name)
        if backend is not None:
            return backend
        if name in self.broken:
            msg = f"plugin {name!r} failed to load: {self.broken[name]}"
            raise ConfigError(msg) from self.broken[name]
        near = get_close_matches(name, self.backends, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        msg = f"unknown backend {name!r}"
        raise ConfigError(msg, remedy=f"{hint}known: auto, {', '.join(sorted(self.backends))}")

    def _load(self, entry: EntryPoint) -> None:
        """Register an installed plugin; one that fails is remembered, for those who ask."""
        if entry.dist is not None:
            self._distributions[entry.name] = f"{entry.dist.name} {entry.dist.version}"
        try:
            self._register(entry.load(), entry.name)
        except Exception as error:  # noqa: BLE001 - a plugin is anybody's code
            self.broken[entry.name] = error

    def _register(self, plugin: object, name: str) -> None:
        self._pluggy.register(plugin, name=name)

    def _collect(self, hook: str) -> dict[str, Any]:
        """Ask every plugin by itself, so that a name can be traced to its owner."""
        found: dict[str, Any] = {}
        for implementation in reversed(getattr(self._pluggy.hook, hook).get_hookimpls()):
            owner = implementation.plugin_name
            for item in self._contributed(implementation.function, owner):
                other = self._owner.setdefault((hook, item.name), owner)
                if item.name in found:
                    msg = f"plugins {other!r} and {owner!r} both contribute {item.name!r}"
                    raise ConfigError(
                        msg, remedy="uninstall one of them, or rename what it brings"
                    )
                found[item.name] = item
        return found

    def _contributed(self, hook: Callable[[], Iterable[Any]], owner: str) -> list[Any]:
        """What one plugin brings; one whose hook fails is remembered, for those who ask."""
        try:
            return list(hook())
        except Exception as error:  # noqa: BLE001 - a plugin is anybody's code
            self.broken[owner] = error
            return []

    def _owned(self, hook: str) -> dict[str, Any]:
        """Like :meth:`_collect`, each item with the name of the plugin that brought it."""
        found = self._collect(hook)
        for name, item in found.items():
            if not 0 < len(str(name).encode()) <= NAME_LIMIT:
                owner = self._owner[hook, name]
                msg = f"plugin {owner!r} contributes a name of {name!r:.80}"
                raise ConfigError(msg, remedy=f"name it in 1 to {NAME_LIMIT} bytes")
            found[name] = item._replace(plugin=self._owner[hook, name])
        return found


def _why_not(compressor: Compressor) -> str:
    """Why it cannot work here; empty when it can."""
    try:
        return compressor.probe() if compressor.probe else ""
    except Exception as error:  # noqa: BLE001 - a plugin is anybody's code
        return f"plugin {compressor.plugin!r} failed: {type(error).__name__}: {error}"
