"""From a plan to what each role is told to do, and what may come of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.chaos.plan import IDENTITIES, MORTALS, STAGES, SURVIVORS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.chaos.plan import HandOff, Plan

SLACK_S = 0.75
"""What may come on top of a wait, besides the time in which its thread was not let run."""

EARLY_S = 0.05
PUT_S = 5.0
VIGIL_S = 25.0

OF_A_WAIT = frozenset({"PeerError", "GoneError", "TransportError", "DeadlineError"})
MAY_COME: dict[str, frozenset[str]] = {
    "put": frozenset({"put", "CapacityError"}),
    "get": OF_A_WAIT | {"right", "CapacityError"},
    "meet": frozenset({"right"}),
    "read": OF_A_WAIT | {"right", "CapacityError", "IncompleteStreamError"},
    "write": frozenset({"written", "aborted", "CapacityError"}),
}
"""By kind of task, what a role that is not closed itself may see; all else is a failure."""

SURE = frozenset({"put", "right", "written"})

Task = dict[str, Any]


class Part(NamedTuple):
    """One task of one role, with a word on what must come of it."""

    role: str
    task: Task
    sure: bool = False

    @property
    def name(self) -> str:
        """Unique in a round."""
        return str(self.task["id"])

    def fault(self, said: dict[str, Any] | None, stopped_s: float, *, closed: bool) -> str:
        """What is wrong with its end; empty if nothing is.

        *stopped_s* is for how long the role was stopped; a *closed* one may say so.
        """
        where = f"{self.role}: {self.task['kind']} {self.name}"
        if said is None:
            return f"{where} never ended"
        came, took_s = said["came"], said["ended_s"] - said["begun_s"]
        allowed = MAY_COME.get(self.task["kind"])
        story = f"{where}: {came} after {took_s:.3f} s. {said['detail']}"
        if came == "crash" or came.startswith("wrong"):
            return story
        if closed:
            return ""
        if allowed is not None and came not in allowed:
            return f"not allowed: {story}"
        if self.sure and came not in SURE:
            return f"had to come: {story}"
        limit_s = self.limit_s()
        if took_s > limit_s + SLACK_S + stopped_s + said["starved_s"]:
            return f"late, {limit_s} s were allowed: {story}"
        if came == "DeadlineError" and took_s < self.task.get("timeout_s", 0.0) - EARLY_S:
            return f"early: {story}"
        return ""

    def limit_s(self) -> float:
        """How long it may take."""
        waits: float = self.task.get("timeout_s", PUT_S)
        each: int = 1 + self.task.get("chunks", 0)
        looks_ms: float = self.task.get("hold_ms", 0.0) + self.task.get("pause_ms", 0.0)
        return each * (waits + looks_ms / 1e3)


def traffic(plan: Plan) -> list[Part]:
    """What every role does in the main part of a round."""
    vigils = [vigil(role, plan.number, "first") for role in SURVIVORS]
    return [part for one in plan.hand_offs for part in _hand_off(one)] + vigils


def vigil(role: str, number: int, which: str) -> Part:
    """A get of what is never put: it hears of the sender's death."""
    task = {
        "kind": "get", "id": f"vigil {which} {role}", "key": f"{number}.{which} never",
        "source": "mortal", "at_ms": 0.0, "timeout_s": VIGIL_S, "sizes": [], "hold_ms": 0.0,
    }  # fmt: skip
    return Part(role, task)


def meeting(number: int, tag: str, present: Iterable[str], size: int = 2000) -> list[Part]:
    """Everybody who is *present* gets *size* bytes from who sends on the other side."""
    parts = []
    roles = set(present)
    for sender, getters in (("mortal", SURVIVORS), ("hub", MORTALS)):
        there = [role for role in getters if role in roles]
        if sender not in roles or not there:
            continue
        key = f"{number}.{tag} from {sender}"
        readers = [IDENTITIES[role] for role in there]
        to = STAGES[getters[0]]
        put = {"kind": "put", "id": key, "key": key, "size": size, "to": to, "readers": readers}
        parts.append(Part(sender, {**put, "at_ms": 0.0}, sure=True))
        parts += [
            Part(role, {
                "kind": "meet", "id": f"{key} to {role}", "key": key, "source": STAGES[sender],
                "timeout_s": 8.0, "at_ms": 0.0, "sizes": [size], "hold_ms": 0.0,
            }, sure=True)
            for role in there
        ]  # fmt: skip
    return parts


def _hand_off(one: HandOff) -> list[Part]:
    stream = one.chunks > 0
    sizes = [one.size, one.size // 2 + 1]
    sender = {
        "kind": "write" if stream else "put", "id": f"{one.key} from {one.sender}", "key": one.key,
        "size": one.size, "to": STAGES[one.getters[0]], "at_ms": one.at_ms[0],
        "readers": one.readers if isinstance(one.readers, int) else list(one.readers),
        "pause_ms": one.pause_ms, "chunks": one.chunks, "abort": one.abort == "abort",
        "replace": True if one.abort == "replace" else None,
    }  # fmt: skip
    parts = [Part(one.sender, sender, one.sure)]
    for role, at_ms in zip(one.getters, one.at_ms[1:], strict=True):
        task = {
            "kind": "read" if stream else "get", "id": f"{one.key} to {role}", "key": one.key,
            "source": STAGES[one.sender], "timeout_s": one.timeout_s, "at_ms": at_ms,
            "hold_ms": one.hold_ms, "pause_ms": one.pause_ms, "sizes": sizes, "chunks": one.chunks,
            "leave": one.abort == "leave" and one.by == role,
        }  # fmt: skip
        parts.append(Part(role, task, one.sure))
    return parts + _abort(one, sender)


def _abort(one: HandOff, sender: Task) -> list[Part]:
    name = f"{one.key} {one.abort} by {one.by}"
    if one.abort == "replace":
        again = {**sender, "id": name, "size": one.size // 2 + 1, "at_ms": one.abort_ms}
        return [Part(one.sender, again)]
    if one.abort in {"withdraw", "cancel", "reject"}:
        where = {"to": STAGES[one.getters[0]], "source": STAGES[one.sender]}
        task = {"kind": one.abort, "id": name, "key": one.key, "at_ms": one.abort_ms, **where}
        return [Part(one.by, task)]
    return []
