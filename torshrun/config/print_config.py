"""--print-config: every value with its origin, as a file that --config takes and that asks for what
was asked for. What nobody has given stands behind #: a cluster's next job has other nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torshrun.config.options import HEADINGS, Option
from torshrun.config.request import Entry, Request

_COLUMN = 49  # where origins stand, behind all values but the longest
_ABOUT = "# Behind # stands what was not given: what was found here, and defaults.\n"


def show(request: Request) -> str:
    """Return the request as text, one value a line."""
    blocks = [[*_target(request)]]
    variables = request.environment.items()
    extras = [_line(f"  {_scalar(name)}: ", extra) for name, extra in variables]
    blocks.append(extras and ["environment:\n", *extras])
    for heading, options in HEADINGS.items():
        # In a file module: is what is run, so that the flag is spoken for.
        told = [each for each in options if each.in_file and each.key != "module"]
        lines = [_option(option, request.entries[option.key]) for option in told]
        blocks.append(lines and [f"# {heading}\n", *lines])
    return "\n".join("".join(lines) for lines in [[_ABOUT], *blocks] if lines)


def _target(request: Request) -> Iterator[str]:
    """Yield what is run, under the key that says how."""
    if request.target is not None:
        key = "module" if request["module"] and not request["run_path"] else "script"
        yield _line(f"{key}: ", request.target)
        yield from ["arguments:\n"] if request.arguments else []
        yield from (_line("  - ", argument) for argument in request.arguments)


def _option(option: Option, entry: Entry) -> str:
    key = f"{'' if entry.is_given else '#'}{option.key}: "
    if option.is_flag:
        value = str(option.kind.parse(entry.text or "")).lower()
        return f"{key + value:{_COLUMN}}  # {entry.origin}\n"
    if entry.text is None and option.unset:
        return _line(key, entry, f": {option.unset}")
    return _line(key, entry)


def _line(key: str, entry: Entry, more: str = "") -> str:
    return f"{key + _scalar(entry.text):{_COLUMN}}  # {entry.origin}{more}\n"


def _scalar(text: str | None) -> str:
    """Return the text in YAML, quoted where it might be taken for something else."""
    if text is None:
        return "null"
    if re.fullmatch(r"(0|[1-9][0-9]*)(\.[0-9]+)?", text):
        return text
    import yaml

    style = None if text.isprintable() else '"'  # which takes one line in any case
    written = yaml.safe_dump(text, width=1 << 20, allow_unicode=True, default_style=style)
    return str(written).removesuffix("\n").removesuffix("\n...")
