"""Describes how this project treats each key of a DeepSpeed configuration."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Fate(Enum):
    """Tells how a key is treated."""

    USED = "used"
    """The key is carried out."""
    REFUSED = "refused"
    """The key raises ConfigError, unless its value leaves the feature off."""
    NO_EFFECT = "no effect"
    """The key is accepted and changes nothing."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Describes keys of one section that are treated alike for the same reason."""

    section: str
    """The dotted path of the section, "" for the top level; "*" matches any one name."""
    names: str
    """Names with kinds, such as "stage:int nvme_path:str?"; a name without a kind takes any value,
    and "?" allows null. "" for a section whose keys may have any name.
    """
    fate: Fate
    why: str
    idle: tuple[Any, ...] = ()
    """Values of a refused key that leave the feature off, and so are accepted."""

    def kinds(self) -> dict[str, str]:
        """Return the kind of each key by its name."""
        parts = (each.partition(":") for each in self.names.split())
        return {name: kind or "any" for name, _, kind in parts}

    def titles(self) -> list[str]:
        """Return the dotted paths of all keys."""
        prefix = f"{self.section}." if self.section else ""
        return [prefix + name for name in self.kinds() or {"*": ""}]


def markdown(table: tuple[Keys, ...]) -> str:
    """Return the table as docs/deepspeed.md has it."""
    lines = ["| section | keys | | |", "|---|---|---|---|"]
    for each in table:
        names = ", ".join(f"`{name}`" for name in each.kinds()) or "any"
        section = f"`{each.section}`" if each.section else "top level"
        why = each.why
        if each.fate is Fate.REFUSED and each.idle:
            accepted = ", ".join(f"`{_json(value)}`" for value in each.idle)
            why += f" Accepted: {accepted}"
        lines.append(f"| {section} | {names} | {each.fate.value} | {why} |")
    return "\n".join(lines) + "\n"


def _json(value: Any) -> str:
    words = {True: "true", False: "false"}
    if value is None:
        return "null"
    return words[value] if isinstance(value, bool) else str(value)


USED, REFUSED, NO_EFFECT = Fate.USED, Fate.REFUSED, Fate.NO_EFFECT
