"""The host's connectors are tested here without the host, by stand-ins for what they import of it."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOLDER = "stagelink.adapters.hosts.vllm_omni"


@pytest.fixture(scope="package", autouse=True)
def host() -> Iterator[None]:
    """vLLM-Omni if it is installed, and else what stands in for it."""
    if find_spec("vllm_omni") is not None or find_spec("torch") is None:
        yield
        return
    from tests.hosts import standin

    made = standin.modules()
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in [n for n in sys.modules if n in made or n.startswith(FOLDER)]:
            del sys.modules[name]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.fixture
def base() -> int:
    """A port from which on those that the host's rule gives are free."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        if first < 60000 and all(is_free(first + n) for n in (0, 1, 2, 16, 100, 116, 1024)):
            return first
    pytest.fail("no range of ports is free")


Build = "Callable[..., Any]"


@pytest.fixture
def build(base: int) -> Iterator[Callable[..., Any]]:
    """Makes connectors of this test's ports, with small pools; all are closed in the end."""
    from stagelink.adapters.hosts.vllm_omni.connector import StagelinkConnector

    with ExitStack() as stack:

        def made(**extra: Any) -> Any:
            config = {"host": "127.0.0.1", "zmq_port": base, "memory_pool_size": 8 << 20, **extra}
            connector = StagelinkConnector(config)
            stack.callback(connector.close)
            return connector

        yield made
