"""vLLM-Omni's connector interface on stagelink: in a deploy YAML, ``name: StagelinkConnector``.

``plugin`` is the entry point that each process of the host calls; it registers the name and loads
nothing else. ``connector`` is what the host's factory then builds.
"""
