"""Uninvited guests: whatever a stranger may send, thrown at whatever reads it.

``python -m tests.fuzz --frames 1000000 --json`` is the hunt; ``test_decoders.py`` its beginning,
``test_strangers.py`` the same on sockets of a connector at work, and ``test_forgeries.py`` what a
peer may lie about that speaks the protocol.
"""
