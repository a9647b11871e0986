"""What is compared: each is two ends, one process and one GPU each.

A contender's ``put`` runs in the producer, ``take`` and ``poll`` in the consumer. What ``put``
returns is carried over to ``take`` by a socket, whose time is not counted for anybody.
"""

from __future__ import annotations

import os
import sys
import time
import types
from pathlib import Path
from typing import Any, NamedTuple

OMNI = "vllm_omni.distributed.omni_connectors"
PATIENCE_S = 60.0


class Terms(NamedTuple):
    """What an end is started with; ``device`` is its own, ``most`` bytes the largest payload."""

    device: str
    index: int
    most: int
    dry: bool
    omni: str

    @property
    def pool_bytes(self) -> int:
        """Of every contender alike: an eighth, which one sender may be lent, holds the largest."""
        return 10 * self.most + (64 << 20)


class Stagelink:
    """Ours, over one backend.

    ``copied``: the reader copies into a tensor of its own; ``polls``: it does not sleep in a get,
    but asks again and again.
    """

    def __init__(
        self, terms: Terms, backend: str, *, copied: bool = False, polls: bool = False
    ) -> None:
        self.terms = terms
        self.backend = backend
        self.needs_hint = False
        self._copied = copied
        self._polls = polls
        self._mine: dict[int, Any] = {}
        if backend.startswith("mori"):
            load_mori()

    def open(self) -> dict[str, Any]:
        """The producer's end."""
        self._link = self._opened("thinker", role="sender")
        return {"endpoint": self._link.endpoint}

    def join(self, told: dict[str, Any]) -> None:
        """The consumer's end."""
        self._link = self._opened("talker", role="receiver", senders={"thinker": told["endpoint"]})

    def put(self, key: str, tensor: Any) -> None:  # noqa: ANN401 - a torch tensor
        """Copy it into the pool and publish it."""
        self._link.put(key, tensor, to="talker", timeout=PATIENCE_S)

    def alloc(self, nbytes: int) -> Any:  # noqa: ANN401 - a draft, whose tensor is filled
        """A block of the pool."""
        return self._link.alloc((nbytes,), "uint8", timeout=PATIENCE_S)

    def put_filled(self, key: str, draft: Any) -> None:  # noqa: ANN401 - of alloc
        """Publish it where it is."""
        self._link.put(key, draft, to="talker")

    def take(self, key: str, hint: Any) -> tuple[Any, Any]:  # noqa: ANN401
        """Wait for it; the tensor, and what to call when done with it."""
        del hint
        if self._polls:
            return self._polled(key)
        if not self._copied:
            payload = self._link.get(key, source="thinker", timeout=PATIENCE_S)
            return payload.value, payload.close
        payload = self._link.get(key, source="thinker", timeout=PATIENCE_S)
        mine = self._room(payload.value.numel())
        mine.copy_(payload.value)
        settle(self.terms)
        payload.close()
        return mine, nothing

    def _polled(self, key: str) -> tuple[Any, Any]:
        until_s = time.monotonic() + PATIENCE_S
        while (found := self.poll(key)) is None:
            if time.monotonic() > until_s:
                msg = f"{key!r} has not come"
                raise TimeoutError(msg)
        return found

    def poll(self, key: str) -> tuple[Any, Any] | None:
        """Take it if it is here."""
        payload = self._link.poll(key, source="thinker")
        return None if payload is None else (payload.value, payload.close)

    def forget(self, key: str) -> None:
        """A consumed payload is gone by itself."""

    def close(self) -> None:
        """End it."""
        self._link.close()

    def _room(self, nbytes: int) -> Any:  # noqa: ANN401 - a torch tensor
        import torch  # noqa: PLC0415

        if nbytes not in self._mine:
            self._mine[nbytes] = torch.empty(nbytes, dtype=torch.uint8, device=self.terms.device)
        return self._mine[nbytes]

    def _opened(self, stage: str, **settings: Any) -> Any:  # noqa: ANN401 - a connector
        import stagelink  # noqa: PLC0415

        if self.backend == "device_ipc":
            settings["pool_device"] = self.terms.device
        if self.backend.startswith("mori"):
            settings["mori"] = {"memory_pool_device": self.terms.device}
        return stagelink.open(
            stage=stage, backend=self.backend, pool_bytes=self.terms.pool_bytes, **settings
        )


class VllmOmni:
    """vLLM-Omni's own connector, from its released package."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.needs_hint = True
        load_mori()
        self._make = load_omni(Path(terms.omni))

    def open(self) -> dict[str, Any]:
        """The producer's end."""
        self._link = self._opened(role="sender", zmq_port=free_port())
        return {"port": self._link.zmq_port}

    def join(self, told: dict[str, Any]) -> None:
        """The consumer's end."""
        self._link = self._opened(
            role="receiver", sender_host="127.0.0.1", sender_zmq_port=told["port"]
        )

    def put(self, key: str, tensor: Any) -> Any:  # noqa: ANN401 - its metadata
        """Copy it into the pool and publish it."""
        ok, _, metadata = self._link.put("thinker", "talker", key, tensor)
        if not ok:
            msg = f"its put of {tensor.nbytes} bytes returned False"
            raise RuntimeError(msg)
        return metadata

    def take(self, key: str, hint: Any) -> tuple[Any, Any]:  # noqa: ANN401
        """Pull it by the metadata of its put."""
        got = self._link.get("thinker", "talker", key, hint)
        if got is None:
            msg = f"its get of {key!r} returned None"
            raise RuntimeError(msg)
        return got[0].tensor, got[0].release

    def poll(self, key: str) -> tuple[Any, Any] | None:
        """Ask for it without metadata, as its chunk adapter does."""
        got = self._link.get("thinker", "talker", key)
        return None if got is None else (got[0].tensor, got[0].release)

    def forget(self, key: str) -> None:
        """Let the sender's block go."""
        self._link.cleanup(key, "thinker", "talker")

    def close(self) -> None:
        """End it."""
        self._link.close()

    def _opened(self, **extra: Any) -> Any:  # noqa: ANN401 - a connector
        return self._make({
            "host": "127.0.0.1", "backend_type": "xgmi", "memory_pool_device": self.terms.device,
            "memory_pool_size": self.terms.pool_bytes, "stage_id": self.terms.index, **extra,
        })  # fmt: skip


class RawMori:
    """``session.write`` of AMD's engine and nothing else: the floor of whatever uses it."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.needs_hint = False
        load_mori()

    def open(self) -> dict[str, Any]:
        """The producer's engine and memory."""
        return self._engine("producer")

    def join(self, told: dict[str, Any]) -> dict[str, Any]:
        """The consumer's; its memory is what the producer writes into."""
        import mori.io as mi  # noqa: PLC0415

        mine = self._engine("consumer")
        self.engine.register_remote_engine(mi.EngineDesc.unpack(bytes.fromhex(told["engine"])))
        return mine

    def know(self, told: dict[str, Any]) -> None:
        """In the producer: the consumer, and a session with it."""
        import mori.io as mi  # noqa: PLC0415

        self.engine.register_remote_engine(mi.EngineDesc.unpack(bytes.fromhex(told["engine"])))
        self._far = mi.MemoryDesc.unpack(bytes.fromhex(told["memory"]))
        self._session = self.engine.create_session(self._near, self._far)
        if self._session is None:
            msg = "the engine finds no way between the two memories"
            raise RuntimeError(msg)

    def write(self, nbytes: int) -> None:
        """One write, waited for."""
        status = self._session.write(0, 0, nbytes, self._session.allocate_transfer_uid())
        status.Wait()
        if not status.Succeeded():
            msg = f"session.write failed: {status.Code()} {status.Message()}"
            raise RuntimeError(msg)

    def fill(self, tensor: Any) -> None:  # noqa: ANN401 - a torch tensor
        """In the producer: what is to be written."""
        self.pool[: tensor.numel()].copy_(tensor)
        settle(self.terms)

    def held(self, nbytes: int) -> Any:  # noqa: ANN401 - a torch tensor
        """In the consumer: what has been written."""
        return self.pool[:nbytes]

    def close(self) -> None:
        """In this order: sessions, memory, engine."""
        self._session = None
        self.engine.deregister_memory(self._near)
        self.engine = None

    def _engine(self, name: str) -> dict[str, Any]:
        import mori.io as mi  # noqa: PLC0415
        import torch  # noqa: PLC0415

        self.engine: Any = mi.IOEngine(
            f"h200-{name}-{os.getpid()}", mi.IOEngineConfig(host="127.0.0.1", port=0)
        )
        self.engine.create_backend(mi.BackendType.XGMI)
        self.pool = torch.empty(self.terms.most, dtype=torch.uint8, device=self.terms.device)
        self._near = self.engine.register_torch_tensor(self.pool)
        self._session: Any = None
        engine = self.engine.get_engine_desc().pack().hex()
        return {"engine": engine, "memory": self._near.pack().hex()}


def make(name: str, terms: Terms) -> Any:  # noqa: ANN401 - one of the above
    """The contender *name*, at one end."""
    if name == "vllm-omni":
        return VllmOmni(terms)
    if name == "raw-mori":
        return RawMori(terms)
    backend, _, way = name.partition("+")
    return Stagelink(terms, backend, copied=way == "copy", polls=way == "poll")


def load_mori() -> None:
    """AMD's engine: with ROCm as it is, on NVIDIA over the simulated HIP runtime."""
    import torch  # noqa: PLC0415

    if torch.version.hip is None:
        from tests.sims import hipsim  # noqa: PLC0415 - of this checkout

        hipsim.setup("cuda")
    import mori.io  # noqa: F401, PLC0415


def load_omni(root: Path) -> Any:  # noqa: ANN401 - a class
    """vLLM-Omni's connector, unmodified, without vLLM: its packages' own beginnings do not run."""
    for name in (
        "vllm_omni", "vllm_omni.distributed", OMNI, f"{OMNI}.connectors", f"{OMNI}.utils",
        "vllm_omni.entrypoints", "vllm_omni.config",
    ):  # fmt: skip
        shell = types.ModuleType(name)
        shell.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = shell
    for name in ("CompletionOutput", "RequestOutput"):
        outputs = sys.modules.setdefault("vllm.outputs", types.ModuleType("vllm.outputs"))
        setattr(outputs, name, type(name, (), {}))
    sys.modules.setdefault("vllm", types.ModuleType("vllm"))
    from importlib import import_module  # noqa: PLC0415

    module = import_module(f"{OMNI}.connectors.mori_transfer_engine_connector")
    module.logger.setLevel("ERROR")
    return module.MoriTransferEngineConnector


def free_port() -> int:
    """One that can be bound now."""
    import socket  # noqa: PLC0415

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settle(terms: Terms) -> None:
    """Wait for the current stream of this end's device."""
    if terms.dry:
        return
    import torch  # noqa: PLC0415

    torch.cuda.current_stream(terms.device).synchronize()


def nothing() -> None:
    """There is nothing to release."""
