"""Judges the reports of launchers about jobs that fail.

    python benchmarks/corpus.py --help

Runs the cases of tests/corpus under torshrun and torchrun, and compares the blamed ranks and causes
with the known truth of each case.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.corpus import FOLDER, Case, cases

from benchmarks import corpus_score
from benchmarks.corpus_reports import finding
from benchmarks.corpus_runs import Run, run
from benchmarks.corpus_score import Verdict
from benchmarks.launchers import TORCHRUN, TORSHRUN
from benchmarks.peers import UnavailableError
from benchmarks.processes import INTERRUPTED, interrupt_on_term

QUICK = ("crash/stack_overflow", "options/order", "python/one_rank", "signals/kill")
"""Cases that fail quickly and need nothing special."""


def main() -> int:
    options = _options()
    interrupt_on_term()
    patterns = QUICK if options.quick else options.only
    chosen = [case for case in cases(options.folder) if _matches(case, patterns)]
    if options.list:
        print("\n".join(f"{case.name}: {case.title}" for case in chosen))
        return 0
    verdicts = {name: list(_verdicts(chosen, name, options)) for name in options.launchers}
    for launcher, found in verdicts.items():
        print(f"\n{launcher}\n\n{corpus_score.by_area(found)}\n\n{corpus_score.misses(found)}")
    if options.json:
        Path(options.json).write_text(json.dumps(_record(verdicts), indent=1))
    bars = corpus_score.checks(verdicts.get(TORSHRUN, ())) if options.bars else []
    print("\n".join(map(str, bars)))
    return int(any(not bar.passed for bar in bars))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--folder", type=Path, default=FOLDER, help="of the cases; default: tests/corpus")
    add("--only", action="append", metavar="PATTERN", help="cases like memory/* or *shape*")
    add("--launchers", type=_launchers, default=(TORSHRUN,), help="torshrun,torchrun")
    add("--hang-timeout", type=float, default=6.0, help="torshrun's, in seconds; default: 6")
    add("--quick", action="store_true", help="a few cases: shows that it works")
    add("--jobs", type=int, default=1, help="how many at a time; default: 1")
    add("--bars", action="store_true", help="status 1 unless torshrun passes")
    add("--json", metavar="FILE", help="write what was said")
    add("--show", action="store_true", help="print all that launchers and workers write")
    add("--list", action="store_true", help="print the cases, and run nothing")
    return parser.parse_args()


def _launchers(text: str) -> Sequence[str]:
    names = text.split(",")
    if not set(names) <= {TORSHRUN, TORCHRUN}:
        raise argparse.ArgumentTypeError(f"{TORSHRUN} or {TORCHRUN}, or both, not {text!r}")
    return names


def _matches(case: Case, patterns: Sequence[str] | None) -> bool:
    return not patterns or any(fnmatch.fnmatch(case.name, pattern) for pattern in patterns)


def _verdicts(
    chosen: Sequence[Case], launcher: str, options: argparse.Namespace
) -> Iterator[Verdict]:
    """Run the cases, and yield a verdict for each that ran, in the order of the cases."""
    with ThreadPoolExecutor(options.jobs) as executor:
        tries = executor.map(partial(_try, launcher, options.hang_timeout), chosen)
        for case, result in zip(chosen, tries, strict=True):
            if isinstance(result, str):
                print(f"{launcher}: {case.name}: {result}", flush=True)
                continue
            verdict = Verdict(case, result.hung, finding(launcher, result))
            _tell(launcher, verdict, result, options.show)
            yield verdict


def _try(launcher: str, hang_timeout: float, case: Case) -> Run | str:
    """Return the run of a case, or the reason why it was not run."""
    if launcher == TORCHRUN and not case.torchrun:
        return "not applicable"
    try:
        return run(case, launcher, hang_timeout)
    except UnavailableError as error:
        return f"not run: {error}"


def _tell(launcher: str, verdict: Verdict, result: Run, show: bool) -> None:
    marks = [getattr(verdict, name) for name in ("culprit", "kind", "hint")]
    shown = " ".join(
        name if mark else name.upper() + "?"
        for name, mark in zip(("culprit", "kind", "hint"), marks, strict=True)
    )
    print(f"{launcher}: {verdict.case.name}: {shown} ({result.seconds:.1f} s)", flush=True)
    if show:
        print("\n".join(f"[node {n}] {said.stderr}" for n, said in enumerate(result.nodes)))


def _record(verdicts: dict[str, list[Verdict]]) -> dict[str, list[dict[str, object]]]:
    return {name: [_entry(verdict) for verdict in found] for name, found in verdicts.items()}


def _entry(verdict: Verdict) -> dict[str, object]:
    found = verdict.finding
    return {
        "case": verdict.case.name,
        "truth": corpus_score.truth(verdict.case),
        "said": str(found),
        "certainty": found.certainty,
        "hung": verdict.hung,
        "culprit": verdict.culprit,
        "kind": verdict.kind,
        "hints_missing": verdict.missing,
        "text": found.text,
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
