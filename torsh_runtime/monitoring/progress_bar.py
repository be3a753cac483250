"""A single progress bar for the whole job, with tqdm's interface."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Generic, TextIO, TypeVar

from torsh_runtime import launchers
from torsh_runtime.errors import ConfigError
from torsh_runtime.monitoring.bar_text import Look, text_of, value_of
from torsh_runtime.monitoring.marks import number_of, own_marks
from torsh_runtime.monitoring.pace import OF, PROGRESS
from torsh_runtime.status import own_page

Item = TypeVar("Item")
_LOOKS = frozenset(
    (
        *("ascii", "bar_format", "colour", "delay", "dynamic_ncols", "lock_args", "maxinterval"),
        *("miniters", "nrows", "position", "smoothing"),
    )
)
"""Arguments of tqdm that change how, or how often, its bar is drawn."""
_STEP_SECONDS = 0.001
_LINE_SECONDS = 10.0
"""Seconds between two lines where the bar cannot be drawn again in its place."""


class progress(Generic[Item]):  # noqa: N801  (it stands for tqdm)
    """Iterates over a loader and shows the progress of the whole job, like tqdm.tqdm.

    Arguments and methods are those of tqdm.tqdm. All ranks call it, and there is one bar for the
    job. Under torshrun that is its status line and `torshctl top`; rank 0 leaves a line when the
    bar is closed. Without torshrun rank 0 draws the bar.

    Numbers given to set_postfix() are noted, as by step(). If neither the program nor the library
    marks steps, each pass of the loop is one. A bar that nobody refers to any more is closed.

    Example:
        ```python
        bar = tr.monitoring.progress(loader, desc="train")
        for batch in bar:
            bar.set_postfix(loss=train(batch))
        ```
    """

    _is_open = False

    def __init__(
        self,
        iterable: Iterable[Item] | None = None,
        desc: str | None = None,
        total: float | None = None,
        leave: bool | None = True,
        file: TextIO | None = None,
        ncols: int | None = None,
        mininterval: float = 0.1,
        disable: bool | None = False,
        unit: str = "it",
        unit_scale: bool | float = False,
        initial: int = 0,
        postfix: Mapping[str, object] | str | None = None,
        unit_divisor: float = 1000,
        **looks: object,
    ) -> None:
        """Create a bar.

        Args:
            iterable: What to iterate over; None for a bar that update() advances.
            desc: The text before the bar.
            total: The number of items; None is the iterable's length.
            leave: Whether to leave a line when the bar is closed.
            file: The file to draw to; None is stderr.
            ncols: The width in columns; None is the terminal's.
            mininterval: Seconds between two drawings, at least.
            disable: True draws nothing and leaves no line; None does so unless at a terminal; the
                progress is noted all the same.
            unit: The name of an item.
            unit_scale: Whether to shorten large numbers by prefixes such as k, or a factor of
                numbers.
            initial: The number of items that are finished.
            postfix: The text behind the bar, or names with values.
            unit_divisor: The base of the prefixes.
            **looks: Arguments of tqdm that only change the looks of its bar; they have no effect.

        Raises:
            TypeError: For unknown arguments, and for a total that is no number.
        """
        if unknown := sorted(looks.keys() - _LOOKS):
            raise TypeError(f"progress() does not know {', '.join(unknown)}")
        self.iterable, self.desc, self.initial = iterable, desc or "", initial
        self.n: float = initial
        self.total = _length(iterable) if total is None else _known(total)
        self.leave, self.unit, self.disable = bool(leave), unit, bool(disable)
        self.postfix = ""
        self._numbers: dict[str, float] = {}
        self._look = Look(unit, unit_scale, unit_divisor, initial)
        self._file = sys.stderr if file is None else file
        self._ncols, self._interval = ncols, mininterval
        self._draws_in_place = _is_terminal(self._file)
        is_silent = disable or (disable is None and not self._draws_in_place)
        self._leaves = not is_silent and _rank() == 0
        self._draws = self._leaves and own_page() is None
        self._columns = 0
        self._is_open, self._pid = True, os.getpid()
        self._begun = self._noted = self._drawn = self._stepped = time.perf_counter()
        self._steps = own_marks().count
        _bars().append(weakref.ref(self))
        if isinstance(postfix, str):
            self.postfix = postfix
        elif postfix:
            self.set_postfix(postfix, refresh=False)
        self.refresh()

    def __iter__(self) -> Iterator[Item]:
        if self.iterable is None:
            raise TypeError("this bar was given nothing to iterate over: call update()")
        try:
            for item in self.iterable:
                yield item
                self.update()
        finally:
            self.close()

    def update(self, n: float | None = 1) -> bool | None:
        """Add `n` to the number of finished items, and return whether the bar was refreshed.

        Example:
            ```python
            with tr.monitoring.progress(total=100) as bar:
                for _ in range(10):
                    work()
                    bar.update(10)
            ```
        """
        self.n += 1 if n is None else n
        now = time.perf_counter()
        if now - self._stepped >= _STEP_SECONDS:
            self._stepped = now
            self._mark_step()
        if now - self._noted < self._interval:
            return False
        self.refresh()
        return True

    def refresh(self, *_: object, **__: object) -> bool:
        """Note the progress, and draw the bar."""
        self._noted = time.perf_counter()
        if self._is_open and _open()[-1:] == [self]:
            marks = own_marks()
            marks.scalar(PROGRESS, self.n)
            if self.total is not None:
                marks.scalar(OF, self.total)
            for name, value in self._numbers.items():
                marks.scalar(name, value)
        if self._draws and self._is_open:
            self._draw()
        return True

    def close(self) -> None:
        """Finish the bar, and leave its line unless leave=False."""
        if not self._is_open:
            return
        self.refresh()
        self._is_open = False
        _bars()[:] = [each for each in _bars() if each() not in (None, self)]
        self._clear()
        if self.leave and self._leaves:
            self._write(f"{self._text()}\n")

    def reset(self, total: float | None = None) -> None:
        """Begin again, to use the bar once more; `total` replaces the number of items unless it
        is None.
        """
        self.n, self._begun = 0, time.perf_counter()
        self.total = self.total if total is None else _known(total)
        if not self._is_open:
            self._is_open = True
            _bars().append(weakref.ref(self))
        self.refresh()

    def set_description(self, desc: str | None = None, refresh: bool = True) -> None:
        """Set the text before the bar.

        Args:
            desc: The text.
            refresh: Whether to draw the bar soon.
        """
        self.desc = (desc or "").removesuffix(": ")
        if refresh:
            self._refresh_soon()

    set_description_str = set_description

    def set_postfix(
        self, ordered_dict: Mapping[str, object] | None = None, refresh: bool = True, **values: Any
    ) -> None:
        """Set the text behind the bar: names with values, of which the numbers are noted.

        Args:
            ordered_dict: Names with values.
            refresh: Whether to draw the bar soon.
            **values: Further names with values.

        Example:
            ```python
            bar.set_postfix(loss=0.25, accuracy=0.9)
            ```
        """
        given = {**(ordered_dict or {}), **values}
        self.postfix = ", ".join(f"{name}={value_of(value)}" for name, value in given.items())
        self._numbers = {}
        for name, value in given.items():
            with suppress(TypeError, ValueError):  # other values are shown, not noted
                text = isinstance(value, str)
                self._numbers[name] = float(value) if text else number_of(name, value)
        if refresh:
            self._refresh_soon()

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
        """Set the text behind the bar. Nothing of it is noted.

        Args:
            s: The text.
            refresh: Whether to draw the bar soon.
        """
        self.postfix = s
        if refresh:
            self._refresh_soon()

    def clear(self, *_: object, **__: object) -> None:
        """Remove the bar from the screen until it is drawn again."""
        self._clear()

    @property
    def format_dict(self) -> dict[str, Any]:
        """Return the bar's facts, by tqdm's names."""
        elapsed = time.perf_counter() - self._begun
        rate = (self.n - self.initial) / elapsed if elapsed > 0 else None
        facts = {"n": self.n, "total": self.total, "elapsed": elapsed, "rate": rate}
        return {**facts, "prefix": self.desc, "unit": self.unit, "postfix": self.postfix}

    @classmethod
    def write(
        cls, s: str, file: TextIO | None = None, end: str = "\n", nolock: bool = False
    ) -> None:
        """Print a line above the bars. It is printed by every rank that calls it.

        Args:
            s: The text.
            file: The file; None is stdout.
            end: What follows the text.
            nolock: Makes no difference.

        Example:
            ```python
            tr.monitoring.progress.write("epoch 1 is over")
            ```
        """
        del nolock
        for bar in _open():
            bar._clear()
        print(s, file=file, end=end, flush=True)
        for bar in _open():
            if bar._draws:
                bar._draw()

    def __enter__(self) -> progress[Item]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):  # for example, while Python exits
            self.close()

    def __len__(self) -> int:
        if self.total is None:
            raise TypeError("this bar has no length")
        return int(self.total)

    def __bool__(self) -> bool:
        return self.total is None or self.total > 0

    def _mark_step(self) -> None:
        """Mark a step, unless others do: a pass of the loop has gone by in which nobody marked
        one."""
        marks = own_marks()
        if marks.count == self._steps:
            marks.step_by(self, gives_way=True)
        self._steps = marks.count

    def _refresh_soon(self) -> None:
        if time.perf_counter() - self._noted >= self._interval:
            self.refresh()

    def _draw(self) -> None:
        now = time.perf_counter()
        if self._draws_in_place:
            text = self._text()
            self._write(f"\r{text:<{self._columns}}")
            self._columns = len(text)
        elif now - self._drawn >= _LINE_SECONDS:
            self._drawn = now
            self._write(f"{self._text()}\n")

    def _clear(self) -> None:
        if self._columns:
            self._write(f"\r{'':{self._columns}}\r")
            self._columns = 0

    def _text(self) -> str:
        width = self._ncols or shutil.get_terminal_size().columns - 1
        seconds = time.perf_counter() - self._begun
        return text_of(self.desc, self.n, self.total, seconds, self.postfix, self._look, width)

    def _write(self, text: str) -> None:
        if os.getpid() != self._pid:  # a forked child does not draw its parent's bars
            return
        with suppress(OSError, ValueError):  # nobody reads it any more
            self._file.write(text)
            if hasattr(self._file, "flush"):
                self._file.flush()


@cache
def _bars() -> list[weakref.ref[progress[Any]]]:
    """Return the bars of this process that are not closed, the innermost last."""
    return []


def _open() -> list[progress[Any]]:
    """Return the bars that somebody still refers to."""
    return [bar for each in _bars() if (bar := each()) is not None]


os.register_at_fork(after_in_child=_bars.cache_clear)


def _known(total: float) -> float | None:
    """Return the total, or None if it is infinite."""
    return total if math.isfinite(number_of("total", total)) else None


def _length(iterable: Iterable[Any] | None) -> float | None:
    try:
        return len(iterable)  # type: ignore[arg-type]
    except (TypeError, AttributeError, NotImplementedError):
        return None


def _is_terminal(file: TextIO) -> bool:
    try:
        return file.isatty()
    except (AttributeError, ValueError):
        return False


def _rank() -> int:
    """Return this process's rank, as its launcher says; 0 if there is none."""
    try:
        place = {**os.environ, **launchers.place(os.environ)}
        return int(place.get("RANK", "0"))
    except (ConfigError, ValueError):
        return 0
