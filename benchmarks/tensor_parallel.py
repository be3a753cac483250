"""Compares tensor parallel training steps of torch models with torch's own tensor parallelism.

    python benchmarks/tensor_parallel.py --help

Two blocks of a transformer are cut over the ranks by `tr.parallelize` ("ours") and by torch's
parallelize_module on Gloo, as users run it and with the allocator tuned as torsh tunes it. They are
also compared with a rank's parts, without communication ("bare"), and with the whole in one process
with as many threads as ranks ("one").
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import session
from benchmarks.bars import Check, of_row
from benchmarks.peers import GLOO, HERE, SPAWN, Peer
from benchmarks.processes import interrupt_on_term
from benchmarks.rounds import Rounds
from benchmarks.samples import Case, Row, Sample
from benchmarks.table import step_times
from benchmarks.torch_steps import AS_FOUND, BARE, OWN, TUNED, compare_losses

ONE = "one"
_WIDTH, _DEPTH = 512, 2
_RATIOS = {
    "ours/gloo": (OWN, AS_FOUND),
    "ours/gloo tuned": (OWN, f"{AS_FOUND} tuned"),
    "ours/bare": (OWN, BARE),
    "ours/one": (OWN, ONE),
}
_BARS: Mapping[int, Mapping[str, float]] = {
    256: {"ours/gloo": 0.6, "ours/bare": 1.12},
    16: {"ours/gloo": 0.3, "ours/bare": 1.2},
}
"""Largest ratios by number of tokens."""
_WORKER = HERE / "tensor_parallel_worker.py"
_ITERATIONS = (3, 1000)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--ranks", type=session.positive, default=2, help="default: 2")
    add("--here", action="store_true", help="use this interpreter's own torch")
    session.add_options(parser, seconds=4.0)
    return session.with_defaults(parser.parse_args(arguments))


def contenders(here: bool, quick: bool = False) -> list[Peer]:
    """Return ours, torch's untuned and tuned, and those without communication, tuned like ours.

    The tuned one of torch is left out if `quick`.
    """
    base = replace(GLOO, environment=GLOO.name, requirements=() if here else GLOO.requirements)
    tuned = {**base.env, **TUNED}
    return [
        replace(base, name=OWN),
        replace(base, name=AS_FOUND),
        *([] if quick else [replace(base, name=f"{AS_FOUND} tuned", env=tuned)]),
        replace(base, name=BARE, env=tuned),
        replace(base, name=ONE, env=tuned),
    ]


def work(ranks: int, quick: bool) -> session.Work:
    """Return one case for each number of tokens, or only the first, with the size of parameters."""
    nbytes = 4 * _DEPTH * _WIDTH * (12 * _WIDTH + 13)
    cases = [*_BARS][:1] if quick else _BARS
    return [(Case(f"{tokens} tokens", ranks=ranks), (nbytes,)) for tokens in cases]


def start(peer: Peer, case: Case, plan: Path) -> Sequence[str]:
    """Return the command for all ranks of one contender."""
    return [peer.python, str(SPAWN), str(case.ranks), str(_WORKER), str(plan)]


def details(case: Case, quick: bool) -> dict[str, object]:
    """Return further entries of the worker's plan: the model, and the location of torsh_runtime."""
    width = 64 * case.ranks if quick else _WIDTH
    shape = {"width": width, "depth": _DEPTH, "tokens": _tokens(case)}
    return {"shape": shape, "site": sysconfig.get_paths()["purelib"]}


def _tokens(case: Case) -> int:
    return int(case.operation.split()[0])


def report(rows: Sequence[Row], samples: Sequence[Sample], names: Sequence[str]) -> list[Check]:
    """Print the step times, and return the checks.

    Raises WrongResultError if the losses are not those of the whole model.
    """
    compare_losses(samples)
    print("\nms of one step: the worst rank's median, over the runs")
    print(step_times("step of", rows, names, _RATIOS, 2))
    print(
        "bare: the same parts, without communication; one: the whole, with a thread for each rank"
    )
    return [check for row in rows for check in checks(row)]


def checks(row: Row) -> list[Check]:
    """Return the checks of this row, with both as users run them."""
    name = row.case.operation
    return [
        of_row(name, row, bar, row.ratio(*_RATIOS[bar]), limit, at_most=True)
        for bar, limit in _BARS[_tokens(row.case)].items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    peers, versions = session.available(contenders(options.here, options.quick))
    names = [peer.name for peer in peers]
    rounds = Rounds(options, peers, start, _ITERATIONS, lambda case: details(case, options.quick))
    return session.conduct(
        rounds,
        work(options.ranks, options.quick),
        lambda rows: report(rows, rounds.samples, names),
        versions,
    )


if __name__ == "__main__":
    raise SystemExit(main())
