"""Notes steps and sections of this process, as its program and the library itself mark them."""

from __future__ import annotations

import inspect
import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import ContextDecorator
from functools import cache
from typing import Any, Protocol, TypeVar

from torsh_runtime.monitoring.notes import Notebook
from torsh_runtime.monitoring.pace import SAMPLES, TOTAL
from torsh_runtime.monitoring.recording import own_recording
from torsh_runtime.status import own_page

Function = TypeVar("Function", bound=Callable[..., Any])


class Observer(Protocol):
    """Is notified of what is marked, in the thread that marks it."""

    def begin(self, name: str, thread: int) -> None:
        """Note that a section begins."""

    def end(self, name: str, thread: int) -> None:
        """Note that a section ends."""

    def step(self, number: int) -> None:
        """Note that a step begins."""


class Marks:
    """Notes the steps and sections of one process. Any thread may set them."""

    def __init__(self, notebook: Notebook | None) -> None:
        """Create marks that are noted in `notebook`, which is None where nothing is recorded."""
        self._notebook = notebook
        self.observers: tuple[Observer, ...] = ()
        self.count = 0
        """Number of steps that were marked, by anyone."""
        self._is_given = self._gives_way = False
        self._given: int | None = None
        self._source: weakref.ref[object] | None = None
        self._automatic = 0

    def begin(self, name: str, thread: int | None = None) -> None:
        """Begin a section, in the thread of that threading.get_ident(), or in this one."""
        for each in self.observers:
            each.begin(name, threading.get_ident() if thread is None else thread)
        if self._notebook is not None:
            self._notebook.write("begin", name, 0.0, thread)

    def end(self, name: str, thread: int | None = None) -> None:
        """End a section, in the thread of that threading.get_ident(), or in this one."""
        if self._notebook is not None:
            self._notebook.write("end", name, 0.0, thread)
        for each in self.observers:
            each.end(name, threading.get_ident() if thread is None else thread)

    def scalar(self, name: str, value: float) -> None:
        """Note that something has this value now."""
        if self._notebook is not None:
            self._notebook.write("scalar", name, value)

    def step(self, number: int, scalars: Mapping[str, float]) -> None:
        """Begin a step that the program marks: from now on nobody else's steps count. A second call
        for the same step adds these numbers to it."""
        is_same, self._is_given, self._given = number == self._given, True, number
        if not is_same:
            self._note(number)
        if self._notebook is not None:
            for name, value in scalars.items():
                self._notebook.write("scalar", name, value)

    def step_by(self, source: object, *, gives_way: bool = False) -> None:
        """Mark the end of a step as `source` sees it. The source is not kept alive. The step counts
        unless the program marks steps, or another source that still exists has marked some. The
        first source counts, except one that gives way to others."""
        page = own_page()
        is_reported = page is not None and page.step not in (None, self._automatic)
        if self._is_given or is_reported:
            return
        marking = None if self._source is None else self._source()
        if marking is not source:
            if marking is not None and (gives_way or not self._gives_way):
                return
            self._source, self._gives_way = weakref.ref(source), gives_way
        self._automatic += 1
        self._note(self._automatic)

    def observe(self, observer: Observer, *, ends: bool = False) -> None:
        """Let the observer take part from now on, or, with `ends`, no more."""
        others = tuple(each for each in self.observers if each is not observer)
        self.observers = others if ends else (*others, observer)

    def _note(self, number: int) -> None:
        self.count += 1
        page = own_page()
        if page is not None:
            page.note_step(number)
        if self._notebook is not None:
            self._notebook.write("step", "", number)
        for each in self.observers:
            each.step(number)


@cache
def own_marks() -> Marks:
    """Return the marks of this process."""
    recording = own_recording()
    return Marks(None if recording is None else recording.notebook)


# A forked child marks steps and sections of its own.
os.register_at_fork(after_in_child=own_marks.cache_clear)


def step(n: int, /, total: int | None = None, samples: int | None = None, **scalars: float) -> None:
    """Mark that step `n` of the training begins. The same `n` again adds numbers to it.

    It works with and without a process group and torshrun, and takes a few microseconds. From the
    first call on, steps that the library would mark itself no longer count.

    Args:
        n: The step's number, from 0.
        total: How many steps there will be.
        samples: How many samples this rank takes in this step.
        **scalars: Further numbers of the step, such as loss=0.25. A tensor's value is taken at
            once, which waits for a GPU.

    Raises:
        TypeError: If something is no number.

    Example:
        ```python
        for n, batch in enumerate(batches):
            tr.monitoring.step(n, total=len(batches), samples=len(batch))
            tr.monitoring.step(n, loss=train(batch))
        ```
    """
    noted = {TOTAL: total, SAMPLES: samples, **scalars}
    given = {name: number_of(name, each) for name, each in noted.items() if each is not None}
    number = number_of("n", n)
    if not math.isfinite(number):
        raise TypeError(f"n={n!r} is no number of a step")
    own_marks().step(int(number), given)


def section(name: str) -> Section:
    """Return a context manager and decorator for a section, whose time is noted under this name.

    Sections may be nested, and run in any thread. See Section.

    Args:
        name: The name, of up to 64 bytes.

    Raises:
        TypeError: If `name` is no text.

    Example:
        ```python
        with tr.monitoring.section("data"):
            batch = next(batches)
        ```
    """
    return Section(name)


class Section(ContextDecorator):
    """Notes the time of its block; it is a context manager, and a decorator of functions.

    It may be used again, also while it is in use. A job has room for 127 names of up to 64 bytes.

    Example:
        ```python
        @tr.monitoring.section("evaluation")
        def evaluate(model):
            return model(validation_batch)
        ```
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        """Create a section.

        Args:
            name: The name.

        Raises:
            TypeError: If it is no text.
        """
        if not isinstance(name, str):
            raise TypeError(f"the name of a section is a text, not {name!r}")
        self._name = name

    def __enter__(self) -> Section:
        own_marks().begin(self._name)
        return self

    def __exit__(self, *_: object) -> None:
        own_marks().end(self._name)

    def __call__(self, func: Function) -> Function:
        """Return a function whose calls are such sections.

        Args:
            func: The function.

        Raises:
            TypeError: For a function that gives its results later: a generator, or an async
                function.
        """
        kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction)
        if any(is_kind(func) for is_kind in (*kinds, inspect.isasyncgenfunction)):
            raise TypeError(
                f"section({self._name!r}) cannot decorate {func.__qualname__}, whose calls end "
                f"before it runs: use `with section({self._name!r}):` inside of it"
            )
        return super().__call__(func)


for _method in (step, Section.__enter__, Section.__exit__):
    # Let torch.compile run them as they are: it would warn of the functions they call.
    vars(_method).update(_torchdynamo_disable=True, _torchdynamo_disable_msg="it notes the time")


class Span:
    """Represents a section of this thread that begins here and may end in a different thread."""

    def __init__(self, name: str) -> None:
        self._name, self._thread = name, threading.get_ident()
        self._is_open = True
        own_marks().begin(name)

    def end(self) -> None:
        """End the section, unless it has ended."""
        if self._is_open:
            self._is_open = False
            own_marks().end(self._name, self._thread)


def number_of(name: str, value: Any) -> float:
    """Return the value as a number. Raises TypeError if it is none."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(
            value.item() if hasattr(value, "item") else value
        )  # also of a tensor with a graph
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise TypeError(f"{name}={value!r} is no number") from error
