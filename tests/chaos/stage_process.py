"""One connector in a process of its own, told what to do line by line; run as a script.

The first argument is the connector's settings as JSON. Each line of standard input is a command,
``{"do": "put", "key": …, "size": …, "to": …, "readers": …}`` or ``{"do": "get", "key": …,
"timeout": …}`` or ``{"do": "check"}``, ``{"do": "drop"}`` or ``{"do": "health"}``; each is answered by one line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import stagelink


def content(key: str, size: int) -> bytes:
    """The bytes put under *key*: told apart from those of any other key."""
    word = f"{key}:{size};".encode()
    return (word * (size // len(word) + 1))[:size]


def main() -> None:
    """Serve commands until standard input ends."""
    connector = stagelink.open(**json.loads(sys.argv[1]))
    held: list[tuple[str, Any]] = []
    answer({"endpoint": connector.endpoint})
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(perform(connector, held, command))
        except stagelink.StagelinkError as error:
            answer({"error": type(error).__name__, "reason": str(error.reason)})
    held.clear()
    connector.close()


def perform(
    connector: Any, held: list[tuple[str, Any]], command: dict[str, Any]
) -> dict[str, Any]:
    """Do one thing; what came of it."""
    if command["do"] == "put":
        value = memoryview(content(command["key"], command["size"]))
        connector.put(command["key"], value, to=command["to"], readers=command["readers"])
        return {"put": command["key"]}
    if command["do"] == "get":
        payload = connector.get(command["key"], source="thinker", timeout=command["timeout"])
        held.append((command["key"], payload.value))
        return {"got": command["key"], "right": are_right(held[-1:])}
    if command["do"] == "check":
        return {"right": are_right(held)}
    if command["do"] == "drop":
        held.clear()
        return {}
    health: dict[str, Any] = connector.health()
    return health


def are_right(held: list[tuple[str, Any]]) -> bool:
    """Whether everything we view is what was put."""
    return all(bytes(value) == content(key, len(value)) for key, value in held)


def answer(reply: dict[str, Any]) -> None:
    """One line to whoever started us."""
    print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
