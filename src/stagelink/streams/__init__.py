"""Streams: chunks in order, and an end that says whether they were all."""
