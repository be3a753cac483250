"""Checks whether an optional framework is installed and new enough."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from torsh_runtime.errors import BackendUnavailable


class Requirement(NamedTuple):
    """Describes a framework that an integration needs."""

    distribution: str
    """The framework's name for pip."""
    extra: str
    """The extra of torshrun that installs it."""
    least: str
    """The oldest version that works."""
    tried: tuple[str, ...]
    """The versions with which the integration was tested."""
    modules: tuple[str, ...]
    """The modules that must load."""

    def check(self) -> None:
        """Raise BackendUnavailable if the framework is absent, too old or incomplete."""
        try:
            found = version(self.distribution)
        except PackageNotFoundError:
            raise self._unavailable("is not installed") from None
        if _numbers(found) < _numbers(self.least):
            raise self._unavailable(f"{found} is too old")
        try:
            for module in self.modules:
                import_module(module)
        except ImportError as error:
            raise self._unavailable(f"{found} does not load ({error})") from error

    def _unavailable(self, why: str) -> BackendUnavailable:
        return BackendUnavailable(
            f"the {self.extra} integration",
            f"{self.distribution} {why}. Install it: `pip install '.[{self.extra}]'` in torshrun's "
            f"checkout ({self.least} or later; tried with {' and '.join(self.tried)}).",
        )


def _numbers(text: str) -> tuple[int, ...]:
    """Return a version's numbers for comparison: "2026.8.0rc1" gives (2026, 8, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()
