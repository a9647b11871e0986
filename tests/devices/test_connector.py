"""A whole connector whose pool lies on a device keeps the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.devices.host import HostDevice

from stagelink.plugins import manager
from stagelink.plugins.conformance.connector import ConnectorContract

pytest.importorskip("torch", reason="these values are tensors, and torch is an extra")

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


class Installed:
    """The entry point of the plugin, as an installed distribution would have it."""

    name = "host-device"
    dist = None

    @staticmethod
    def load() -> HostDevice:
        """The plugin."""
        return HostDevice()


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every connector of these tests find it."""

    def found(**_: object) -> Sequence[type[Installed]]:
        return [Installed]

    monkeypatch.setattr(manager, "entry_points", found)


class TestConnectorOnADevice(ConnectorContract):
    """Within one process: no other one knows the plugin."""

    crosses_processes = False

    @pytest.fixture
    def backend(self) -> str:
        """On host memory that plays a device."""
        return "host_ipc"

    def viewed(self) -> torch.Tensor:
        """Tensors alone stay where they are."""
        return torch.arange(300_000)
