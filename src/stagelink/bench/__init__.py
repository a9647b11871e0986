"""``stagelink bench``: what a hand-off costs on this machine, beside what it cannot be below.

``options`` says what to run and whether it can, ``producer`` and ``consumer`` are the two ends,
``partner`` the way from one to the other that is not stagelink, ``floors`` what raw ZeroMQ and a
plain copy take, ``report`` the figures and ``show`` the words.
"""
