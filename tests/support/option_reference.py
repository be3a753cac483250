"""The table of options in docs/configuration.md, made from torshrun's own.

python tests/support/option_reference.py     brings the page up to date
"""

from __future__ import annotations

from pathlib import Path

from torshrun.config.options import HEADINGS, Option

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
BEGIN, END = "<!-- options: begin -->\n", "<!-- options: end -->\n"


def reference() -> str:
    """A table for each heading."""
    return "\n".join(_table(heading, options) for heading, options in HEADINGS.items())


def renewed(page: str) -> str:
    """The page with the tables as they ought to be."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{reference()}\n{END}{rest.split(END)[1]}"


def _table(heading: str, options: tuple[Option, ...]) -> str:
    rows = "".join(f"| {' | '.join(_cells(option))} |\n" for option in options)
    return f"### {heading}\n\n| option | value | default | |\n|---|---|---|---|\n{rows}"


def _cells(option: Option) -> list[str]:
    names = " ".join(f"`{spelling}`" for spelling in option.spellings)
    value = f"`{option.metavar}`" if option.metavar else "flag"
    default = f"`{option.default}`" if option.default else option.unset
    others = ", ".join(f"`{name}`" for name in option.environment if name.startswith("TORCH"))
    text = f"{option.help} Also from {others}." if others else option.help
    return [cell.replace("|", "\\|").replace("<", "&lt;") for cell in (names, value, default, text)]


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
