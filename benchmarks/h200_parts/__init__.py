"""The parts of ``benchmarks/h200.py``: two ends, contenders between them, and what is reported."""
