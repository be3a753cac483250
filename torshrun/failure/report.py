"""The report about a round of workers that failed: text for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torshrun.failure.cause import diagnose, fingerprint, followed, root_cause
from torshrun.failure.exits import Exit, how
from torshrun.failure.last_words import Words, last_words
from torshrun.text import format_ranks

SHOWN_LINES = 40
"""How many lines of a worker's last words the report shows."""
LINE_CHARS = 500
"""How much of each it shows."""
_GROUPS = 6


def describe(exits: Sequence[Exit], outlook: str) -> str:
    """The report: root cause, its last words, the others in one line, and what happens next."""
    cause = root_cause(exits)
    if cause is None:
        return f"torshrun: {outlook}"
    where = f"host {cause.host}, pid {cause.pid}, after {cause.seconds:.1f} s"
    lines = [f"torshrun: rank {cause.rank} failed first: {how(cause)}, {where}"]
    _, explanation = diagnose(cause)
    if explanation:
        lines.append(f"  {explanation}")
    lines += _quote(last_words(cause))
    if cause.log:
        lines.append(f"  its output is kept in {cause.log}")
    others = [exit_ for exit_ in exits if exit_ is not cause and exit_.failed]
    if others:
        lines.append(f"  after it: {_in_brief(others, fingerprint(cause))}")
    return "\n".join([*lines, f"  {outlook}"])


def _quote(words: Words) -> list[str]:
    if not words.lines:
        return ["  it wrote nothing to stderr"]
    return [f"  {words.heading}:", *(f"  | {line[:LINE_CHARS]}".rstrip() for line in _cut(words))]


def _cut(words: Words) -> list[str]:
    """Lines that fit, without those that matter least: the outermost calls."""
    lines = list(words.lines)
    missing = len(lines) - SHOWN_LINES
    if missing <= 0:
        return lines
    note = f"  … {missing + 1} lines left out …"
    if words.innermost_first:
        return [*lines[: SHOWN_LINES - 1], note]
    return [lines[0], note, *lines[missing + 2 :]]


def _in_brief(exits: Iterable[Exit], cause: str) -> str:
    """How the others ended, those who ended alike together."""
    groups: dict[str, list[int]] = {}
    for exit_ in sorted(exits, key=lambda exit_: exit_.rank):
        groups.setdefault(_fate(exit_, cause), []).append(exit_.rank)
    told = [f"{format_ranks(ranks)} {fate}" for fate, ranks in list(groups.items())[:_GROUPS]]
    rest = sum(len(ranks) for ranks in list(groups.values())[_GROUPS:])
    return "; ".join([*told, f"{rest} others in other ways"] if rest else told)


def _fate(exit_: Exit, cause: str) -> str:
    if exit_.stopped:
        return "stopped by torshrun"
    if followed(exit_):
        return "lost its peer"
    return "in the same way" if fingerprint(exit_) == cause else how(exit_)
