"""What the commands find out about this machine and about running connectors: facts, no text."""
