"""The entry point of group ``vllm.general_plugins``: each process of the host calls it once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagelink.adapters.hosts.vllm_omni.connector import StagelinkConnector

NAME = "StagelinkConnector"
"""What a deploy YAML writes behind ``name:``."""


def register() -> None:
    """Make the connector's name known to vLLM-Omni's factory. Twice is fine; so is without it."""
    try:
        from vllm_omni.distributed.omni_connectors.factory import (  # noqa: PLC0415 - not ours
            OmniConnectorFactory,
        )
    except ModuleNotFoundError as error:
        if error.name != "vllm_omni":  # it is here, and another one than we know
            logging.getLogger("vllm.stagelink").warning(
                "%s is not registered: this vLLM-Omni has no connectors like 0.30's (%s)",
                NAME, error,
            )  # fmt: skip
        return
    if NAME not in OmniConnectorFactory.list_registered_connectors():
        OmniConnectorFactory.register_connector(NAME, create)


def create(config: dict[str, Any]) -> StagelinkConnector:
    """Build a connector; until its first put or get it binds nothing and has no memory.

    Raises:
        ConfigError: a key of *config* is wrong; names it, its value and the remedy.
    """
    from stagelink.adapters.hosts.vllm_omni.connector import (  # noqa: PLC0415 - heavy
        StagelinkConnector,
    )

    return StagelinkConnector(config)
