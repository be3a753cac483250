"""Checks the arguments that a configuration gives to a class by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from torsh_runtime.errors import ConfigError


def with_known(what: str, made: Any, params: Mapping[str, Any]) -> None:
    """Raise ConfigError for unknown or missing arguments of a class, its first one aside."""
    _, *known = inspect.signature(made).parameters.values()
    names = [each.name for each in known]
    for name in params:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}"
            raise ConfigError(f"{what} has no {name!r}: {hint}")
    missing = [n.name for n in known if n.default is n.empty and n.name not in params]
    if missing:
        raise ConfigError(f"{what} lacks {', '.join(missing)}")
