"""The machines of the handshake, each for the lifetime of one thing.

Sender: :mod:`feed` (a reader's cursor into the log), :mod:`lease` (who may touch the bytes).
Receiver: :mod:`inbox` (what the log said), :mod:`fetch` (one get). Both: :mod:`session` (one
conversation and its numbering), :mod:`grants` (blocks lent in advance), :mod:`watch` (is the peer
reachable, gone, fenced).
"""
