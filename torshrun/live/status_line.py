"""The status line: how the job stands, in the terminal's last line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torshrun.live.snapshot import Snapshot
from torshrun.text import printable

QUIET_SECONDS = 1.0
"""A job that is younger shows no status line; most that are short never do."""
CLOSE_SECONDS = 1.0
"""How long close() waits for the thread that loads rich."""
_GAP = 2
_FAILURE = 8
"""The weight of what failed, which may be cut short, but not to less than so many columns:"""
_SHORTEST_FAILURE = 16


class Part(NamedTuple):
    text: str
    style: str
    """In rich's words; "" is none."""
    weight: int
    """Parts of a higher weight are dropped first where space is scarce; 0 stays."""


class StatusLine:
    """Shows the job's state, once a second. Belongs to the loop's thread."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        width: Callable[[], int],
        show: Callable[[str], None],
        color: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`width` gives the terminal's columns. `show` takes a line without its end, and "" to
        remove it.
        """
        self._snapshot = snapshot
        self._width = width
        self._show = show
        self._color = color
        self._clock = clock
        self._shown = ""
        self._loader: threading.Thread | None = None

    def tick(self) -> None:
        """Bring the line up to date. Returns at once: rich, which is slow to load, is loaded in a
        thread, and until then nothing is shown.
        """
        snapshot, now = self._snapshot(), self._clock()
        if now - snapshot.started < QUIET_SECONDS:
            return
        if self._loader is None:
            self._loader = threading.Thread(target=_load_rich, name="torsh-status", daemon=True)
            self._loader.start()
        if not self._loader.is_alive():
            self._put(render(snapshot, now, self._width(), color=self._color))

    def close(self) -> None:
        self._put("")
        if self._loader is not None:
            self._loader.join(CLOSE_SECONDS)

    def _put(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self._show(text)


def render(snapshot: Snapshot, now: float, width: int, *, color: bool) -> str:
    """The line for a terminal with so many columns, with ANSI codes if it is to be coloured.

    `now` is in seconds of time.monotonic(). What there is no room for is left out, the least
    important first.
    """
    from rich.cells import cell_len, set_cell_size
    from rich.color import ColorSystem
    from rich.style import Style

    line, room = "", max(width, 1)
    for part in fit(parts(snapshot, now), room):
        gap, text = " " * _GAP if line else "", part.text
        room -= len(gap)
        if cell_len(text) > room:
            text = set_cell_size(text, room - 1) + "…"
        room -= cell_len(text)
        system = ColorSystem.STANDARD if color else None
        line += gap + Style.parse(part.style).render(text, color_system=system)
    return line


def parts(snapshot: Snapshot, now: float) -> list[Part]:
    """What there is to say, in the order in which it stands."""
    short, again = snapshot.alive < snapshot.workers, snapshot.restarts
    said = [
        Part("torshrun", "bold cyan", 5),
        Part("" if snapshot.state == "running" else snapshot.state, "yellow", 1),
        Part(f"{snapshot.alive}/{snapshot.workers} workers", "yellow" if short else "green", 0),
        Part("" if snapshot.step is None else f"step {snapshot.step:,}", "", 3),
        Part(f"round {snapshot.round}", "", 6),
        Part(f"{snapshot.num_nodes} nodes" if snapshot.num_nodes > 1 else "", "", 7),
        Part(f"{again} restart{'s' if again > 1 else ''}" if again else "", "yellow", 4),
        Part(elapsed(now - snapshot.started), "dim", 2),
        Part(printable(snapshot.last_failure), "red", _FAILURE),
    ]
    return [part for part in said if part.text]


def fit(said: Sequence[Part], width: int) -> list[Part]:
    """Those parts for which there is room; the last one may be too long, but deserves its place."""
    from rich.cells import cell_len

    kept = list(said)
    while kept:
        least = max(kept, key=lambda part: part.weight)
        columns = cell_len(least.text)
        spare = width + _GAP - sum(cell_len(part.text) + _GAP for part in kept)
        enough = min(_SHORTEST_FAILURE, columns) if least.weight == _FAILURE else columns
        if not least.weight or columns + spare >= enough:
            break
        kept.remove(least)
    return kept


def elapsed(seconds: float) -> str:
    """As in "00:12:31", with days before it if there are any."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}d " if days else "") + f"{hour:02}:{minute:02}:{second:02}"


def _load_rich() -> None:
    import rich.cells
    import rich.style  # noqa: F401
