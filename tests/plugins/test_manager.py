"""A toy plugin, registered for real: as an object, and as an installed distribution."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from stagelink.config import load_config
from stagelink.core.errors import ConfigError
from stagelink.plugins import Backend, BackendContext, ChannelKind, Manager, hookimpl

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT = BackendContext(bytes(16), load_config({"stage": "a", "role": "peer"}))
WORKS = "toy_of_this_test:works"
TOY = Backend("toy", "for the test", "toy-wire", WORKS, WORKS, WORKS, rank=1)


class Toy:
    """A plugin: any object with hook implementations."""

    def __init__(self, *backends: Backend, name: str = "toybox") -> None:
        self.__name__ = name
        self._backends = backends

    @hookimpl
    def stagelink_backends(self) -> list[Backend]:
        return list(self._backends)

    @hookimpl
    def stagelink_channels(self) -> list[ChannelKind]:
        return [ChannelKind(f"{self.__name__}-wire", "a wire", WORKS)]


@pytest.fixture(autouse=True)
def toy_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(works=lambda _: "", broken=lambda _: "no toys here; buy some")
    monkeypatch.setitem(sys.modules, "toy_of_this_test", module)


def install(site: Path, name: str, code: str) -> None:
    """Put a distribution with one module and a stagelink entry point into *site*."""
    (site / f"{name}.py").write_text(code)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[stagelink]\n{name} = {name}\n")


def test_our_own_backends_come_by_the_same_hook() -> None:
    manager = Manager()

    assert {"shm", "shm-write", "memory", "memory-write"} <= set(manager.backends)
    assert {"zmq", "memory"} <= set(manager.channels)
    assert manager.provided_by("shm") == "stagelink"


def test_every_backend_of_ours_names_a_channel_that_exists() -> None:
    manager = Manager()

    assert {b.channel for b in manager.backends.values()} <= set(manager.channels)


def test_a_foreign_backend_stands_beside_ours() -> None:
    manager = Manager([Toy(TOY)])

    assert manager.choose("toy", CONTEXT) == [TOY]
    assert manager.provided_by("toy") == "toybox"
    assert "toybox-wire" in manager.channels


def test_one_manager_knows_nothing_of_another() -> None:
    Manager([Toy(TOY)])

    assert "toy" not in Manager().backends


def test_a_name_given_twice_names_both_plugins() -> None:
    with pytest.raises(ConfigError, match="both contribute 'shm'") as caught:
        Manager([Toy(TOY._replace(name="shm"))])

    assert "'stagelink'" in str(caught.value)
    assert "'toybox'" in str(caught.value)


def test_an_unknown_name_suggests_the_closest_and_lists_all() -> None:
    with pytest.raises(
        ConfigError,
        match=r"'shm-wirte'.*mean 'shm-write'.*known: auto, device_ipc, frames, memory",
    ):
        Manager().choose("shm-wirte", CONTEXT)


def test_a_named_backend_that_cannot_work_is_refused_without_fallback() -> None:
    broken = TOY._replace(probe="toy_of_this_test:broken")

    with pytest.raises(ConfigError, match="'toy' cannot work here: no toys here; buy some"):
        Manager([Toy(broken)]).choose("toy", CONTEXT)


def test_auto_takes_the_best_that_works() -> None:
    best = TOY._replace(name="best", rank=99, provider="best:best")
    broken = best._replace(name="broken", rank=100, probe="toy_of_this_test:broken")

    assert Manager([Toy(best, broken)]).choose("auto", CONTEXT) == [best]


def test_auto_brings_all_that_share_channel_and_pool_with_the_best() -> None:
    best = TOY._replace(name="best", rank=99)
    other = TOY._replace(name="other", rank=98)
    apart = TOY._replace(name="apart", rank=97, channel="zmq")

    assert Manager([Toy(apart, other, best)]).choose("auto", CONTEXT) == [best, other]


def test_auto_leaves_out_what_has_no_rank() -> None:
    chosen = Manager([Toy(TOY._replace(rank=0))]).choose("auto", CONTEXT)

    assert "toy" not in [backend.name for backend in chosen]


def test_auto_says_why_nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Manager, "why_not", lambda *_: "not today")

    with pytest.raises(ConfigError, match="shm: not today; shm-write: not today"):
        Manager().choose("auto", CONTEXT)


def test_a_factory_that_cannot_be_loaded_names_itself_and_its_cause() -> None:
    with pytest.raises(ConfigError, match="no_such_module:plane cannot be loaded") as caught:
        Manager().build("no_such_module:plane", CONTEXT)

    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_an_unwritable_directory_is_told_before_anything_starts(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "missing")
    config = load_config({"stage": "a", "role": "peer", "shm_dir": nowhere})

    with pytest.raises(ConfigError, match=f"{nowhere} is not writable.*shm_dir"):
        Manager().choose("shm", BackendContext(bytes(16), config))


INSTALLED = """
from stagelink.plugins import Backend, hookimpl

@hookimpl
def stagelink_backends():
    return [Backend("installed", "s", "zmq", "x:y", "x:y", "x:y")]
"""


def test_an_installed_plugin_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "stagelink_toy_good", INSTALLED)
    monkeypatch.syspath_prepend(str(tmp_path))

    assert Manager().provided_by("installed") == "stagelink_toy_good"


def test_a_plugin_that_fails_to_import_harms_only_those_who_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "stagelink_toy_bad", "raise RuntimeError('no driver')")
    monkeypatch.syspath_prepend(str(tmp_path))
    manager = Manager()

    assert manager.choose("memory", CONTEXT)
    with pytest.raises(ConfigError, match="'stagelink_toy_bad' failed to load: no driver") as bad:
        manager.choose("stagelink_toy_bad", CONTEXT)
    assert isinstance(bad.value.__cause__, RuntimeError)
