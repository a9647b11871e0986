"""Events as structlog makes them, through the standard library's logger ``stagelink``."""

from stagelink.adapters.structlog.log import LOGGER, Log

__all__ = ["LOGGER", "Log"]
