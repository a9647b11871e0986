from __future__ import annotations

import pytest

from stagelink.adapters.local import LocalChannel
from stagelink.adapters.zmq.channel import ZmqChannel
from stagelink.plugins.conformance.channel import ControlChannelContract, Maker

LONGEST = 128 << 10


def opened(address: str = "") -> LocalChannel:
    port = int(address.rpartition(":")[2]) if address else 0
    return LocalChannel(ZmqChannel("127.0.0.1", port, high_water_mark=200), longest=LONGEST)


class TestContract(ControlChannelContract):
    @pytest.fixture
    def make_channel(self) -> Maker:
        return opened
