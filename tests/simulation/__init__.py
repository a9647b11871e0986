"""Seeded stories under a virtual clock: of endpoints alone, and of whole connectors."""
