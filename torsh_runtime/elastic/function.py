"""Refers to functions by name, so that other processes find them without pickling."""

from __future__ import annotations

import importlib
import inspect
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from torsh_runtime.errors import ConfigError

_MAIN = "__mp_main__"
"""The name that multiprocessing gives a program's main module in other processes."""


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """Tells other processes where to find a function."""

    module: str
    """The name of its module, or the path of the program whose main module it is in."""
    is_path: bool
    name: str
    """The qualified name in the module, with dots within classes."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> NamedFunction:
        """Return a reference to a function. Raises ConfigError if it has no name in a module."""
        module = sys.modules.get(getattr(function, "__module__", None) or "")
        name = getattr(function, "__qualname__", "")
        try:
            is_it = module is not None and _named(module, name) is function
        except AttributeError:
            is_it = False
        if module is None or not is_it:
            raise ConfigError(
                f"{function!r} cannot be found by other processes: define the function with `def` "
                f"at the top level of a module or of the program"
            )
        if module.__name__ not in ("__main__", _MAIN):
            return cls(module.__name__, False, name)
        return cls._of_main(module, name)

    @classmethod
    def _of_main(cls, main: ModuleType, name: str) -> NamedFunction:
        spec = getattr(main, "__spec__", None)
        if spec is not None and spec.name:  # of python -m
            return cls(spec.name, False, name)
        path = Path(getattr(main, "__file__", None) or "")
        if not path.is_file():
            raise ConfigError(
                f"{name} is in no file, so other processes cannot find it: put it into a module"
            )
        return cls(str(path.absolute()), True, name)

    def find(self) -> Callable[..., Any]:
        """Return the function, in a process that was started to run it.

        A program's main module becomes this process's main module, without running what is under
        `if __name__ == "__main__"`.
        """
        module = self._run_main() if self.is_path else importlib.import_module(self.module)
        found: Callable[..., Any] = _named(module, self.name)
        return found

    def _run_main(self) -> ModuleType:
        main = ModuleType(_MAIN)
        main.__dict__.update(runpy.run_path(self.module, run_name=_MAIN))
        sys.modules["__main__"] = sys.modules[_MAIN] = main
        return main


def check_arguments(function: Callable[..., Any], number: int) -> None:
    """Raise ConfigError unless the function accepts `number` checkpointers, 0 or 1."""
    try:
        inspect.signature(function).bind(*[None] * number)
    except TypeError as error:
        what = "a checkpointer" if number else "nothing without a checkpoint_dir"
        raise ConfigError(f"{function!r} must take {what}, and no more: {error}") from None


def is_main_being_found() -> bool:
    """Return whether find() is running a main module in this process.

    The caller is then that module, perhaps in a thread that it has started.
    """
    frames: list[FrameType | None] = [*sys._current_frames().values()]
    for frame in frames:
        while frame is not None:
            if frame.f_code is NamedFunction._run_main.__code__:
                return True
            frame = frame.f_back
    return False


def _named(module: ModuleType, name: str) -> Any:
    return reduce(getattr, name.split("."), module)
