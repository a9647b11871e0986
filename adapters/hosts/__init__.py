"""Frameworks that use stagelink: each folder joins one to the public face, and nobody imports it.

``planning`` joins nothing: it reads what a framework is configured with, for the command line.
"""
