"""Pools against the devices of the stages that have them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stagelink.adapters.hosts.planning.choice import backend_type, on_gpu
from stagelink.adapters.hosts.planning.values import MOONCAKE, MORI, OURS, YUANRONG, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.adapters.hosts.planning.machines import Machine
    from stagelink.adapters.hosts.planning.values import Deployment, Spec, Stage

POOLED = frozenset((OURS, MORI, MOONCAKE, YUANRONG))
"""Connectors with a pool of their own."""
_XGMI = frozenset(("xgmi", "mori-xgmi"))
_DEVICE = re.compile(r"(cpu|(?:cuda|hip|npu|musa|xpu)(?::(\d+))?)\Z")


def check_devices(deployment: Deployment, machine: Machine) -> list[Finding]:
    """Pools that lie where the stage cannot reach, or where the backend cannot."""
    found: dict[tuple[str, str], Finding] = {}
    for stage in deployment.stages:
        carried = deployment.carried(stage.number)
        if carried is None or carried.spec.name not in POOLED:
            continue
        for finding in _pool(carried.spec, stage, machine):
            found.setdefault((finding.code, finding.where), finding)
    found |= {(f.code, f.where): f for f in _counts(deployment)}
    found |= {(f.code, f.where): f for f in _hidden(deployment)}
    return list(found.values())


def _pool(spec: Spec, stage: Stage, machine: Machine) -> Iterator[Finding]:
    where = spec.at("memory_pool_device")
    device = str(spec.extra.get("memory_pool_device") or "cpu").lower()
    match = _DEVICE.match(device)
    if match is None:
        what = f"memory_pool_device is {device!r}"
        yield Finding("pool-device", "error", where, what, "use cpu, cuda, or for example cuda:0")
        return
    if spec.name in {OURS, MORI} and backend_type(spec) in _XGMI:
        yield from _xgmi(spec, device)
    if not on_gpu(spec):
        return
    if spec.name != OURS and not machine.has_gpus:
        what = f"the pool is on {device!r}, and there is no GPU ({machine.name})"
        yield Finding("pool-device", "error", where, what, "use memory_pool_device: cpu")
    if match[2] is not None and stage.seen and int(match[2]) >= stage.seen:
        what = (
            f"the pool is on {device!r}, and a process of stage {stage.number} sees {stage.seen} "
            f"device{'s' if stage.seen > 1 else ''}, counted from 0"
        )
        yield Finding("pool-device", "error", where, what, "write cuda: that is the process's own")
    elif match[2] is not None and stage.ranks > 1:
        what = f"all {stage.ranks} ranks of stage {stage.number} have their pool on {device!r}"
        yield Finding("pool-device", "warning", where, what, "write cuda: each rank's own")


def _xgmi(spec: Spec, device: str) -> Iterator[Finding]:
    if device == "cpu":
        what = "XGMI links GPUs, and the pool is on the cpu (memory_pool_device, cpu by default)"
        remedy = "set memory_pool_device: cuda"
        yield Finding("xgmi-cpu-pool", "error", spec.at("backend_type"), what, remedy)
    if spec.extra.get("device_name"):
        what = f"device_name {spec.extra['device_name']!r} names a NIC, and XGMI uses none"
        yield Finding("ignored-key", "warning", spec.at("device_name"), what, "leave it out")


def _counts(deployment: Deployment) -> Iterator[Finding]:
    """Stages whose list of devices vLLM-Omni refuses."""
    for stage in deployment.stages:
        fits = {stage.world, stage.world * stage.replicas}
        if stage.devices and stage.world and len(stage.devices) not in fits:
            what = (
                f"stage {stage.number} lists {len(stage.devices)} devices and has "
                f"{stage.replicas} replica(s) of {stage.world}: it does not start"
            )
            remedy = f"list {' or '.join(map(str, sorted(fits)))}"
            yield Finding("devices", "error", f"{stage.where}.devices", what, remedy)


def _hidden(deployment: Deployment) -> Iterator[Finding]:
    """Mori's XGMI between stages that vLLM-Omni starts with different visible devices."""
    for edge in deployment.edges:
        spec = edge.spec
        if spec.name not in {OURS, MORI} or backend_type(spec) not in _XGMI:
            continue
        source, target = deployment.stage(edge.source), deployment.stage(edge.target)
        if source and target and set(source.devices) != set(target.devices):
            what = (
                f"on {edge.name} each process sees only the GPUs of its own stage "
                f"({','.join(source.devices)} and {','.join(target.devices)}), and Mori's XGMI "
                "opens a peer's memory by the peer's GPU"
            )
            remedy = "use backend_type: auto: device_ipc needs to see only its own GPU"
            if spec.name == MORI:
                remedy = f"name: {OURS}, with backend_type: auto"
            yield Finding("xgmi-hidden", "warning", spec.at("backend_type"), what, remedy)
