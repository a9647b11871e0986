"""The pictures of these pages: ``python docs/pictures/draw.py`` writes them beside itself.

Plain SVG, so that they are read without a network and differ line by line. Sizes are pixels.
"""

from __future__ import annotations

from html import escape
from math import hypot
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
INK, SOFT, PAPER, LINE = "#1f2430", "#5b6472", "#ffffff", "#8a93a3"
FILLS = {"face": "#e3ecfb", "core": "#e2f2e6", "plain": "#f3f4f7", "warm": "#fdf0dc", "": PAPER}
BOX_W, BOX_H = 124, 34


class Point(NamedTuple):
    """Where something is."""

    x: float
    y: float


class Picture:
    """Lines of one drawing, on paper of its own so that it is read on a dark page too."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="sans-serif" font-size="13" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
        ]

    def box(self, x: float, y: float, w: float, h: float, text: str, fill: str = "plain") -> None:
        """A box with a word in its middle."""
        self._lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="6" '
            f'fill="{FILLS[fill]}" stroke="{LINE}"/>'
        )
        self.text(x + w / 2, y + h / 2 + 4.5, text)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        anchor: str = "middle",
        colour: str = INK,
        size: int = 13,
    ) -> None:
        """Words."""
        self._lines.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">'
            f"{escape(text)}</text>"
        )

    def label(self, x: float, y: float, text: str) -> None:
        """Words on a ground of paper, so that the line behind them does not disturb."""
        wide = 6.1 * len(text) + 4
        self._lines.append(
            f'<rect x="{x - wide / 2:.1f}" y="{y - 11:.1f}" width="{wide:.1f}" height="14" '
            f'fill="{PAPER}" fill-opacity="0.85"/>'
        )
        self.text(x, y, text, colour=SOFT, size=11)

    def arrow(
        self, start: Point, end: Point, label: str = "", bend: float = 0.0, lift: float = 4.0
    ) -> None:
        """From *start* to *end*, *bend* pixels to the left of the straight way."""
        way = hypot(end.x - start.x, end.y - start.y) or 1.0
        aside = Point((end.y - start.y) / way * bend, -(end.x - start.x) / way * bend)
        middle = Point((start.x + end.x) / 2 + aside.x, (start.y + end.y) / 2 + aside.y)
        control = Point(middle.x + aside.x, middle.y + aside.y)
        self._lines.append(
            f'<path d="M{start.x:.1f} {start.y:.1f} Q{control.x:.1f} {control.y:.1f} '
            f'{end.x:.1f} {end.y:.1f}" fill="none" stroke="{LINE}" stroke-width="1.4"/>'
        )
        self._tip(control, end)
        for number, line in enumerate(label.split("\n") if label else []):
            self.label(middle.x, middle.y + lift + 14 * number, line)

    def _tip(self, origin: Point, end: Point) -> None:
        way = hypot(end.x - origin.x, end.y - origin.y) or 1.0
        dx, dy = (end.x - origin.x) / way * 9, (end.y - origin.y) / way * 9
        corners = [(0, 0), (-dx - dy * 0.4, -dy + dx * 0.4), (-dx + dy * 0.4, -dy - dx * 0.4)]
        points = " ".join(f"{end.x + x:.1f},{end.y + y:.1f}" for x, y in corners)
        self._lines.append(f'<polygon points="{points}" fill="{LINE}"/>')

    def line(self, start: Point, end: Point, dash: str = "") -> None:
        """A line without a tip."""
        self._lines.append(
            f'<line x1="{start.x:g}" y1="{start.y:g}" x2="{end.x:g}" y2="{end.y:g}" '
            f'stroke="{LINE}" stroke-dasharray="{dash or "none"}"/>'
        )

    @property
    def svg(self) -> str:
        """The whole file."""
        return "\n".join([*self._lines, "</svg>", ""])


class States:
    """A machine: named states at places of a grid, and what leads from one to another.

    A name that begins with ``*`` is a dot: where it begins or ends.
    """

    def __init__(self, picture: Picture, places: dict[str, tuple[float, float]]) -> None:
        self._picture = picture
        self._places = {name: Point(*at) for name, at in places.items()}
        self._boxes = [name for name in places if not name.startswith("*")]

    def way(self, start: str, end: str, label: str = "", bend: float = 0.0) -> None:
        """An arrow between the rims of two states."""
        a, b = self._places[start], self._places[end]
        self._picture.arrow(self._rim(start, a, b, bend), self._rim(end, b, a, -bend), label, bend)

    def done(self) -> None:
        """Draw the states over the arrows."""
        for name, at in self._places.items():
            if name.startswith("*"):
                self._picture.box(at.x - 5, at.y - 5, 10, 10, "", "face")
            else:
                self._picture.box(at.x - BOX_W / 2, at.y - BOX_H / 2, BOX_W, BOX_H, name, "core")

    def _rim(self, name: str, at: Point, towards: Point, bend: float) -> Point:
        way = hypot(towards.x - at.x, towards.y - at.y) or 1.0
        dx = (towards.x - at.x) / way + (towards.y - at.y) / way * bend / way * 2
        dy = (towards.y - at.y) / way - (towards.x - at.x) / way * bend / way * 2
        half_w, half_h = (7, 7) if name.startswith("*") else (BOX_W / 2 + 2, BOX_H / 2 + 2)
        scale = min(half_w / abs(dx) if dx else 1e9, half_h / abs(dy) if dy else 1e9)
        return Point(at.x + dx * scale, at.y + dy * scale)


def machine(
    title: str,
    size: tuple[int, int],
    places: dict[str, tuple[float, float]],
    ways: list[tuple[str, str, str, float]],
) -> str:
    """The drawing of one machine."""
    picture = Picture(*size, title)
    states = States(picture, places)
    for start, end, label, bend in ways:
        states.way(start, end, label, bend)
    states.done()
    return picture.svg


def layers() -> str:
    """Who may import whom."""
    picture = Picture(700, 318, "The four layers and the face")
    rows = [
        ("face", "face", "src/stagelink", "what applications call: open, put, get, stream"),
        ("plugins", "plain", "plugins/", "hooks, the manager, contracts for anybody's backend"),
        ("adapters", "warm", "adapters/", "sockets, shared memory, threads, serializing, logs"),
        ("ports", "plain", "ports/", "protocols: what the core needs, naming no technology"),
        ("core", "core", "core/", "every decision; no clock, thread, socket or chance"),
    ]
    for number, (name, fill, place, words) in enumerate(rows):
        y = 16 + number * 60
        picture.box(16, y, 130, 40, name, fill)
        picture.text(166, y + 18, place, "start")
        picture.text(166, y + 35, words, "start", SOFT, 12)
        if number:
            picture.arrow(Point(81, y - 20), Point(81, y - 2))
    picture.text(684, 30, "arrows: may import", "end", SOFT, 12)
    return picture.svg


def sequence(title: str, steps: list[tuple[str, str]], notes: str) -> str:
    """A transfer in time: ``>`` to the receiver, ``<`` to the sender, ``S`` and ``R`` at one."""
    left, right, top = 170, 530, 74
    picture = Picture(700, top + 34 * len(steps) + 40, title)
    picture.text(16, 24, title, "start")
    height = top + 34 * len(steps)
    for x, name in ((left, "sender"), (right, "receiver")):
        picture.line(Point(x, 68), Point(x, height), "4 4")
        picture.box(x - 50, 36, 100, 30, name, "face")
    for number, (kind, words) in enumerate(steps):
        y = top + 22 + number * 34
        if kind == ">":
            picture.arrow(Point(left, y), Point(right - 2, y), words, lift=-5)
        elif kind == "<":
            picture.arrow(Point(right, y), Point(left + 2, y), words, lift=-5)
        elif kind == "=":
            picture.line(Point(left, y - 3), Point(right, y - 3))
            picture.line(Point(left, y + 3), Point(right, y + 3))
            picture.text((left + right) / 2, y - 8, words, colour=INK, size=11)
        elif kind == "S":
            picture.text(left - 10, y + 4, words, "end", size=12)
        else:
            picture.text(right + 10, y + 4, words, "start", size=12)
    picture.text(16, height + 26, notes, "start", SOFT, 12)
    return picture.svg


TRANSFERS = {
    "transfer-eager": sequence(
        "eager: up to eager_limit",
        [("S", "put: copied"), (">", "Announce(bytes)"), ("R", "get returns"),
         ("<", "Ack(consumed), within ack_delay_s")],
        "get sends nothing and waits for nothing but the announcement",
    ),
    "transfer-offer": sequence(
        "offer: larger, the receiver maps",
        [("S", "put: copied"), (">", "Announce(place in our pool)"), ("R", "get: views"),
         ("R", "last view gone"), ("<", "Ack(consumed)"), ("S", "block free")],
        "the announcement is a lease given in advance, recalled by Gone and never by time",
    ),
    "transfer-pull": sequence(
        "pull: larger, the sender writes",
        [("S", "put: copied"), (">", "Announce"), ("R", "get: a block"), ("<", "Pull(block)"),
         ("=", "write"), (">", "Done, or Refused: no write follows"), ("R", "get returns"),
         ("<", "Ack(consumed)")],
        "if get gives up, its block waits in quarantine for Done, Refused or a fence",
    ),
    "transfer-credit": sequence(
        "credit: the sender writes before anybody asks",
        [("<", "Grants(blocks), off the path"), ("S", "put: copied"), ("=", "write"),
         (">", "Landed(block)"), ("R", "get returns"), ("<", "Ack(consumed)")],
        "get sends nothing: the bytes are in its own pool; no block, and the put is announced",
    ),
}  # fmt: skip

MACHINES = {
    "states-block": machine(
        "A block of the pool", (700, 220),
        {"FREE": (90, 110), "RESERVED": (330, 110), "HELD": (610, 44), "QUARANTINED": (610, 176)},
        [("FREE", "RESERVED", "reserve", 14), ("RESERVED", "FREE", "free", 14),
         ("RESERVED", "HELD", "hold", 0), ("RESERVED", "QUARANTINED", "quarantine(ids)", 0),
         ("HELD", "FREE", "free", -44),
         ("QUARANTINED", "FREE", "last id ended, or fenced", 44)],
    ),
    "states-get": machine(
        "A get", (760, 430),
        {"*in": (40, 60), "WAITING": (150, 60), "QUEUED": (150, 220), "PULLING": (400, 220),
         "HELD": (640, 60), "LANDED": (640, 220), "DRAINING": (400, 390), "*out": (640, 390)},
        [("*in", "WAITING", "", 0), ("WAITING", "HELD", "offer known", 0),
         ("WAITING", "QUEUED", "pull known", 40), ("QUEUED", "WAITING", "replaced", 40),
         ("QUEUED", "PULLING", "space", 0), ("WAITING", "PULLING", "claim known", 14),
         ("PULLING", "WAITING", "Refused(replaced)", 14),
         ("PULLING", "HELD", "Done, Offer", 0),
         ("PULLING", "LANDED", "Done,\nnobody waits", 0), ("LANDED", "HELD", "asked for", 0),
         ("PULLING", "DRAINING", "deadline, cancel,\nunreachable", 0),
         ("PULLING", "*out", "Refused, fenced", 0),
         ("DRAINING", "*out", "Done, Refused, fenced", 0)],
    ),
    "states-grant": machine(
        "A lent block, at the receiver", (860, 330),
        {"*in": (40, 60), "GRANTED": (160, 60), "PULLING": (450, 60), "LANDED": (700, 60),
         "HELD": (700, 180), "DRAINING": (160, 290), "*out": (700, 290)},
        [("*in", "GRANTED", "", 0), ("GRANTED", "PULLING", "Landed, not there yet", 0),
         ("GRANTED", "LANDED", "Landed", -62), ("PULLING", "LANDED", "Done", 0),
         ("LANDED", "HELD", "asked for", 0), ("HELD", "*out", "last view gone", 0),
         ("LANDED", "*out", "payload gone,\nroom wanted", 60),
         ("GRANTED", "DRAINING", "idle, cut,\nroom wanted", 0),
         ("PULLING", "DRAINING", "payload gone", 0),
         ("DRAINING", "*out", "Landed, Done, Refused, fenced", 0)],
    ),
    "states-entry": machine(
        "An entry of the log", (700, 96),
        {"*in": (40, 48), "LIVE": (200, 48), "LEAVING": (480, 48), "*out": (660, 48)},
        [("*in", "LIVE", "publish", 0),
         ("LIVE", "LEAVING", "taken, expired,\nwithdrawn, replaced", 0),
         ("LEAVING", "*out", "no lease left", 0)],
    ),
    "states-lease": machine(
        "A lease", (760, 310),
        {"*in": (40, 60), "OFFERED": (300, 60), "*gone": (700, 60), "QUEUED": (120, 210),
         "WRITING": (330, 210), "DRAINING": (540, 210), "*out": (720, 210)},
        [("*in", "OFFERED", "announced to the one\nreader meant, or claimed", 0),
         ("OFFERED", "*gone", "consumed; Gone known and not held; fenced", 0),
         ("*in", "QUEUED", "Pull", 0), ("QUEUED", "WRITING", "room", 0),
         ("WRITING", "DRAINING", "Cancel", 0), ("DRAINING", "*out", "", 0),
         ("WRITING", "*out", "write ended", 60),
         ("QUEUED", "*out", "Cancel, budget over, id closed", -75)],
    ),
    "states-session": machine(
        "A receiver's conversation", (760, 210),
        {"*in": (34, 60), "DIALING": (140, 60), "GREETING": (370, 60), "ATTACHING": (640, 60),
         "OPEN": (370, 170)},
        [("*in", "DIALING", "", 0), ("DIALING", "GREETING", "connected", 0),
         ("GREETING", "ATTACHING", "Welcome, map", 0), ("ATTACHING", "OPEN", "attached", 0),
         ("GREETING", "OPEN", "Welcome,\nwrite", 26), ("OPEN", "GREETING", "gap,\nLost", 26),
         ("OPEN", "DIALING", "disconnected", 0)],
    ),
    "states-peer": machine(
        "A peer", (760, 236),
        {"*in": (34, 60), "UP": (140, 60), "SUSPECT": (400, 60), "DEAD": (660, 60),
         "FENCING": (400, 190), "GONE": (140, 190)},
        [("*in", "UP", "", 0), ("UP", "SUSPECT", "cut", 14),
         ("SUSPECT", "UP", "Hello, Welcome", 14),
         ("SUSPECT", "DEAD", "the kernel says so", 0), ("DEAD", "FENCING", "settled", 22),
         ("SUSPECT", "FENCING", "long away,\nplane can fence", -52),
         ("FENCING", "SUSPECT", "cannot tell", -52),
         ("FENCING", "GONE", "fenced", 0)],
    ),
    "states-stream": machine(
        "A stream: the writer above, the reader below", (760, 300),
        {"*in": (40, 60), "open": (180, 60), "ended": (480, 30), "aborted": (480, 96),
         "*from": (40, 220), "reading": (180, 220), "complete": (560, 180),
         "broken off": (560, 220), "closed": (560, 262)},
        [("*in", "open", "", 0), ("open", "ended", "end(), with", 0),
         ("open", "aborted", "abort, error, close", 0), ("*from", "reading", "", 0),
         ("reading", "complete", "the end, counts agree", 0),
         ("reading", "broken off", "abort, gap, death, expiry", 0),
         ("reading", "closed", "close(): the rest is rejected", 0)],
    ),
}  # fmt: skip

PICTURES = {"layers": layers(), **TRANSFERS, **MACHINES}


def main() -> None:
    """Write every picture."""
    for name, svg in PICTURES.items():
        (HERE / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
