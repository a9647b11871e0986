"""The pure domain: values and state machines of the standard library's own types.

Nothing below reads a clock, sleeps, locks, sends or draws a random number: time and ids come in
as arguments, decisions go out as return values. The import contracts prove it.
"""
