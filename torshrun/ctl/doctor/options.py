"""Finds the variables that set torshrun's options, and checks that they can be parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torsh_runtime.errors import ConfigError
from torshrun.config.options import BY_VARIABLE, Option


@dataclass(frozen=True, slots=True)
class OptionVariable:
    """Describes a variable that sets an option."""

    option: Option
    mistake: str
    """The error that torshrun would raise, with the value. Empty if the value is valid."""
    overruled_by: str
    """The variable of the same option that takes precedence. Empty if none does."""


def read(variables: Mapping[str, str]) -> Mapping[str, OptionVariable]:
    """Return the variables that set options, by name.

    Checks whether files and directories that they name exist.
    """
    return {
        name: OptionVariable(option, _mistake(option, variables[name]), _first(name, variables))
        for name, option in BY_VARIABLE.items()
        if name in variables
    }


def _mistake(option: Option, text: str) -> str:
    if not text:
        return ""  # counts as not set
    try:
        option.kind.parse(text)
    except ConfigError as error:
        return str(error)
    return ""


def _first(name: str, variables: Mapping[str, str]) -> str:
    given = [each for each in BY_VARIABLE[name].environment if variables.get(each)]
    return given[0] if name in given[1:] else ""
