"""Readers use the sender's pool on its GPU, by the handles of the CUDA or HIP runtime."""

from stagelink.adapters.device_ipc.plane import DeviceIpcPlane

__all__ = ["DeviceIpcPlane"]
