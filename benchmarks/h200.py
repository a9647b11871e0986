"""From GPU to GPU: raw copies, AMD's engine, vLLM-Omni's connector and ours, in one run.

Two processes a contender, one GPU each; all contenders stand at once and are measured in turns,
size by size. First every one moves a pattern that is compared bit for bit; one that fails is out.
Runs on two NVIDIA GPUs (AMD's engine then over the simulated HIP runtime of ``tests/sims``) and,
as it is, on AMD's with ROCm. What cannot run here is said, with the reason; the rest goes on.

Examples:
  python benchmarks/h200.py --wheels wheels/ --json h200.json --plot h200.svg
  python benchmarks/h200.py --wheels wheels/ --quick
  python benchmarks/h200.py --only raw-torch,device_ipc --sizes 4K,256M
  python benchmarks/h200.py --dry-run                      # no GPU: proves the script itself

Wheels that a machine without a registry needs, for its Python: msgspec, pyzmq, pluggy, structlog,
amd-mori, vllm-omni (this one is only unpacked: its own connector is loaded from it, unmodified).
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
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # started by its path, it finds its parts

from benchmarks.h200_parts.pairs import CannotError, Pair  # noqa: E402
from benchmarks.h200_parts.report import draw, size_name, summary, table  # noqa: E402

CONTENDERS = (
    "raw-torch", "raw-mori", "vllm-omni", "mori-xgmi", "mori-xgmi+poll", "mori-xgmi+copy",
    "device_ipc", "device_ipc+poll", "device_ipc+copy",
)  # fmt: skip
DRY = ("raw-torch", "shm")
BLOCKS = 3
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
FULL = "4K,64K,1M,16M,64M,256M,1G"
QUICK = "4K,1M,256M"

_PROBE = """
import json, torch
from importlib.metadata import version, PackageNotFoundError
def known(name):
    try: return version(name)
    except PackageNotFoundError: return ""
count = torch.cuda.device_count()
names = [torch.cuda.get_device_name(n) for n in range(count)]
reach = count > 1 and torch.cuda.can_device_access_peer(0, 1)
told = {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
told |= {name: known(name) for name in ("amd-mori", "pyzmq", "msgspec")}
print(json.dumps({"gpus": names, "reach": reach, "versions": told}))
"""


def main() -> int:
    """Check, measure, report."""
    asked = options()
    with ExitStack() as last:
        env, omni = environment(asked.wheels, last)
        found = begin(asked, env)
        sizes = found["sizes"]
        pairs: dict[str, Pair] = {}
        last.callback(lambda: [pair.close() for pair in pairs.values()])
        terms = [terms_of(asked, index, max(sizes), omni) for index in (0, 1)]
        for name in chosen(asked):
            reason = why_not(name, found, asked, omni)
            found["contenders"][name] = {"could_not": reason} if reason else {}
            if not reason:
                pairs[name] = Pair(name, terms[:1] if name == "raw-torch" else terms, env)
        for name in list(pairs):
            attempt(name, pairs, found, Pair.ready)
        check(pairs, found)
        for kind in ("handoff", "alloc"):
            measure(kind, pairs, found, asked)
        for name in list(pairs):
            attempt(name, pairs, found, lambda pair: details(pair, found, asked))
    report(found, asked)
    return 0 if any("handoff" in row for row in found["contenders"].values()) else 1


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", help=f"comma separated; {FULL}, quick {QUICK}")
    parser.add_argument("--only", help=f"contenders of {', '.join(CONTENDERS)}")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to take packages from")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything, for programs")
    parser.add_argument("--table", type=Path, metavar="FILE", help="the table, in Markdown")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture; needs matplotlib")
    parser.add_argument("--one-gpu", action="store_true", help="both ends on one: to try it out")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, over shared memory")
    return parser.parse_args()


def chosen(asked: argparse.Namespace) -> list[str]:
    """The contenders, in the order of the table."""
    names = (*DRY, *CONTENDERS[1:]) if asked.dry_run else CONTENDERS
    if not asked.only:
        return list(names)
    only = asked.only.split(",")
    unknown = set(only) - {*names, *DRY}
    if unknown:
        sys.exit(f"unknown contenders {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    return [name for name in (*names, "shm") if name in only]


def sizes_of(asked: argparse.Namespace) -> list[int]:
    """Bytes of each payload."""
    text = asked.sizes or ("4K,1M" if asked.dry_run else QUICK if asked.quick else FULL)
    return [int(part[:-1]) * UNITS[part[-1].upper()] for part in text.split(",")]


def environment(wheels: Path | None, last: ExitStack) -> tuple[dict[str, str], str]:
    """What the ends are started with, and where vLLM-Omni lies; empty if it was not carried."""
    folders = [str(ROOT / "src"), str(ROOT)]
    omni = ""
    if wheels is not None:
        place = last.enter_context(tempfile.TemporaryDirectory(prefix="h200-"))
        for wheel in sorted(wheels.glob("*.whl")):
            apart = wheel.name.startswith("vllm_omni-")
            target = f"{place}/omni" if apart else f"{place}/site"
            omni = target if apart else omni
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target)
        folders.append(f"{place}/site")
    path = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    env.setdefault("MORI_IO_LOG_LEVEL", "error")
    return env, omni


def begin(asked: argparse.Namespace, env: dict[str, str]) -> dict[str, Any]:
    """The report's frame: when, where, with what."""
    host: dict[str, Any] = {"gpus": [], "reach": False, "versions": {}}
    if not asked.dry_run:
        done = subprocess.run(  # noqa: S603 - our own code
            [sys.executable, "-c", _PROBE], env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"torch cannot be asked for its GPUs: {done.stderr.strip()[-600:]}")
        host = json.loads(done.stdout.splitlines()[-1])
    host["python"] = sys.version.split()[0]
    host["cpus"] = os.cpu_count()
    date = time.strftime("%Y-%m-%d")
    return {
        "date": date, "host": host, "sizes": sizes_of(asked), "contenders": {}, "not_run": [],
    }  # fmt: skip


def why_not(name: str, found: dict[str, Any], asked: argparse.Namespace, omni: str) -> str:
    """What *name* lacks here; empty: it may be tried."""
    host = found["host"]
    if asked.dry_run:
        return "" if name in DRY else "a dry run has no GPU"
    wanted = 1 if asked.one_gpu else 2
    if len(host["gpus"]) < wanted:
        return f"torch sees {len(host['gpus'])} GPUs; {wanted} are needed"
    if not (host["reach"] or asked.one_gpu):
        return "the two GPUs do not reach each other's memory"
    needs_mori = name in {"raw-mori", "vllm-omni"} or name.startswith("mori")
    if needs_mori and not host["versions"].get("amd-mori"):
        return "amd-mori is not installed, nor among --wheels"
    if name == "vllm-omni" and not omni:
        return "the wheel of vllm-omni is not among --wheels"
    return ""


def terms_of(asked: argparse.Namespace, index: int, most: int, omni: str) -> dict[str, Any]:
    """What one end is told."""
    mine, its = (0, 0) if asked.one_gpu else (index, 1 - index)
    device, other = ("cpu", "cpu") if asked.dry_run else (f"cuda:{mine}", f"cuda:{its}")
    return {
        "device": device, "other": other, "index": index, "most": most, "dry": asked.dry_run,
        "omni": omni,
    }  # fmt: skip


def attempt(name: str, pairs: dict[str, Pair], found: dict[str, Any], call: Any) -> Any:  # noqa: ANN401
    """*call* with the pair; one that fails is out, with its reason."""
    pair = pairs.get(name)
    if pair is None:
        return None
    try:
        return call(pair)
    except CannotError as error:
        del pairs[name]
        found["contenders"][name]["could_not"] = str(error)
        say(f"{name} is out: {error}")
        return None


def check(pairs: dict[str, Pair], found: dict[str, Any]) -> None:
    """Every size once, compared bit for bit; who is wrong is out."""
    for name in list(pairs):
        for size in found["sizes"]:
            answers = attempt(name, pairs, found, lambda pair, n=size: pair.ask("check", size=n))
            wrong = answers and answers[-1].get("wrong")
            if wrong:
                pairs.pop(name).close()
                found["contenders"][name]["could_not"] = f"WRONG BYTES at {size}: {wrong}"
            if answers is None or wrong:
                break
        else:
            found["contenders"][name]["checked"] = found["sizes"]
            say(f"{name}: {len(found['sizes'])} sizes compared, every byte right")


def rounds_of(size: int, *, quick: bool) -> int:
    """Hand-offs of one block: a second or two of them."""
    many = 100 if size <= 64 << 10 else 40 if size <= 16 << 20 else 12 if size <= 256 << 20 else 4
    return max(2, many // 4) if quick else many


def measure(
    kind: str, pairs: dict[str, Pair], found: dict[str, Any], asked: argparse.Namespace
) -> None:
    """Blocks of hand-offs, the contenders in turns; *kind* is ``handoff`` or ``alloc``."""
    quick = asked.quick or asked.dry_run
    alloc = kind == "alloc"
    for size in found["sizes"]:
        fields = {"size": size, "rounds": rounds_of(size, quick=quick), "alloc": alloc}
        times: dict[str, list[dict[str, Any]]] = {}
        for block in range(BLOCKS + 1):  # the first one warms up
            for name in [n for n in pairs if not (alloc and n.startswith("raw"))]:
                answers = attempt(name, pairs, found, lambda p, f=fields: p.ask("handoff", **f))
                if answers and block and "could_not" not in answers[0]:
                    times.setdefault(name, []).append(merged(name, answers))
        for name, blocks in times.items():
            row = summary([time for block in blocks for time in block["us"]])
            row["cpu_us"] = round(min(block["cpu_us"] for block in blocks), 1)
            found["contenders"][name].setdefault(kind, {})[str(size)] = row
            say(f"{kind} {size_name(size)} {name}: {row['p50_us']} us")


def merged(name: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    """One block: by whole hand-offs; theirs as the sum of put and get, without the way between."""
    producer, consumer = answers[0], answers[-1]
    if name == "vllm-omni":
        us = [a + b for a, b in zip(producer["put_us"], consumer["get_us"], strict=True)]
    else:
        us = producer.get("total_us") or producer["put_us"]
    cpu = producer.get("cpu_us", 0.0) + (consumer.get("cpu_us", 0.0) if len(answers) > 1 else 0.0)
    return {"us": us, "cpu_us": cpu}


def details(pair: Pair, found: dict[str, Any], asked: argparse.Namespace) -> None:
    """Poll miss, concurrent streams, and what it costs to do nothing."""
    row = found["contenders"][pair.name]
    quick = asked.quick or asked.dry_run
    small = row.get("handoff", {}).get(str(found["sizes"][0]), {})
    row["cpu_us"] = small.get("cpu_us", "-")
    if pair.name.startswith("raw"):
        return
    row["miss"] = summary(pair.ask("miss", rounds=200 if quick else 2000)[1]["miss_us"])
    chunks = 20 if quick else 200
    sent, got = pair.ask("streams", streams=16, chunks=chunks, interval_s=0.02)
    late = [(b - a) / 1e3 for a, b in zip(sent["put_ns"], got["held_ns"], strict=True)]
    row["streams"] = summary(late) | {"cpu_s": round(sent["cpu_s"] + got["cpu_s"], 3)}
    idle = pair.ask("idle", seconds=0.5 if quick else 2.0)
    row["idle_cores"] = round(sum(answer["idle_cores"] for answer in idle), 3)
    say(f"{pair.name}: poll miss {row['miss']['p50_us']} us, chunk {row['streams']['p50_us']} us")


def report(found: dict[str, Any], asked: argparse.Namespace) -> None:
    """On the screen, and where else it was asked for."""
    if asked.plot:
        try:
            draw(found, asked.plot)
        except ImportError as error:
            found["not_run"].append(f"the plot: {error}")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = table(found)
    if asked.table:
        asked.table.write_text(text, encoding="utf-8")
    print(text)


def say(line: str) -> None:
    """Show how far it is; the table alone goes to standard output."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
