"""Whole connectors in one deterministic world: real driver, real threads, one clock, one baton."""
