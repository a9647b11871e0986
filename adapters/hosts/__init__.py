"""Hosts that stagelink is composed into; a folder for each, and what plans for them."""
