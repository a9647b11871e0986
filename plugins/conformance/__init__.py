"""Contract suites: subclass one, give it a fixture, run pytest against your own backend."""
