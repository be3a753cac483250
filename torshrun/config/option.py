"""What one option is: names, value, default, and what it says about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torshrun.config import values


@dataclass(frozen=True, slots=True)
class Option:
    """One option: how it is called, what it takes and what it says about itself."""

    key: str
    """Its name in a file, and with dashes on the command line."""
    metavar: str
    """What stands for its value in --help; "" if it is a flag."""
    help: str
    """What it does, in one or two lines, with the unit."""
    parse: Callable[[str], Any] = values.words
    """Text to value; raises ConfigError."""
    default: str | None = None
    """What holds without it, as it would be given; None: see unset."""
    unset: str = ""
    """What holds without it, in words, where no value says so."""
    field: str = ""
    """Its field in LaunchConfig or OutputConfig, where that has another name than key."""
    short: str = ""
    """ "-t"; "" is none."""
    aliases: tuple[str, ...] = ()
    """Other names, spelled as key is."""
    variables: tuple[str, ...] = ()
    """Variables that count besides TORSH_<NAME> and PET_<NAME>, after them."""
    is_list: bool = False
    """Whether a file may give a list; on the command line its items stand between commas."""
    pairs: str = ""
    """What is between key and value where a file may give a mapping ("=" or ":"); "" is nowhere."""
    without_effect: str = ""
    """Why it is accepted and nothing comes of it; "" if something does."""
    in_file: bool = True
    """Whether a file may give it: it is about the job, and not about this one command."""

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value on the command line."""
        return not self.metavar

    @property
    def names(self) -> tuple[str, ...]:
        """All its names, spelled as key is."""
        return (self.key, *self.aliases)

    @property
    def spellings(self) -> tuple[str, ...]:
        """As it is called on the command line, the short form first."""
        long = tuple(f"--{name.replace('_', '-')}" for name in self.names)
        return (self.short, *long) if self.short else long

    @property
    def environment(self) -> tuple[str, ...]:
        """The variables that it is read from; the first one that is set counts."""
        names = [name.upper() for name in self.names]
        own = [f"{start}_{name}" for start in ("TORSH", "PET") for name in names]
        return (*own, *self.variables)


def flag(key: str, text: str, **more: Any) -> Option:
    """An option that takes no value."""
    return Option(key, "", text, values.flag, default="false", **more)


def inert(key: str, metavar: str, why: str, parse: Callable[[str], Any] = values.words) -> Option:
    """An option that is accepted for torchrun's sake; `why` says why nothing comes of it."""
    return Option(key, metavar, f"No effect: {why}.", parse, without_effect=why)
