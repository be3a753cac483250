"""Prefixes, their colours, and times."""

from __future__ import annotations

import pytest

from torsh_runtime.contract import WorkerEnv
from torshrun.config.job import OutputConfig
from torshrun.workers.logs.lines import (
    PALETTE,
    STAMP_WIDTH,
    encode,
    is_coloured,
    paint,
    render,
    stamp,
)

PLACE = WorkerEnv(rank=9, world_size=16, local_rank=1, local_world_size=8, role_name="trainer")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, "[9] "),
        ("", ""),
        ("<${role_name}:$local_rank@${hostname}> ", "<trainer:1@here> "),
        ("$$ ${rank}", "$ 9"),
    ],
)
def test_templates(template: str | None, expected: str) -> None:
    assert render(OutputConfig(log_line_prefix_template=template), PLACE, "here") == expected


@pytest.mark.parametrize("text", ["[0] ", "caf\u00e9", chr(0xDCFF), chr(0xD800)])
def test_any_text_has_bytes(text: str) -> None:
    assert encode(text)


@pytest.mark.parametrize(
    ("color", "terminal", "environ", "expected"),
    [
        ("auto", True, {}, True),
        ("auto", False, {}, False),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"NO_COLOR": ""}, True),
        ("auto", True, {"TERM": "dumb"}, False),
        ("always", False, {"NO_COLOR": "1"}, True),
        ("never", True, {}, False),
    ],
)
def test_when_there_are_colours(
    color: str, terminal: bool, environ: dict[str, str], expected: bool
) -> None:
    output = OutputConfig(color=color)  # type: ignore[arg-type]
    assert is_coloured(output, terminal, environ) is expected


def test_a_prefix_in_colour_ends_without_colour() -> None:
    painted = [paint(b"[%d] " % rank, rank) for rank in range(40)]
    assert all(text.startswith(b"\x1b[38;5;") and text.endswith(b"\x1b[0m") for text in painted)
    assert len({text.split(b"m")[0] for text in painted}) == len(PALETTE)
    assert paint(b"", 3) == b""


def test_every_colour_can_be_read_on_black_and_on_white() -> None:
    for colour in PALETTE:
        luminance = _luminance(colour)
        assert (luminance + 0.05) / 0.05 >= 3, colour
        assert 1.05 / (luminance + 0.05) >= 3, colour


def _luminance(colour: int) -> float:
    """Relative luminance of one of the 6 x 6 x 6 colours, as for contrast on web pages."""
    steps = (0, 95, 135, 175, 215, 255)
    number = colour - 16
    channels = [steps[number // 36] / 255, steps[number // 6 % 6] / 255, steps[number % 6] / 255]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, b"1970-01-01T00:00:00.000Z "),
        (1735689599.9996, b"2024-12-31T23:59:59.999Z "),
        (1735689600.25, b"2025-01-01T00:00:00.250Z "),
    ],
)
def test_times_are_utc_in_milliseconds(seconds: float, expected: bytes) -> None:
    assert stamp(seconds) == expected
    assert len(expected) == STAMP_WIDTH
