"""The dialect against vLLM-Omni's own connector, both directions, on Mori's real engine.

Three stages: theirs puts to ours, ours puts to theirs; two processes, each on its device if there
are two. Every payload is compared bit for bit, then small ones are timed. Their class is loaded
unmodified from the released wheel (``pip download vllm-omni==0.30.0 --no-deps``).

Examples:
  python benchmarks/dialect.py --wheels wheels/                     # two GPUs, XGMI
  python benchmarks/dialect.py --wheels wheels/ --fabric rdma       # pools of the host
  python benchmarks/dialect.py --wheels wheels/ --fabric rdma --simulate   # no RDMA device
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

POOL = 256 << 20
SIZES = (1, 4096, 100_003, 1 << 20, 48 << 20)
ROUNDS = 300
PATIENCE_S = 60.0


def main() -> int:
    """Run our end, and start theirs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", type=Path, required=True, help="has vllm_omni-*.whl")
    parser.add_argument("--fabric", choices=("xgmi", "rdma"), default="xgmi")
    parser.add_argument("--simulate", action="store_true", help="RDMA cards in software")
    parser.add_argument("--theirs", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    begin(asked)
    if asked.theirs:
        serve(asked)
        return 0
    with ExitStack() as last:
        place = last.enter_context(tempfile.TemporaryDirectory(prefix="dialect-"))
        [wheel] = asked.wheels.glob("vllm_omni-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place)
        theirs = last.enter_context(Theirs(place))
        ours = last.enter_context(opened(asked.fabric, theirs.port))
        theirs.do(what="dial", port=int(ours.dialect_endpoint.rpartition(":")[2]))
        found = {"compared": compare(ours, theirs), "us": timed(ours, theirs)}
        print(json.dumps({**found, "dialect": ours.health()["dialect"]}, indent=1))
    return 0


def begin(asked: argparse.Namespace) -> None:
    """Load Mori, over simulated hardware where it must be."""
    os.environ.setdefault("MORI_IO_LOG_LEVEL", "error")
    if asked.simulate:
        os.environ["MORI_DISABLE_AUTO_XGMI"] = "1"
        from tests.sims import verbsim  # noqa: PLC0415

        verbsim.setup()
    else:
        from benchmarks.h200_parts.contenders import load_mori  # noqa: PLC0415

        load_mori()


def opened(fabric: str, port: int) -> Any:  # noqa: ANN401 - a connector
    """Ours, the stage in the middle."""
    import stagelink  # noqa: PLC0415

    device = "cuda:0" if fabric == "xgmi" else "cpu"
    return stagelink.open(
        stage="1", role="peer", backend=f"mori-{fabric}", pool_bytes=POOL,
        mori={"memory_pool_device": device}, dialect="vllm-omni-mori",
        dialect_senders={"0": f"tcp://127.0.0.1:{port}"}, dialect_readers=("2",),
    )  # fmt: skip


def compare(ours: Any, theirs: Theirs) -> int:  # noqa: ANN401 - a connector
    """Pass payloads of every kind and size through; how many."""
    passed = 0
    for kind in ("plain", "tree"):
        for size in SIZES:
            key = f"{kind}-{size}"
            theirs.do(what="put", key=key, kind=kind, size=size)
            with ours.get(key, source="0", timeout=PATIENCE_S) as payload:
                check(payload.value, kind, size)
                value = made(kind, size, "cuda:0" if theirs.on_gpu else "cpu")
            ours.put(key, value, to="2", timeout=PATIENCE_S)
            theirs.do(what="get", key=key, kind=kind, size=size)
            passed += 2
    return passed


def timed(ours: Any, theirs: Theirs) -> dict[str, float]:  # noqa: ANN401 - a connector
    """Medians of a get of 4 KiB, in microseconds: ours of theirs, theirs of ours."""
    import torch  # noqa: PLC0415

    mine = []
    theirs.do(what="puts", count=ROUNDS)
    for number in range(ROUNDS):
        begin_s = time.perf_counter()
        ours.get(f"t{number}", source="0", timeout=PATIENCE_S).close()
        mine.append(time.perf_counter() - begin_s)
    value = torch.zeros(4096, dtype=torch.uint8)
    for number in range(ROUNDS):
        ours.put(f"t{number}", value, to="2")
    back = theirs.do(what="gets", count=ROUNDS)
    theirs_own = theirs.do(what="alone", count=ROUNDS)
    return {
        "ours of theirs": median(mine) * 1e6,
        "theirs of ours": back,
        "theirs alone": theirs_own,
    }


# --- payloads ----------------------------------------------------------------------------------


def made(kind: str, size: int, device: str = "cpu") -> Any:  # noqa: ANN401 - a value
    """A value of about *size* bytes."""
    import torch  # noqa: PLC0415

    ramp = (torch.arange(size, dtype=torch.int64) * 31 % 251).to(torch.uint8).to(device)
    if kind == "plain":
        return ramp
    return {"hidden": ramp, "meta": {"finished": True}, "ids": [1, 2, None], "scale": 0.5}


def check(found: Any, kind: str, size: int) -> None:  # noqa: ANN401 - a value
    """Raise unless *found* is what was put."""
    import torch  # noqa: PLC0415

    wanted = made(kind, size)
    if kind == "plain":
        flat = (
            found
            if isinstance(found, torch.Tensor)
            else torch.frombuffer(found, dtype=torch.uint8)
        )
        same = torch.equal(flat.cpu(), wanted)
    else:
        same = torch.equal(found.pop("hidden").cpu(), wanted.pop("hidden")) and found == wanted
    if not same:
        msg = f"a payload {kind!r} of {size} bytes arrived as another one"
        raise AssertionError(msg)


# --- their process -----------------------------------------------------------------------------


class Theirs:
    """Their process, as ours sees it: orders by lines of JSON."""

    def __init__(self, place: str) -> None:
        command = [sys.executable, __file__, *sys.argv[1:], "--theirs", place]
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        told = self._heard()
        self.port, self.on_gpu = int(told["port"]), bool(told["on_gpu"])

    def do(self, **order: Any) -> Any:  # noqa: ANN401 - whatever it answers
        """Have something done there."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._heard()["done"]

    def _heard(self) -> Any:  # noqa: ANN401 - whatever it answers
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):  # the engine writes there too
                return json.loads(line[1:])
        msg = f"their process ended with {self._process.wait()}"
        raise RuntimeError(msg)

    def __enter__(self) -> Theirs:  # noqa: PYI034 - nobody makes a subclass
        """Use it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(PATIENCE_S)


def serve(asked: argparse.Namespace) -> None:
    """Their two connectors: stage 0 puts, stage 2 gets."""
    import torch  # noqa: PLC0415
    from benchmarks.h200_parts.contenders import free_port, load_omni  # noqa: PLC0415

    if not torch.cuda.is_available():  # they pin the pool whether or not there is a GPU
        torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[assignment, method-assign]
    last_gpu = min(1, torch.cuda.device_count() - 1)  # with one GPU both ends are on it
    device = f"cuda:{last_gpu}" if asked.fabric == "xgmi" else "cpu"
    make = load_omni(Path(asked.theirs))
    common = {
        "host": "127.0.0.1", "backend_type": asked.fabric, "memory_pool_size": POOL,
        "memory_pool_device": device,
    }  # fmt: skip
    port = free_port()
    sender = make({**common, "role": "sender", "zmq_port": port})
    ends: dict[str, Any] = {"put": sender, "device": device, "common": common, "make": make}
    print("@" + json.dumps({"port": port, "on_gpu": device != "cpu"}), flush=True)
    for line in sys.stdin:
        print("@" + json.dumps({"done": obey(json.loads(line), ends, port)}), flush=True)
    for name in ("get", "alone", "put"):
        if name in ends:
            ends[name].close()


def obey(order: dict[str, Any], ends: dict[str, Any], port: int) -> Any:  # noqa: ANN401
    """Do one thing, and say what came of it."""
    import torch  # noqa: PLC0415

    what = order["what"]
    if what == "dial":
        for name, at in (("get", order["port"]), ("alone", port)):
            to = {"role": "receiver", "sender_host": "127.0.0.1", "sender_zmq_port": at}
            ends[name] = ends["make"]({**ends["common"], **to})
    elif what == "put":
        value = made(order["kind"], order["size"], ends["device"])
        assert ends["put"].put("0", "1", order["key"], value)[0]
    elif what == "get":
        check_theirs(ends["get"].get("1", "2", order["key"]), order)
    elif what == "puts":
        value = torch.zeros(4096, dtype=torch.uint8, device=ends["device"])
        for number in range(order["count"]):
            assert ends["put"].put("0", "1", f"t{number}", value)[0]
    else:
        if what == "alone":
            obey({"what": "puts", "count": order["count"]}, ends, port)
        edge = ("0", "1") if what == "alone" else ("1", "2")
        return gets(ends["get" if what == "gets" else "alone"], edge, order["count"])
    return None


def gets(end: Any, edge: tuple[str, str], count: int) -> float:  # noqa: ANN401 - their connector
    """The median of their gets, in microseconds."""
    took = []
    for number in range(count):
        begin_s = time.perf_counter()
        found = end.get(*edge, f"t{number}")
        took.append(time.perf_counter() - begin_s)
        found[0].release()
    return median(took) * 1e6


def check_theirs(found: Any, order: dict[str, Any]) -> None:  # noqa: ANN401 - what they got
    """Raise unless they got what we put."""
    if found is None:
        msg = f"their connector got nothing for {order['key']!r}"
        raise AssertionError(msg)
    value, _ = found
    if order["kind"] == "plain":
        check(value.tensor, "plain", order["size"])
        value.release()
    else:
        check(value, "tree", order["size"])


if __name__ == "__main__":
    sys.exit(main())
