"""Remembers results of functions, and keeps their types for a checker."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def remembered(
    maxsize: int | None, typed: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return lru_cache(maxsize, typed). A checker sees the function's own parameters, where
    lru_cache() takes any."""
    decorator: Any = lru_cache(maxsize, typed)
    found: Callable[[Callable[P, R]], Callable[P, R]] = decorator
    return found
