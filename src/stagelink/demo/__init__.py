"""The demonstration: Thinker, Talker and Code2Wav stream a recording to one another.

``wav`` reads the recording, ``pipeline`` is what the stages compute, ``stages`` their loops over a
connector, ``worker`` and ``processes`` the operating-system side, ``report`` the result.
"""
