"""What will happen to a deployment of vLLM-Omni: stages, edges and what is wrong with them.

Text goes in, findings come out. Nothing here imports vLLM or vLLM-Omni, or looks at the machine:
what a machine can do is an argument. Rules and names are those of vLLM-Omni 0.30.0.
"""

from stagelink.adapters.hosts.planning.machines import Machine, assumed
from stagelink.adapters.hosts.planning.plan import Plan, make_plan
from stagelink.adapters.hosts.planning.reading import UnreadableError, read_document
from stagelink.adapters.hosts.planning.values import Finding, Surroundings

__all__ = [
    "Finding",
    "Machine",
    "Plan",
    "Surroundings",
    "UnreadableError",
    "assumed",
    "make_plan",
    "read_document",
]
