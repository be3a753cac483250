"""The tables of keys in docs/render.md, made from those that are read.

python tests/support/key_reference.py     brings the page up to date
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torshrun.ctl.render.keys import SECTIONS, Key

PAGE = Path(__file__).parents[2] / "docs" / "render.md"
BEGIN, END = "<!-- keys: begin -->\n", "<!-- keys: end -->\n"


def renewed(page: str) -> str:
    """The page with the tables as they ought to be."""
    before, rest = page.split(BEGIN)
    tables = "\n".join(_table(heading, keys) for heading, keys in SECTIONS.items())
    return f"{before}{BEGIN}\n{tables}\n{END}{rest.split(END)[1]}"


def _table(heading: str, keys: Mapping[str, Key]) -> str:
    rows = "".join(f"| {' | '.join(_cells(key))} |\n" for key in keys.values())
    title = f"`cluster: {heading}:`" if heading != "cluster" else "`cluster:`"
    return f"### {title}\n\n| key | value | default | |\n|---|---|---|---|\n{rows}"


def _cells(key: Key) -> list[str]:
    default = f"`{key.default}`" if key.default else key.unset
    default = "**needed**" if key.is_needed else default
    cells = (f"`{key.name}`", f"`{key.metavar}`", default, key.help)
    return [cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells]


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
