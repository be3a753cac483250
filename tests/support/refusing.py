"""What ranks are told that ask for what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torsh_runtime as tr


def refused(asked: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """The ConfigErrors' texts, by what was asked, one after the other; "" where there was none."""
    found = {}
    for name, ask in asked.items():
        try:
            ask()
            found[name] = ""
        except tr.ConfigError as error:
            found[name] = str(error)
        tr.barrier()
    return found
