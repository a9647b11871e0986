"""What every process of the host runs, whether it ever builds a connector or not."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from stagelink.adapters.hosts.vllm_omni import plugin

pytest.importorskip("torch", reason="vLLM-Omni is made of torch, and it is an extra")

ROOT = Path(__file__).parents[2]


def test_the_name_is_registered_once_however_often_it_is_asked_for() -> None:
    from vllm_omni.distributed.omni_connectors.factory import OmniConnectorFactory

    plugin.register()
    plugin.register()

    assert OmniConnectorFactory.list_registered_connectors().count("StagelinkConnector") == 1


def test_what_is_registered_builds_a_connector_that_holds_nothing() -> None:
    config = {"stage_id": 0, "role": "sender"}

    connector = plugin.create(config)

    assert connector.config is config
    assert connector.get_connection_info()["endpoint"] == ""
    connector.close()


def test_registering_loads_nothing_heavy_and_needs_no_host() -> None:
    code = (
        "import sys\n"
        "sys.modules['vllm_omni'] = None\n"
        "from stagelink.adapters.hosts.vllm_omni.plugin import register\n"
        "register()\n"
        "heavy = {'torch', 'numpy', 'zmq', 'stagelink.connector', 'stagelink.plugins'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}

    done = subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
    )

    assert done.stdout.strip() == "[]"


def test_the_entry_point_is_what_it_says() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    value = text.split('[project.entry-points."vllm.general_plugins"]\nstagelink = "')[1]

    loaded = EntryPoint("stagelink", value.split('"')[0], "vllm.general_plugins").load()

    assert loaded is plugin.register


def test_a_process_that_closes_nothing_ends_and_leaves_nothing(base: int) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "tests.hosts.leaves", str(base)]

    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, check=True, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip

    assert done.stdout == "leaves\n"
    assert done.stderr == ""
