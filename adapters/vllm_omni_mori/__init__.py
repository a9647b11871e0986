"""The protocol of vLLM-Omni's MoriTransferEngineConnector, translated in both directions.

So the stages of a deployment can be moved to stagelink one by one: what we have put is served to
receivers of theirs, and what they have put can be got. How, and what it cannot promise, says
``docs/how-to/migrate-from-vllm-omni-connectors.md``.
"""
