"""Frameworks that use stagelink: each folder joins one to the public face; nobody imports it."""
