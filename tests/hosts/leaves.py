"""A process of the host that ends as it is, with connectors open and one just being opened."""

from __future__ import annotations

import sys
import time

from tests.hosts import standin

sys.modules.update(standin.modules())

from stagelink.adapters.hosts.vllm_omni.connector import StagelinkConnector  # noqa: E402

extra = {"zmq_port": int(sys.argv[1]), "memory_pool_size": 8 << 20}
sender = StagelinkConnector({"stage_id": 0, **extra})
receiver = StagelinkConnector({"stage_id": 1, **extra})
sender.put("0", "1", "k", b"bytes")
while receiver.get("0", "1", "k") is None:
    time.sleep(0.001)
receiver.get("1", "2", "another stage's")
sys.stdout.write("leaves\n")
