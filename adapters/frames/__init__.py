"""Payloads over TCP, for peers that share neither memory nor a fabric."""

from stagelink.adapters.frames.places import Place
from stagelink.adapters.frames.plane import FramesPlane

__all__ = ["FramesPlane", "Place"]
