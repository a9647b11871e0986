"""The number of a connection that has gone may be that of anything by the time it is looked up."""

from __future__ import annotations

import os
from pathlib import Path

from stagelink.adapters.zmq.callers import Callers


def test_a_number_that_is_no_sockets_any_more_leaves_no_copy_open() -> None:
    with Path(os.devnull).open("rb") as other:
        before = len(os.listdir("/proc/self/fd"))
        Callers().accepted(other.fileno())
        assert len(os.listdir("/proc/self/fd")) == before
