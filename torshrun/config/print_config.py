"""--print-config: every value with its origin, as a file that --config would take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from torshrun.config.options import HEADINGS, Option
from torshrun.config.request import Entry, Request

_WIDEST = 48
"""Columns; what is longer does not push all comments to the right."""
_Line = tuple[str, str]
"""YAML, and the comment beside it."""


def show(request: Request) -> str:
    """The text, one value a line."""
    blocks = [list(_target(request)), list(_environment(request))]
    for heading, options in HEADINGS.items():
        lines = [_line(option, request.entries[option.key]) for option in options if _shown(option)]
        if lines:
            blocks.append([(f"# {heading}", ""), *lines])
    lengths = (len(yaml) for yaml, comment in chain(*blocks) if comment and len(yaml) <= _WIDEST)
    width = max(lengths, default=0)
    return "\n".join(_render(block, width) for block in blocks if block)


def _render(lines: Iterable[_Line], width: int) -> str:
    return "".join(f"{yaml:{width}}  # {note}\n" if note else f"{yaml}\n" for yaml, note in lines)


def _shown(option: Option) -> bool:
    """In a file module: is what is run, so that the flag is spoken for."""
    return option.in_file and option.key != "module"


def _target(request: Request) -> Iterator[_Line]:
    """What is run, under the key that says how."""
    if request.target is None:
        return
    key = "module" if request["module"] and not request["run_path"] else "script"
    yield f"{key}: {_scalar(request.target.text)}", request.target.origin
    if request.arguments:
        yield "arguments:", ""
    for argument in request.arguments:
        yield f"  - {_scalar(argument.text)}", argument.origin


def _environment(request: Request) -> Iterator[_Line]:
    if request.environment:
        yield "environment:", ""
    for name, extra in request.environment.items():
        yield f"  {_scalar(name)}: {_scalar(extra.text)}", extra.origin


def _line(option: Option, entry: Entry) -> _Line:
    origin = entry.origin
    if entry.text is None and option.unset:
        origin = f"{origin}: {option.unset}"
    text = entry.text if not option.is_flag else _boolean(option, entry)
    return f"{option.key}: {_scalar(text, plain=option.is_flag)}", origin


def _boolean(option: Option, entry: Entry) -> str:
    return "true" if option.parse(entry.text or "") else "false"


def _scalar(text: str | None, *, plain: bool = False) -> str:
    """In YAML, quoted where it might be taken for something else."""
    if text is None or plain:
        return "null" if text is None else text
    import yaml

    if re.fullmatch(r"(0|[1-9][0-9]*)(\.[0-9]+)?", text):
        return text
    written = str(yaml.safe_dump(text, width=1 << 20, allow_unicode=True))
    written = written.removesuffix("\n...\n").removesuffix("\n")
    if len(written.splitlines()) > 1:
        written = str(yaml.safe_dump(text, width=1 << 20, default_style='"')).removesuffix("\n")
    return written
