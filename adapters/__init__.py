"""How it is done: one folder a technology; adapters do not know one another."""
