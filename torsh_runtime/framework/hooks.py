"""Hooks of this library, which are told from the program's own by their class."""

from __future__ import annotations

from torsh_runtime.framework.protocol import Call


class OnGradient:
    """Calls a function when a parameter's gradient has been accumulated."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __call__(self, _: object) -> None:
        self._call()
