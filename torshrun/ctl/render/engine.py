"""Sets up Jinja2 so that a template can only write values that are defined and quoted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from torshrun.ctl.render import quoting
from torshrun.ctl.render.quoting import Quoted

if TYPE_CHECKING:
    from jinja2 import Environment

_MEBIBYTE = 1024 * 1024


def fill(template: str, facts: Mapping[str, Any]) -> str:
    """Return the text of a template of this package, filled with `facts`."""
    return _environment().get_template(template).render(facts)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("torshrun.ctl.render"),
        undefined=StrictUndefined,
        finalize=quoting.checked,
        comment_start_string="<#",  # {# is bash, as in ${#array[@]}
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # each language has its own quoting, which finalize requires
    )
    environment.filters = {
        "clock": _clock,
        "comment": quoting.comment,
        "deeper": quoting.deeper,
        "block": _expanded_later_block,
        "expanded": _expanded_later,
        "heredoc": quoting.heredoc,
        "hours_and_minutes": _hours_and_minutes,
        "lines": quoting.lines,
        "literal": quoting.literal,
        "mebibytes": _mebibytes,
        "minutes": _minutes,
        "sh": quoting.sh,
        "shell_code": quoting.shell_code,
        "words": quoting.words,
        "yaml": quoting.yaml,
    }
    return environment


def _expanded_later(text: str) -> Quoted:
    return quoting.yaml(quoting.unexpanded(text))


def _expanded_later_block(text: str, indent: int) -> Quoted:
    return quoting.block(quoting.unexpanded(text), indent)


def _minutes(seconds: int) -> int:
    """Return the minutes, rounded up."""
    return -(-seconds // 60)


def _clock(seconds: int) -> Quoted:
    minutes, left = divmod(seconds, 60)
    return Quoted(f"{minutes // 60:02}:{minutes % 60:02}:{left:02}")


def _hours_and_minutes(seconds: int) -> Quoted:
    hours, left = divmod(_minutes(seconds), 60)
    return Quoted(f"{hours}:{left:02}")


def _mebibytes(size: int) -> int:
    """Return the mebibytes, rounded up."""
    return -(-size // _MEBIBYTE)
