"""The whole hunt for counter-examples, in one command."""
