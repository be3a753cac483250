"""The keys of a DeepSpeed configuration: what this project does with each of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Fate(Enum):
    """What becomes of a key."""

    USED = "used"
    """It is carried out."""
    REFUSED = "refused"
    """ConfigError, unless the value asks for nothing."""
    NO_EFFECT = "no effect"
    """It is accepted, and changes nothing."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of one section that have the same fate for the same reason."""

    section: str
    """The dotted path of the section, "" for the top level; "*" stands for any one name."""
    names: str
    """Names with kinds, such as "stage:int nvme_path:str?"; without a kind any value will do, and
    "?" allows null. "" for a section whose keys have any name."""
    fate: Fate
    why: str
    idle: tuple[Any, ...] = ()
    """Values that ask for nothing: a refused key may have them."""

    def kinds(self) -> dict[str, str]:
        """The kind of each key, by its name."""
        parts = (each.partition(":") for each in self.names.split())
        return {name: kind or "any" for name, _, kind in parts}

    def titles(self) -> list[str]:
        """The dotted paths of all its keys."""
        prefix = f"{self.section}." if self.section else ""
        return [prefix + name for name in self.kinds() or {"*": ""}]


def markdown(table: tuple[Keys, ...]) -> str:
    """The table as docs/deepspeed.md has it."""
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
