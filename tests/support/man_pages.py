"""The manual pages in docs/man, made from torshrun's table of options and torshctl's commands.

python tests/support/man_pages.py     brings them up to date
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.release import CHECKOUT, newest_release

from torshrun import exit_codes
from torshrun.cli import ABOUT, OTHER_OPTIONS
from torshrun.config.options import HEADINGS, Option
from torshrun.ctl.command import command as torshctl

FOLDER = CHECKOUT / "docs" / "man"
Entry = tuple[str, str]
"""What stands left, in bold, and what is said of it."""


def pages() -> dict[str, str]:
    """Each page's text by its file's name."""
    return {"torshrun.1": torshrun_page(), "torshctl.1": torshctl_page()}


def torshrun_page() -> str:
    options = [part for heading, each in HEADINGS.items() for part in _subsection(heading, each)]
    return _page(
        "torshrun",
        "start and supervise the workers of distributed training",
        [
            *_section(
                "SYNOPSIS",
                ".B torshrun",
                "[\\fIOPTIONS\\fR] \\fISCRIPT\\fR [\\fIARGUMENTS\\fR]...",
            ),
            *_section("DESCRIPTION", *_paragraphs(ABOUT)),
            *_section("OPTIONS", *options, ".SS Other", *_entries(OTHER_OPTIONS)),
            *_section("EXIT STATUS", *_entries(_exit_codes())),
            *_section("SEE ALSO", ".BR torshctl (1),", ".BR ssh (1)"),
        ],
    )


def torshctl_page() -> str:
    about = (torshctl.help or "").split("\n\n")
    return _page(
        "torshctl",
        "look at jobs of torshrun, and change or end them",
        [
            *_section(
                "SYNOPSIS",
                ".B torshctl",
                "\\fICOMMAND\\fR [\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]...",
            ),
            *_section("DESCRIPTION", *_paragraphs(about)),
            *_section("COMMANDS", *_commands()),
            *_section("SEE ALSO", ".BR torshrun (1)"),
        ],
    )


def _page(name: str, purpose: str, sections: Iterable[str]) -> str:
    version, date = newest_release()
    head = [
        '.\\" Made by tests/support/man_pages.py.',
        f'.TH {name.upper()} 1 {date} "torshrun {version}"',
        *_section("NAME", f"{name} \\- {purpose}"),
    ]
    return "\n".join([*head, *sections, ""])


def _section(title: str, *lines: str) -> list[str]:
    return [f".SH {title}", *lines]


def _subsection(heading: str, options: tuple[Option, ...]) -> list[str]:
    return [f".SS {heading}", *_entries(map(_entry, options))]


def _entry(option: Option) -> Entry:
    default = option.unset if option.default is None else option.default
    text = option.help + (f" [default: {default}]" if default and not option.is_flag else "")
    return f"{', '.join(option.spellings)} {option.metavar}".rstrip(), text


def _exit_codes() -> list[Entry]:
    """Each with the sentence that stands under it in its module."""
    source = Path(exit_codes.__file__).read_text()
    found = re.findall(r'(?m)^[A-Z_]+ = (\d+)\n"""(.+?)"""$', source, re.DOTALL)
    codes = [("128 + n" if code == "128" else code, text) for code, text in found]
    return [("0", "All workers succeeded."), *codes, ("any other", "A worker's own.")]


def _commands() -> list[str]:
    lines = []
    above = click.Context(torshctl, info_name="torshctl", **torshctl.context_settings)
    for name, each in torshctl.commands.items():
        context = click.Context(each, info_name=name, parent=above)
        usage = " ".join(each.collect_usage_pieces(context))
        lines += [f".SS {name}", f".B torshctl {name}", _text(usage)]
        lines += [".PP", *_paragraphs((each.help or "").split("\n\n"))]
        options = [
            option for option in each.get_params(context) if isinstance(option, click.Option)
        ]
        lines += _entries(filter(None, (option.get_help_record(context) for option in options)))
    return lines


def _paragraphs(texts: Iterable[str]) -> list[str]:
    lines = [line for text in texts for line in (".PP", _text(text))]
    return lines[1:]


def _entries(entries: Iterable[Entry]) -> list[str]:
    return [line for name, text in entries for line in (".TP", f".B {_text(name)}", _text(text))]


def _text(text: str) -> str:
    """One line that is neither a request nor has escapes."""
    line = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line[:1] in (".", "'") else line


def main() -> None:
    """Write all pages, or with `--check` end with an error if one of them is not up to date."""
    FOLDER.mkdir(exist_ok=True)
    for file, page in pages().items():
        if sys.argv[1:] != ["--check"]:
            (FOLDER / file).write_text(page)
        elif (FOLDER / file).read_text() != page:
            sys.exit(f"{file} is not up to date; run: python tests/support/man_pages.py")


if __name__ == "__main__":
    main()
