"""Compares training steps of torch on torsh's backend with Gloo.

    python benchmarks/torch_steps.py --help

The scripts are ordinary ones with DistributedDataParallel and FSDP2. They differ in the backend's
name alone, or ("unedited") in nothing, as under `torshrun --torch-backend torsh`, or ("ours") the
wrapper is torsh_runtime's own, or ("horovod") the optimizer is one of torsh's Horovod interface.
There are two ranks with one thread each. The backends run as users find them, where torsh tunes
glibc's allocator by itself and Gloo does not, and with both tuned. The bare model, which does not
communicate, is also measured.

DDP is 10 Linear layers, whose gradients are large compared with their computing; GPT a small
transformer with much computing; "alone" the layers of DDP on one rank.
"""

from __future__ import annotations

import argparse
import math
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import session
from benchmarks.bars import Check, of_row
from benchmarks.peers import GLOO, HERE, SPAWN, Peer
from benchmarks.processes import interrupt_on_term
from benchmarks.rounds import Rounds, WrongResultError
from benchmarks.samples import Case, Row, Sample
from benchmarks.table import step_times

TUNED = {
    "MALLOC_MMAP_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(256 * 2**20),
}
"""Variables that keep freed memory in the process, as torsh does by mallopt."""
OWN, TORSH, UNEDITED, BARE, AS_FOUND = "ours", "torsh", "unedited", "bare", "gloo"
HOROVOD = "horovod"
_RATIOS = {
    "torsh/gloo": (TORSH, AS_FOUND),
    "unedited/gloo": (UNEDITED, AS_FOUND),
    "torsh/gloo tuned": (TORSH, f"{AS_FOUND} tuned"),
    "ours/gloo": (OWN, AS_FOUND),
    "ours/bare": (OWN, BARE),
    "horovod/ours": (HOROVOD, OWN),
    "ours/gloo tuned": (OWN, f"{AS_FOUND} tuned"),
    "ours/bare tuned": (OWN, f"{BARE} tuned"),
}
_WORKER = HERE / "torch_worker.py"
_ITERATIONS = (3, 200)
_NEAR_ENOUGH = 1e-4
"""Relative tolerance of the losses after a few steps, as sums may be in a different order."""


@dataclass(frozen=True, slots=True)
class Model:
    """Describes layers of one width: Linear ones, or of a transformer on sequences of 64."""

    width: int
    depth: int
    batch: int
    limits: Mapping[str, float]
    """Largest ratios of step times."""
    ranks: int | None = None
    """Number of ranks; None: that of the command line."""

    def nbytes(self, name: str) -> int:
        """Return the bytes of its parameters."""
        layer = self.width * (12 * self.width + 13 if name == "GPT" else self.width + 1)
        return 4 * self.depth * layer


MODELS: Mapping[str, Model] = {
    "DDP": Model(
        width=1600,
        depth=10,
        batch=16,
        limits={
            "torsh/gloo": 0.58,
            "unedited/gloo": 0.58,
            "ours/gloo": 0.5,
            "ours/bare": 1.15,
            "horovod/ours": 1.1,
        },
    ),
    "GPT": Model(width=256, depth=4, batch=8, limits={"ours/gloo": 1.0, "horovod/ours": 1.1}),
    "alone": Model(width=1600, depth=10, batch=16, limits={"ours/bare tuned": 1.03}, ranks=1),
    "FSDP2": Model(
        width=3200,
        depth=10,
        batch=16,
        limits={"torsh/gloo": 0.25, "unedited/gloo": 0.25, "ours/gloo": 0.18},
    ),
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--models", type=_models, default=tuple(MODELS), help=f"default: {','.join(MODELS)}")
    add("--ranks", type=session.positive, default=2, help="default: 2")
    add("--here", action="store_true", help="use this interpreter's own torch")
    session.add_options(parser, seconds=4.0)
    return session.with_defaults(parser.parse_args(arguments))


def _models(text: str) -> tuple[str, ...]:
    return session.several(text, tuple(MODELS))


def contenders(here: bool, quick: bool = False) -> list[Peer]:
    """Return torsh, Gloo and no communication; the last two also tuned. `quick`: torsh and Gloo.

    They differ only in their environment.
    """
    base = replace(GLOO, environment=GLOO.name, requirements=() if here else GLOO.requirements)
    torsh = replace(base, name=TORSH)
    own, horovod = replace(base, name=OWN), replace(base, name=HOROVOD)
    unedited = replace(base, name=UNEDITED, env={**base.env, "TORSH_TORCH_BACKEND": "torsh"})
    others = [replace(base, name=name) for name in (AS_FOUND, BARE)]
    if quick:
        return [own, horovod, torsh, unedited, others[0]]
    tuned = [replace(peer, name=f"{peer.name} tuned", env={**peer.env, **TUNED}) for peer in others]
    return [own, horovod, torsh, unedited, *others, *tuned]


def work(names: Sequence[str], ranks: int) -> session.Work:
    """Return one case for each model, with the size of its parameters."""
    models = [(name, MODELS[name]) for name in names]
    return [
        (Case(name, ranks=model.ranks or ranks), (model.nbytes(name),)) for name, model in models
    ]


def start(peer: Peer, case: Case, plan: Path) -> Sequence[str]:
    """Return the command for all ranks of one contender."""
    return [peer.python, str(SPAWN), str(case.ranks), str(_WORKER), str(plan)]


def details(case: Case, quick: bool) -> dict[str, object]:
    """Return further entries of torch_worker.py's plan: the model, and torsh_runtime's location."""
    model = MODELS[case.operation]
    shape = {"width": model.width, "depth": model.depth, "batch": model.batch}
    if quick:
        shape |= {"width": 128, "depth": 3}
    return {"shape": shape, "site": sysconfig.get_paths()["purelib"]}


def report(rows: Sequence[Row], samples: Sequence[Sample], names: Sequence[str]) -> list[Check]:
    """Print the step times, and return the checks.

    Raises WrongResultError if torsh's losses differ from Gloo's.
    """
    compare_losses(samples)
    print("\nms of one step: the worst rank's median, over the runs")
    print(step_times("model", rows, names, _RATIOS, 1))
    print("torsh tunes the allocator by itself; tuned: the others with the same settings")
    return [check for row in rows for check in checks(row)]


def checks(row: Row) -> list[Check]:
    """Return the checks of this row, with both as users run them."""
    name = row.case.operation
    return [
        of_row(name, row, bar, row.ratio(*_RATIOS[bar]), limit, at_most=True)
        for bar, limit in MODELS[name].limits.items()
    ]


def compare_losses(samples: Sequence[Sample]) -> None:
    """Check that after the same steps each rank has the same loss on both backends.

    Raises WrongResultError otherwise.
    """
    known: dict[tuple[Case, int], Sequence[float]] = {}
    for sample in samples:
        if sample.library.startswith(BARE):
            continue
        for rank, figures in enumerate(sample.per_rank):
            losses = figures["losses"]
            expected = known.setdefault((sample.case, rank), losses)
            pairs = zip(losses, expected, strict=True)
            if not all(math.isclose(*pair, rel_tol=_NEAR_ENOUGH) for pair in pairs):
                raise WrongResultError(
                    f"{sample.case.operation}, {sample.library}, rank {rank}: losses {losses}, "
                    f"where another run had {expected}"
                )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    peers, versions = session.available(contenders(options.here, options.quick))
    names = [peer.name for peer in peers]
    rounds = Rounds(options, peers, start, _ITERATIONS, lambda case: details(case, options.quick))
    return session.conduct(
        rounds,
        work(options.models, options.ranks),
        lambda rows: report(rows, rounds.samples, names),
        versions,
    )


if __name__ == "__main__":
    raise SystemExit(main())
