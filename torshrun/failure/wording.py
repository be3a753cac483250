"""Words a verdict, and the facts from which it is concluded. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from torshrun.failure.incident import Incident, call_of
from torshrun.failure.kinds import Diagnosis, Kind, of_ranks
from torshrun.failure.rank_report import RankReport
from torshrun.failure.root_cause import MOST_EVIDENCE, Certainty
from torshrun.text import format_ranks


class Verdict(NamedTuple):
    """Names the ranks that are, or may be, to blame, and why."""

    ranks: Collection[int]
    certainty: Certainty
    reading: Diagnosis
    nodes: Collection[int] = ()


def manner_of(case: Incident, verdict: Verdict) -> str:
    """Return how the first of those to blame ended."""
    if verdict.certainty == "undecided":
        return str(verdict.reading.kind)
    found = case.of(verdict.ranks)
    if not found:
        return ""
    first = min(found, key=lambda each: (each.turn, each.at if each.end == "failed" else 0.0))
    where = f"first rank {first.rank}, {first.where}" if len(found) > 1 else first.where
    if first.is_own:
        ended = first.how
    elif case.hang and first.end == "stopped":
        ended = f"hung, then {first.how}"
    else:
        ended = str(verdict.reading.kind)
    return ", ".join(filter(None, (ended, where)))


def told(case: Incident, kind: Kind, ranks: Collection[int], what: str = "") -> Diagnosis:
    """Describe ranks to blame by what others did; `what` is what they themselves did."""
    others = {each.rank: each for each in [*case.followers, *case.waiting]}
    waiting = [each for rank, each in sorted(others.items()) if rank not in ranks]
    call = next((full_call(each) for each in waiting if call_of(each)), "a collective")
    who = format_ranks([each.rank for each in waiting]) if waiting else "others"
    if kind is Kind.HUNG and waiting:
        what = f"{what}. Meanwhile {who} waited in {call} for it"
    reading = of_ranks(kind, format_ranks(ranks), call, who, what)
    if kind is Kind.FROZEN and not waiting:  # nobody is known to wait for it
        return reading._replace(why=f"{reading.why.partition(', and ')[0]}.")
    return reading


def differ(ranks: Collection[int], calls: Mapping[int, str]) -> Diagnosis:
    """Describe ranks that called different things."""
    return of_ranks(Kind.MISMATCH, format_ranks(ranks) if ranks else "", listed(calls), "")


def with_debugging(case: Incident, reading: Diagnosis) -> Diagnosis:
    """Add how to make torch's groups tell more, if they found a mismatch and name no calls."""
    claims = case.claims("mismatch")
    is_torchs = any("torch " in f" {each.versions}" for each in claims)
    if reading.kind is not Kind.MISMATCH or not is_torchs or any(_calls(each) for each in claims):
        return reading
    return reading._replace(advice=f"{reading.advice} {_DEBUGGING}".strip())


_DEBUGGING = "With TORCH_DISTRIBUTED_DEBUG=DETAIL torch names both calls."


def with_backward(reading: Diagnosis) -> Diagnosis:
    """Add what ranks wait for in backward(), if the diagnosis mentions that call."""
    if not _IN_BACKWARD.search(reading.why):
        return reading
    return reading._replace(advice=f"{reading.advice} {_BACKWARD}".strip())


_IN_BACKWARD = re.compile(r"\b(?:called|waited in) backward\b|\(backward\)")
_BACKWARD = (
    "backward() exchanges gradients with the other ranks: by all_reduce in "
    "DistributedDataParallel, by reduce_scatter and all_gather in FSDP."
)


def _calls(witness: RankReport) -> Mapping[int, str]:
    return witness.blame.calls if witness.blame else {}


def where_it_waits(witness: RankReport) -> str:
    """Return the call and its place, as "recv(src=1, tag=7) at load (train.py:12)"."""
    place = witness.standing.place if witness.standing else ""
    return f"{full_call(witness)} at {place}" if place else full_call(witness)


def full_call(witness: RankReport) -> str:
    """Return the call that it waited in, with its arguments as far as they are known."""
    standing = witness.standing
    return (standing.full if standing else "") or call_of(witness)


def does(witness: RankReport) -> str:
    """Say where it was, or how it ended: "rank 0 was in barrier, at train.py:6"."""
    if witness.end == "done":
        return f"rank {witness.rank} had ended with {witness.how}"
    if witness.standing:
        return f"rank {witness.rank} was {witness.standing}"
    return f"it is not known where rank {witness.rank} was"


def listed(calls: Mapping[int, str]) -> str:
    """Return a text such as "rank 0 called f(), ranks 1-2 called g()"."""
    groups: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(calls):
        groups[calls[rank]].append(rank)
    called = [f"{format_ranks(ranks)} called {call}" for call, ranks in list(groups.items())[:4]]
    return ", ".join(called)


def evidence(case: Incident, verdict: Verdict) -> tuple[str, ...]:
    """Return what others said, and where all ranks were: equal ones grouped, culprits first."""
    lines: dict[str, list[int]] = defaultdict(list)
    order = sorted(case.witnesses, key=lambda each: (each.rank not in verdict.ranks, each.rank))
    for each in order:
        for text in _testimony(each, verdict):
            lines[text].append(each.rank)
    found = [f"{format_ranks(ranks)}: {text}" for text, ranks in lines.items()]
    found += _versions(case)
    found += [f"{each.name} was lost: {each.why}" for each in case.silent if each.why]
    return tuple(found[:MOST_EVIDENCE])


def _versions(case: Incident) -> Iterable[str]:
    """Yield which versions ranks run, if these differ between ranks that failed."""
    found: dict[str, list[int]] = defaultdict(list)
    for each in case.failed:
        if each.versions:
            found[each.versions].append(each.rank)
    if len(found) > 1:
        yield from (f"{format_ranks(ranks)}: runs {what}" for what, ranks in found.items())


def _testimony(witness: RankReport, verdict: Verdict) -> Iterable[str]:
    yield from _place(witness)
    yield from filter(None, (witness.mutters.text if witness.mutters else "", witness.child))
    if witness.handles:
        yield f"was handling {witness.handles}"
    if witness.awaits and witness.awaits not in verdict.reading.why:
        yield f"waited for {witness.awaits}"
    is_mismatch = verdict.reading.kind is Kind.MISMATCH
    if witness.blame and witness.blame.text:
        if not witness.blame.calls or not is_mismatch:
            yield witness.blame.text
    elif witness.is_own:
        yield ": ".join(filter(None, (witness.how, witness.said)))
    if witness.warning and verdict.reading.kind is Kind.NAN:
        yield witness.warning
    if witness.numbers and witness.numbers.line:
        yield f"wrote {witness.numbers.line}"
    if witness.call and is_mismatch:
        yield f"last called {witness.call}"


def _place(witness: RankReport) -> Iterable[str]:
    if witness.is_frozen:
        yield "the process was stopped (state T)"
    elif witness.end == "done":
        yield f"ended by itself with {witness.how}"
    elif witness.standing and (witness.end == "stopped" or witness.blame or _is_of_mesh(witness)):
        yield f"{witness.standing}"


def _is_of_mesh(witness: RankReport) -> bool:
    """Return whether it has a place in a mesh that its own words do not tell."""
    return bool(witness.standing and witness.standing.mesh not in witness.said)
