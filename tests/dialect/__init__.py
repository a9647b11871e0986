"""The dialect of vLLM-Omni's Mori connector, against doubles that speak its exact frames."""
