"""Compares compiled tensor parallel layers with torch's own.

    python benchmarks/swiglu.py --help

Four layers x + down(silu(gate(n)) * up(n)), n = norm(x), as in Llama, have width 384, with 8/3 as
many features between, on 8 sequences of 256 tokens. They are cut over the ranks by `tr.parallelize`
("ours") and by torch's parallelize_module on Gloo, whose tensors are DTensors ("gloo"); plain, and
each layer compiled by torch.compile with Inductor, in one graph. They are also compared with a
rank's parts, without communication ("bare"). Each step is a forward and a backward pass; ranks have
one thread each.
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
from benchmarks.peers import CACHE, GLOO, Peer
from benchmarks.processes import interrupt_on_term
from benchmarks.rounds import Rounds
from benchmarks.samples import Case, Row, Sample
from benchmarks.table import MISSING, ratio, render
from benchmarks.tensor_parallel import start
from benchmarks.torch_steps import AS_FOUND, BARE, OWN, TUNED, compare_losses

_WIDTH, _DEPTH, _ROWS, _TOKENS = 384, 4, 8, 256
_COMPILED = "compiled"
_RATIOS = {
    "ours/gloo": (OWN, AS_FOUND),
    "ours/gloo tuned": (OWN, f"{AS_FOUND} tuned"),
    "compiled": (f"{OWN} {_COMPILED}", f"{AS_FOUND} {_COMPILED}"),
    "compiled, tuned": (f"{OWN} {_COMPILED}", f"{AS_FOUND} {_COMPILED} tuned"),
    "ours compiled/ours": (f"{OWN} {_COMPILED}", OWN),
    "ours/bare": (OWN, BARE),
    "ours compiled/bare compiled": (f"{OWN} {_COMPILED}", f"{BARE} {_COMPILED}"),
}
_BARS: Mapping[str, float] = {"ours/gloo": 0.7, "compiled": 0.65}
_ITERATIONS = (3, 1000)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--ranks", type=session.positive, default=2, help="default: 2")
    add("--here", action="store_true", help="use this interpreter's own torch")
    session.add_options(parser, seconds=4.0)
    parser.set_defaults(timeout=600.0)  # a compiler is slow on a busy machine
    return session.with_defaults(parser.parse_args(arguments))


def contenders(here: bool) -> list[Peer]:
    """Return ours and torch's, plain and compiled; torch's also with the allocator tuned."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor")}
    base = replace(GLOO, environment=GLOO.name, requirements=() if here else GLOO.requirements)
    plain, tuned = {**base.env, **cache}, {**base.env, **cache, **TUNED}
    return [
        replace(
            base, name=name, env=tuned if name.startswith(BARE) or name.endswith("tuned") else plain
        )
        for name in dict.fromkeys(name for pair in _RATIOS.values() for name in pair)
    ]


def work(ranks: int) -> session.Work:
    """Return the only case, with the size of the parameters."""
    nbytes = 4 * _DEPTH * _WIDTH * (8 * _WIDTH + 1)
    return [(Case("SwiGLU", ranks=ranks), (nbytes,))]


def details(quick: bool) -> dict[str, object]:
    """Return further entries of the worker's plan: the model, and the location of torsh_runtime."""
    rows = 1 if quick else _ROWS
    shape = {"width": _WIDTH, "depth": _DEPTH, "rows": rows, "tokens": _TOKENS}
    return {"shape": {**shape, "model": "SwiGLU"}, "site": sysconfig.get_paths()["purelib"]}


def report(rows: Sequence[Row], samples: Sequence[Sample], names: Sequence[str]) -> list[Check]:
    """Print the step times, and return the checks.

    Raises WrongResultError if the losses are not those of the whole model.
    """
    compare_losses(samples)
    print("\nms of one forward and backward pass: the worst rank's median, over the runs")
    for row in rows:
        cells = [row.cells.get(name) for name in names]
        times = [f"{cell.median_us / 1e3:.2f}" if cell else MISSING for cell in cells]
        runs = [str(cell.runs) if cell else "0" for cell in cells]
        print(render(["contender", "ms", "runs"], [*zip(names, times, runs, strict=True)]))
        found = [(name, ratio(row.ratio(*pair))) for name, pair in _RATIOS.items()]
        print(render(["ratio", row.state], found))
    return [check for row in rows for check in checks(row)]


def checks(row: Row) -> list[Check]:
    """Return the checks of this row, with both as users run them."""
    name = row.case.operation
    return [
        of_row(name, row, bar, row.ratio(*_RATIOS[bar]), limit, at_most=True)
        for bar, limit in _BARS.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    peers, versions = session.available(contenders(options.here))
    names = [peer.name for peer in peers]
    rounds = Rounds(options, peers, start, _ITERATIONS, lambda case: details(options.quick))
    return session.conduct(
        rounds,
        work(options.ranks),
        lambda rows: report(rows, rounds.samples, names),
        versions,
    )


if __name__ == "__main__":
    raise SystemExit(main())
