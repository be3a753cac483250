"""Holds what is wrong with a job, and writes it for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torsh_runtime.monitoring.flight import named
from torsh_runtime.monitoring.layout import Operation
from torsh_runtime.monitoring.notes import Whereabouts
from torshrun.failure import trails

SCHEMA = 1


JSON_BYTES = 8192
"""The most bytes of the answer for programs."""


MOST_RANKS = 16


_MOST_EVIDENCE = 8


_TEXT_CHARS = 400


class Verdict(NamedTuple):
    """Says what is wrong with a job."""

    job: str
    """The job's name, for people."""
    state: str
    """`running` or `ended`."""
    wrong: str
    """`nothing`, `waiting` (ranks wait for others, or for each other), `mismatch`, `stopped` (a
    process is stopped), `dead` (one has ended), or `failed`.
    """
    ranks: Sequence[int]
    """The ranks that are, or may be, the cause."""
    nodes: Sequence[int]
    """The nodes that are, or may be, the cause, by node rank."""
    certainty: str
    """`certain`, `likely` or `undecided`."""
    headline: str
    operation: Operation | None
    """The operation that others wait in, or that ranks disagree on. None is unknown."""
    called: Mapping[int, Operation]
    """The operation that each rank out of step called instead, or called last."""
    since: float | None
    """Seconds that the others have waited, or had waited when the job ended."""
    evidence: Sequence[str]
    advice: str
    kind: str
    """The kind of the failure, as in the report. Empty while the job runs."""
    stands: Mapping[int, Whereabouts]
    """Step and section of each rank."""
    frames: Mapping[int, str]
    """The innermost line of the program's own code, for each rank."""
    silent: Sequence[str]
    """Lines about nodes whose data is missing or incomplete."""
    groups: Mapping[int, str]
    """Names of groups."""
    members: Mapping[int, Sequence[int]]
    """The ranks known to be in each group, or that have called an operation in it."""


def in_words(verdict: Verdict) -> Iterator[str]:
    """Yield the lines that people read."""
    yield verdict.job
    yield f"  {verdict.headline}"
    if verdict.operation:
        yield f"  operation: {named(verdict.operation, verdict.groups)}"
    for rank in verdict.ranks[:MOST_RANKS]:
        doing = trails.doing(verdict.stands.get(rank, Whereabouts()))
        frame = f"at {verdict.frames[rank]}" if rank in verdict.frames else ""
        if doing or frame:
            yield f"  rank {rank}: {', '.join(filter(None, (doing, frame)))}"
    for line in verdict.evidence[:_MOST_EVIDENCE]:
        if line not in verdict.headline:
            yield f"  {line}"
    for line in verdict.silent:
        yield f"  nothing from {line}"
    if verdict.advice:
        yield f"  what to do: {verdict.advice}"


def as_object(verdict: Verdict) -> Mapping[str, Any]:
    """Return the verdict as an object for JSON of at most JSON_BYTES.

    The least important entries are cut first.
    """
    told = _object(verdict)
    for name in ("silent", "evidence", "where"):
        while len(json.dumps(told)) > JSON_BYTES and told[name]:
            told[name] = told[name][:-1]
            told["cut"] = True
    return told


def _object(verdict: Verdict) -> dict[str, Any]:
    shown = [*verdict.ranks][:MOST_RANKS]
    return {
        "schema": SCHEMA,
        "job": _cut(verdict.job),
        "state": verdict.state,
        "wrong": verdict.wrong,
        "ranks": shown,
        "nodes": [*verdict.nodes][:MOST_RANKS],
        "certainty": verdict.certainty,
        "kind": verdict.kind,
        "headline": _cut(verdict.headline),
        "operation": _operation(verdict, verdict.operation),
        "called": {
            str(rank): _operation(verdict, each)
            for rank, each in [*verdict.called.items()][:MOST_RANKS]
        },
        "waited_seconds": None if verdict.since is None else round(verdict.since, 3),
        "where": [_where(verdict, rank) for rank in _of_interest(verdict)],
        "evidence": [*map(_cut, verdict.evidence[:_MOST_EVIDENCE])],
        "advice": _cut(verdict.advice),
        "silent": [*map(_cut, verdict.silent[:MOST_RANKS])],
        "cut": len(verdict.ranks) > len(shown),
    }


def _of_interest(verdict: Verdict) -> list[int]:
    """Return the ranks to describe, the culprits first."""
    known = {*verdict.stands, *verdict.frames}
    order = sorted(known, key=lambda rank: (rank not in verdict.ranks, rank))
    return order[:MOST_RANKS]


def _where(verdict: Verdict, rank: int) -> Mapping[str, Any]:
    stands = verdict.stands.get(rank, Whereabouts())
    since = round(max(-stands.since, 0.0), 3) if stands.section else None
    return {
        "rank": rank,
        "step": stands.step,
        "section": _cut(stands.section) if stands.section else None,
        "section_seconds": since,
        "frame": _cut(verdict.frames.get(rank, "")) or None,
    }


def _operation(verdict: Verdict, each: Operation | None) -> Mapping[str, Any] | None:
    if each is None:
        return None
    return {
        "operation": each.operation,
        "sequence": each.sequence,
        "group": verdict.groups.get(each.group) or (f"{each.group:x}" if each.group else ""),
        "members": [*verdict.members.get(each.group, ())][:MOST_RANKS],
        "dtype": each.dtype,
        "elements": each.elements,
        "reduction": each.reduction,
        "root": each.root,
        "state": each.state,
    }


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS else f"{text[: _TEXT_CHARS - 1]}…"
