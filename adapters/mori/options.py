"""What a user may tune of Mori, by Mori's own names; the defaults are those of vLLM-Omni."""

from __future__ import annotations

from typing import NamedTuple


class XgmiOptions(NamedTuple):
    """Between GPUs of one host.

    Attributes:
        num_streams, num_events: how many HIP streams and events the engine keeps per device.
    """

    num_streams: int = 64
    num_events: int = 64


class RdmaOptions(NamedTuple):
    """Through NICs.

    Attributes:
        device_name: NICs to use, separated by commas; empty: ``MORI_RDMA_DEVICES``, or all.
        host: the address at which peers reach the engine to connect queue pairs.
        qp_per_transfer: queue pairs per peer.
        post_batch_size: work requests posted at once; -1: as Mori likes.
        num_worker_threads: threads that post.
        enable_transfer_chunking, chunk_bytes, max_chunks_per_transfer: cut long writes.
        num_nics_per_transfer: NICs that one transfer is spread over.
        event_mode: completions by event and not by polling; an idle engine keeps a core busy in
            both.
        enable_notification: tell the target of each write as well; both sides must agree.
    """

    device_name: str = ""
    host: str = "127.0.0.1"
    qp_per_transfer: int = 1
    post_batch_size: int = -1
    num_worker_threads: int = 1
    enable_transfer_chunking: bool = False
    chunk_bytes: int = 65536
    max_chunks_per_transfer: int = 64
    num_nics_per_transfer: int = 1
    event_mode: bool = False
    enable_notification: bool = False
