"""Compares launchers' reports with the truth of the corpus, and totals the results.

It has no side effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from support.corpus import Case

from benchmarks import table
from benchmarks.bars import Check
from benchmarks.corpus_reports import CERTAIN, UNDECIDED, Finding

CULPRIT_BAR, KIND_BAR, HINT_BAR = 95.0, 90.0, 90.0
"""Smallest percentages of the cases."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judges one launcher's report of one case."""

    case: Case
    hung: bool
    """True if the launcher did not end in time."""
    finding: Finding

    @property
    def culprit(self) -> bool:
        """Return whether the launcher named those at fault, and nobody else."""
        truth, found = self.case.culprit, self.finding
        if not found.certainty or truth.undecided != (found.certainty == UNDECIDED):
            return False
        if truth.undecided:
            return (found.ranks, found.nodes) == (truth.ranks, truth.nodes)
        if self._nobody(truth.ranks, truth.nodes) and self._nobody(found.ranks, found.nodes):
            return True
        named = bool(found.ranks | found.nodes)
        return named and found.ranks <= self._ranks and found.nodes <= truth.nodes

    def _nobody(self, ranks: frozenset[int], nodes: frozenset[int]) -> bool:
        """Return whether nobody in particular is blamed. Who blames all ranks blames the job."""
        everyone = 1 < len(ranks) == self.case.nproc * self.case.nnodes
        return not nodes and (not ranks or everyone)

    @property
    def _ranks(self) -> frozenset[int]:
        """Return the ranks at fault, including all ranks of a node at fault."""
        nproc, truth = self.case.nproc, self.case.culprit
        of_nodes = (range(node * nproc, (node + 1) * nproc) for node in truth.nodes)
        return truth.ranks.union(*of_nodes)

    @property
    def kind(self) -> bool:
        """Return whether the launcher named the right kind, and no other."""
        return bool(self.finding.kinds) and self.finding.kinds <= self.case.kinds

    @property
    def hint(self) -> bool:
        """Return whether the launcher's own text has all key words."""
        return not self.missing

    @property
    def missing(self) -> list[str]:
        """Return the key words that are missing in the launcher's own text."""
        hints = self.case.hints
        return [hint.pattern for hint in hints if not hint.search(self.finding.text)]

    @property
    def certain_and_wrong(self) -> bool:
        """Return whether the launcher blamed someone else with certainty."""
        return self.finding.certainty == CERTAIN and not self.culprit

    @property
    def right(self) -> bool:
        return self.culprit and self.kind and self.hint


def percent(verdicts: Sequence[Verdict], is_right: Callable[[Verdict], bool]) -> float | None:
    """Return for how many percent of the verdicts `is_right` is true; None without verdicts."""
    return 100 * sum(map(is_right, verdicts)) / len(verdicts) if verdicts else None


def by_area(verdicts: Sequence[Verdict]) -> str:
    """Return a table with a line for each area, and one for all."""
    areas = sorted({verdict.case.area for verdict in verdicts})
    lines = [
        (area, [verdict for verdict in verdicts if verdict.case.area == area]) for area in areas
    ]
    header = ["area", "cases", "culprit %", "kind %", "hint %", "certain, wrong", "hung"]
    return table.render(header, [_line(*line) for line in [*lines, ("all", verdicts)]])


def _line(name: str, verdicts: Sequence[Verdict]) -> list[str]:
    figures = [
        percent(verdicts, lambda each: each.culprit),
        percent(verdicts, lambda each: each.kind),
        percent(verdicts, lambda each: each.hint),
    ]
    counts = [
        sum(each.certain_and_wrong for each in verdicts),
        sum(each.hung for each in verdicts),
    ]
    shown = [f"{figure:.0f}" if figure is not None else "-" for figure in figures]
    return [name, str(len(verdicts)), *shown, *map(str, counts)]


def misses(verdicts: Iterable[Verdict]) -> str:
    """Return, for each case that is not all right, the mistakes and the launcher's statement."""
    return "\n".join(_miss(verdict) for verdict in verdicts if not verdict.right)


def _miss(verdict: Verdict) -> str:
    wrong = [name for name in ("culprit", "kind") if not getattr(verdict, name)]
    wrong += [f"hint ({', '.join(verdict.missing)})"] if verdict.missing else []
    sure = f", {verdict.finding.certainty}" if verdict.finding.certainty else ""
    said = "hung" if verdict.hung else f"{verdict.finding}{sure}"
    return f"  {verdict.case.name}: {', '.join(wrong)}; is {truth(verdict.case)}; said {said}"


def truth(case: Case) -> str:
    """Return whose fault a case is and of which kind, as its header says."""
    culprit = case.culprit
    who = [f"rank {rank}" for rank in sorted(culprit.ranks)]
    who += [f"node {node}" for node in sorted(culprit.nodes)]
    link = " or " if culprit.undecided else ", "
    return f"{link.join(who) or 'nobody'}: {'/'.join(sorted(case.kinds))}"


def checks(verdicts: Sequence[Verdict]) -> list[Check]:
    """Return the checks of the bars."""
    wrong = sum(each.certain_and_wrong for each in verdicts)
    return [
        Check("culprit %", percent(verdicts, lambda each: each.culprit), CULPRIT_BAR),
        Check("kind %", percent(verdicts, lambda each: each.kind), KIND_BAR),
        Check("hint %", percent(verdicts, lambda each: each.hint), HINT_BAR),
        Check("certain and wrong", wrong, 0, at_most=True),
    ]
