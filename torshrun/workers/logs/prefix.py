"""What stands before each line: the worker's prefix, in its colour, and the time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from string import Template

from torsh_runtime.contract import WorkerEnv
from torshrun.config.job import OutputConfig

DEFAULT = "[${rank}] "
PALETTE = (31, 166, 65, 133, 130, 62, 29, 161, 98, 94, 67, 131)
"""Of the 256 colours, some that can be read on black and on white; by rank, round and round."""
STAMP_WIDTH = len("2025-01-31T12:34:56.789Z ")


def render(output: OutputConfig, place: WorkerEnv, hostname: str) -> str:
    """This worker's prefix."""
    text = DEFAULT if output.log_line_prefix_template is None else output.log_line_prefix_template
    return Template(text).substitute(
        role_name=place.role_name,
        rank=place.rank,
        local_rank=place.local_rank,
        hostname=hostname,
    )


def encode(text: str) -> bytes:
    """The bytes of a text that came from a command line or a file, whatever they were."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a surrogate pair
        return text.encode("utf-8", "backslashreplace")


def paint(prefix: bytes, rank: int) -> bytes:
    """The prefix in the rank's colour."""
    colour = PALETTE[rank % len(PALETTE)]
    return b"\x1b[38;5;%dm%b\x1b[0m" % (colour, prefix) if prefix else b""


def is_coloured(output: OutputConfig, on_terminal: bool, environ: Mapping[str, str]) -> bool:
    """Whether prefixes have colours on an output that is a terminal, or is not."""
    if output.color == "auto":
        plain = environ.get("NO_COLOR") or environ.get("TERM") == "dumb"
        return on_terminal and not plain
    return output.color == "always"


def stamp(seconds: float) -> bytes:
    """A time since the epoch, as it stands before a line."""
    milliseconds = int(seconds * 1000)
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    return b"%b.%03dZ " % (whole.encode(), milliseconds % 1000)
