"""The report about a round that failed, for people: who and why, evidence, what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torshrun.failure.excerpts import excerpt
from torshrun.failure.exit_diagnosis import blamed
from torshrun.failure.exits import Exit, how, where
from torshrun.failure.explanation import NOTHING, Explanation
from torshrun.failure.kinds import NO_READING, Diagnosis
from torshrun.failure.last_words import beside, last_words
from torshrun.failure.likeness import fingerprint
from torshrun.failure.root_cause import RootCause
from torshrun.text import format_ranks

SHOWN_LINES = 40
"""Lines of a worker's last words that the report shows."""
BESIDE_LINES = 12
"""Lines that the report shows of what else it wrote."""
LINE_CHARS = 500
"""Characters of each line that the report shows."""
_GROUPS = 6
_FATES = {
    "lost": "lost a peer",
    "late": "timed out waiting",
    "mismatch": "disagreed with others",
    "unread": "could not read a message",
}


def describe(explained: Explanation | None, outlook: str, is_partial: bool = False) -> str:
    """Return the report.

    `outlook` says what happens next. If `is_partial`, it is not known yet what happened on other
    nodes, so the report says no more than what is sure.
    """
    exits, cause, finding, _ = explained or NOTHING
    if cause is None or finding is None:
        return f"torshrun: {outlook}"
    is_own = finding.certainty == "certain" and cause.rank in finding.ranks
    reading = finding.reading if is_own or not is_partial else NO_READING
    said = partial_line(cause) if is_partial else finding.headline
    lines = [f"torshrun: {said}", *_indented(reading.why)]
    if not is_own and not is_partial:
        lines += [f"  {line}" for line in finding.evidence]
    lines += _words(cause, finding)
    others = [exit_ for exit_ in exits if exit_ is not cause and exit_.failed]
    if others:
        lines.append(f"  after it: {_in_brief(others, fingerprint(cause))}")
    return "\n".join([*lines, *_to_do(reading), f"  {outlook}"])


def _indented(text: str) -> list[str]:
    return [f"  {text}"] if text else []


def _to_do(reading: Diagnosis) -> list[str]:
    return _indented(f"what to do: {reading.advice}" if reading.advice else "")


def describe_finding(finding: RootCause, whole: bool) -> str:
    """Return the report about all nodes; unless `whole`, its headline and where the rest is."""
    lines = [f"torshrun: {finding.headline}"]
    if not whole:
        return "\n".join([*lines, "  node 0 has the whole report, each node that of its own ranks"])
    lines += _indented(finding.reading.why) + [f"  {line}" for line in finding.evidence]
    return "\n".join([*lines, *_to_do(finding.reading)])


def describe_standing(finding: RootCause) -> str:
    """Return where workers were that hung when they were stopped, which is no failure of theirs."""
    lines = ["torshrun: before they were stopped:", *_indented(finding.reading.why)]
    lines += [f"  {line}" for line in finding.evidence]
    return "\n".join([*lines, *_to_do(finding.reading)])


def partial_line(cause: Exit) -> str:
    """Return a line about who failed first here, perhaps because of a failure elsewhere."""
    return f"rank {cause.rank} failed first on this node: {how(cause)}, {where(cause)}"


def _words(cause: Exit, finding: RootCause) -> list[str]:
    """Return what it said last; for a rank that only followed, no more than its error."""
    words = last_words(cause)
    follows = cause.rank not in finding.ranks and bool(words.errors)
    whose = f"rank {cause.rank}: " if follows or finding.ranks != (cause.rank,) else ""
    nothing = "it wrote nothing" if cause.has_stdout else "it wrote nothing to stderr"
    heading = "its error" if follows else words.heading or nothing
    shown = words.errors[-1].split("\n") if follows else excerpt(words, SHOWN_LINES)
    lines = _quoted(f"{whose}{heading}", shown)
    for more in () if follows else beside(cause, words):
        lines += _quoted(more.heading, excerpt(more, BESIDE_LINES))
    if cause.log:
        lines.append(f"  its output is kept in {cause.log}")
    return lines


def _quoted(heading: str, lines: Sequence[str]) -> list[str]:
    quoted = [f"  | {line[:LINE_CHARS]}".rstrip() for line in lines]
    return [f"  {heading}{':' if quoted else ''}", *quoted]


def _in_brief(exits: Iterable[Exit], cause: str) -> str:
    """Return how the others ended, with those that ended alike grouped."""
    groups: dict[str, list[int]] = {}
    for exit_ in sorted(exits, key=lambda exit_: exit_.rank):
        groups.setdefault(_fate(exit_, cause), []).append(exit_.rank)
    told = [f"{format_ranks(ranks)} {fate}" for fate, ranks in list(groups.items())[:_GROUPS]]
    rest = sum(len(ranks) for ranks in list(groups.values())[_GROUPS:])
    return "; ".join([*told, f"{rest} others in other ways"] if rest else told)


def _fate(exit_: Exit, cause: str) -> str:
    if exit_.stopped and not exit_.raised:
        return "stopped by torshrun"
    blame = blamed(exit_)
    if blame:
        return _FATES[blame.how]
    return "in the same way" if fingerprint(exit_) == cause else how(exit_)
