"""The library that workers import: process groups and collectives, and models to train with them.

The names load lazily: importing this package loads neither numpy nor any backend. __init__.pyi
lists the module of each name; type checkers read it, and so does this module when a name is first
used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_homes: dict[str, str] = {}
"""The module of each public name; "." for packages within this one. Filled by _read_homes()."""


def _read_homes() -> dict[str, str]:
    """Read the table, whose statements are `from HOME import NAME as NAME, ...`, and return it."""
    if _homes:
        return _homes
    home, found = "", dict[str, str]()
    folder = __file__.rpartition("/")[0]
    with open(f"{folder}/__init__.pyi", encoding="utf-8") as table:  # noqa: PTH123
        for line in table:
            before, _, names = line.partition(" as ")
            words = before.split()
            if words[:1] == ["from"]:
                home = words[1]
            if names:
                found[words[-1]] = home
    _homes.update(found)
    return _homes


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        value = import_module("importlib.metadata").version("torshrun")
    elif name == "__all__":
        value = [*_read_homes()]
    elif (home := _read_homes().get(name)) is None:
        raise AttributeError(f"module 'torsh_runtime' has no attribute {name!r}")
    elif home == ".":
        value = import_module(f".{name}", __name__)
    else:
        value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_read_homes()})
