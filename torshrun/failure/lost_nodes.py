"""Judges nodes that were lost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torshrun.failure.incident import Incident
from torshrun.failure.kinds import Kind, of_ranks
from torshrun.failure.rank_report import Silent
from torshrun.failure.recognition import diagnose_job
from torshrun.failure.root_cause import Certainty
from torshrun.failure.wording import Verdict


def silent_nodes(case: Incident) -> Verdict | None:
    """Judge nodes that were lost, if nothing else explains the failure."""
    if not case.silent:
        return None
    return lost_nodes(case, case.silent, "certain" if len(case.silent) == 1 else "likely")


def lost_nodes(case: Incident, silent: Sequence[Silent], certainty: Certainty) -> Verdict:
    names = " and ".join(each.name for each in silent)
    why = "; ".join(filter(None, (each.why for each in silent[:1])))
    nodes = [each.node for each in silent if each.node >= 0]
    if all(each.is_unable for each in silent):
        reading = diagnose_job(f"{names} cannot run workers: {why}", Kind.AGENT)
        return Verdict((), certainty, reading, nodes)
    # Whose connections end has ended itself; but only who waits for it sees that.
    is_cut_off = bool(case.waiting) and not case.claims("lost")
    kind = Kind.UNREACHABLE if is_cut_off else Kind.NODE_LOST
    reading = of_ranks(kind, names, "", "", why or "nothing more was heard of it")
    return Verdict((), "likely" if is_cut_off else certainty, reading, nodes)


def ranks_of(silent: Iterable[Silent]) -> set[int]:
    return {rank for each in silent for rank in each.ranks}
