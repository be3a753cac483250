"""Variables that stand for torshrun's options: which one each is, and whether it can be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torsh_runtime.errors import ConfigError
from torshrun.config.options import BY_VARIABLE, Option


@dataclass(frozen=True, slots=True)
class OptionVariable:
    """One that is set."""

    option: Option
    mistake: str
    """What torshrun would say to it, with the value in it; "" if it takes it."""
    overruled_by: str
    """The variable of the same option that counts in its place; "" is none."""


def read(variables: Mapping[str, str]) -> Mapping[str, OptionVariable]:
    """Those among these variables, by name. Looks for files and directories that they name."""
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
