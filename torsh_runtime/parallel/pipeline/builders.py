"""Builds the published schedules. All functions are pure: sizes in, a table out.

Ranks have one stage each, or several: in a loop (stage s on rank s mod ranks) or, for ZBV, in a V.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.pipeline.table import Kind, Row, Step, Table

F, B, I, W = Kind.FORWARD, Kind.BACKWARD, Kind.INPUT, Kind.WEIGHT  # noqa: E741


def loop(num_stages: int, ranks: int) -> tuple[int, ...]:
    """Return the rank of each stage, in a loop over the ranks."""
    return tuple(stage % ranks for stage in range(num_stages))


def vee(num_stages: int, ranks: int) -> tuple[int, ...]:
    """Return the rank of each stage, in a V: the first rank has the last stage, too."""
    there_and_back = [*range(ranks), *reversed(range(ranks))]
    return tuple(there_and_back[stage % (2 * ranks)] for stage in range(num_stages))


def forward_only(placement: Sequence[int], num_microbatches: int) -> Table:
    """Build a table for evaluation: each microbatch passes through as soon as it can."""
    return Table(_waves(placement, num_microbatches, F), "forward only")


def gpipe(placement: Sequence[int], num_microbatches: int) -> Table:
    """Build a table of all forward passes, then all backward passes.

    (Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
    2019.) With equal stages the bubble is (p - 1) / (m + p - 1) of the time; all m microbatches are
    alive at once.
    """
    forward = _waves(placement, num_microbatches, F)
    backward = _waves(placement, num_microbatches, B)
    return Table(tuple(a + b for a, b in zip(forward, backward, strict=True)), "gpipe")


def one_f_one_b(ranks: int, num_microbatches: int, ahead: int = 0) -> Table:
    """Build 1F1B: as soon as it can, a rank alternates forward and backward passes.

    (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021: PipeDream-flush.)
    The bubble is GPipe's; rank r has at most p - r microbatches alive.

    ahead: number of additional forward passes, for each stage that follows, before the first
    backward pass. They fill the time in which gradients are on their way over slow links.
    """
    _check(ranks, num_microbatches)

    def row(rank: int) -> Row:
        warm = min((1 + ahead) * (ranks - rank - 1), num_microbatches)
        forward = [Step(rank, F, m) for m in range(num_microbatches)]
        backward = [Step(rank, B, m) for m in range(num_microbatches)]
        return tuple(_taking_turns(forward, backward, warm))

    return Table(tuple(map(row, range(ranks))), _named("1f1b", ahead))


def interleaved(ranks: int, num_microbatches: int, per_rank: int) -> Table:
    """Build 1F1B with several stages per rank, in a loop.

    (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", 2021.) The bubble is `per_rank` times smaller. Raises ConfigError unless
    microbatches can be divided into equal rounds of at least one per rank.
    """
    _check(ranks, num_microbatches)
    rounds = max(1, num_microbatches // ranks)
    if num_microbatches % rounds:
        raise ConfigError(
            f"interleaved: {num_microbatches} microbatches cannot be dealt in {rounds} equal "
            f"rounds for {ranks} ranks: take a multiple of {ranks}"
        )
    each = num_microbatches // rounds

    def order(kind: Kind, rank: int) -> Iterator[Step]:
        chunks = range(per_rank) if kind is F else reversed(range(per_rank))
        stages = [chunk * ranks + rank for chunk in chunks]
        for start in range(0, num_microbatches, each):
            for stage in stages:
                yield from (Step(stage, kind, start + at) for at in range(each))

    def row(rank: int) -> Row:
        warm = min((per_rank - 1) * each + 2 * (ranks - 1 - rank), per_rank * num_microbatches)
        if per_rank == 1:
            warm = min(ranks - 1 - rank, num_microbatches)
        return tuple(_taking_turns([*order(F, rank)], [*order(B, rank)], warm))

    return Table(tuple(map(row, range(ranks))), "interleaved")


def zb_h1(ranks: int, num_microbatches: int, ahead: int = 0) -> Table:
    """Build 1F1B whose weight gradients fill the idle time at the end.

    (Qi et al., "Zero Bubble Pipeline Parallelism", 2024.) With equal stages the bubble is (p - 1)
    (F + I - W). No rank has more than p microbatches alive. In the paper each W of rank r comes r
    microbatches late. Here the first r come last, and all others directly after their I, whose
    operands are in the caches then: the times and the memory are the same. ahead: as for
    one_f_one_b.
    """
    _check(ranks, num_microbatches)

    def row(rank: int) -> Row:
        warm = min((1 + ahead) * (ranks - rank - 1), num_microbatches)
        steps = [Step(rank, F, m) for m in range(warm)]
        for m in range(num_microbatches):
            if warm + m < num_microbatches:
                steps.append(Step(rank, F, warm + m))
            steps.append(Step(rank, I, m))
            if m >= rank:
                steps.append(Step(rank, W, m))
        first = range(min(rank, num_microbatches))
        return (*steps, *(Step(rank, W, m) for m in first))

    return Table(tuple(map(row, range(ranks))), _named("zb-h1", ahead))


def zbv(ranks: int, num_microbatches: int) -> Table:
    """Build ZBV: two stages on each rank, in a V (Qi et al., section 6).

    Where F, I and W take equally long, no rank idles between its first and last step once there are
    2 p - 1 microbatches, and none has more alive than 1F1B's first rank.
    """
    _check(ranks, num_microbatches)
    return Table(
        tuple(tuple(_zbv_row(ranks, num_microbatches, rank)) for rank in range(ranks)), "zbv"
    )


def _zbv_row(ranks: int, num_microbatches: int, rank: int) -> Iterator[Step]:
    """Yield a rank's steps for as many microbatches as fill the pipeline, without those beyond."""
    padded = max(num_microbatches, 2 * ranks - 1)
    down, up = rank, 2 * ranks - 1 - rank
    there, back = [(down, F)], [(up, F), (up, I), (up, W)]
    order = there * (2 * (ranks - rank) - 1) + [(up, F), (down, F)] * rank + back * (ranks - rank)
    for number in range(ranks, padded):
        order += there * (number <= padded - ranks + rank) + [(down, I), (down, W)] + back
    order += [(down, I), (up, I)] * rank + [(down, I), (down, W)] * (ranks - rank)
    order += [(up, W)] * rank + [(down, W)] * rank
    done: Counter[tuple[int, Kind]] = Counter()
    waiting: dict[int, list[int]] = {down: [], up: []}
    for stage, kind in order:
        number = done[stage, kind]
        done[stage, kind] += 1
        if number >= num_microbatches:
            continue
        if kind is I:
            waiting[stage].append(number)
        # The newest first, since its operands are in the caches.
        yield Step(stage, kind, waiting[stage].pop() if kind is W else number)


def named(name: str, placement: Sequence[int], num_microbatches: int) -> Table:
    """Build the schedule of this name for stages on these ranks.

    "1f1b+1" has one forward pass ahead. Raises ConfigError for an unknown name, and for one that
    does not fit the placement.
    """
    base, _, ahead = name.partition("+")
    if base not in NAMES or not (ahead.isdigit() or not ahead):
        raise ConfigError(f"no schedule is named {name!r}; there are {', '.join(NAMES)}, auto")
    ranks, stages = 1 + max(placement), len(placement)
    wanted, build = NAMES[base](ranks, stages // ranks, int(ahead or 0))
    if wanted is not None and stages % ranks:
        raise ConfigError(
            f"{name} is for as many stages on each rank, and {stages} stages do not make that on "
            f"{ranks} ranks: cut the model into a multiple of {ranks}"
        )
    if wanted is not None and tuple(placement) != wanted(stages, ranks):
        raise ConfigError(
            f"{name} is for stages on ranks {wanted(stages, ranks)}, and they are on "
            f"{tuple(placement)}: leave placement out, or choose another schedule"
        )
    if build is None:
        plain = {"gpipe": gpipe, "forward-only": forward_only}[base]
        return plain(placement, num_microbatches)
    if base in ("1f1b", "zb-h1") and stages != ranks:
        raise ConfigError(f"{name} has one stage per rank, and there are {stages} on {ranks}")
    if base == "zbv" and stages != 2 * ranks:
        raise ConfigError(f"zbv has two stages per rank, and there are {stages} on {ranks}")
    return build(num_microbatches)


_Place = Callable[[int, int], tuple[int, ...]]
_Build = Callable[[int], Table]

NAMES: dict[str, Callable[[int, int, int], tuple[_Place | None, _Build | None]]] = {
    "gpipe": lambda ranks, per_rank, ahead: (None, None),
    "1f1b": lambda ranks, per_rank, ahead: (loop, partial(one_f_one_b, ranks, ahead=ahead)),
    "interleaved": lambda ranks, per_rank, ahead: (
        loop,
        partial(interleaved, ranks, per_rank=per_rank),
    ),
    "zb-h1": lambda ranks, per_rank, ahead: (loop, partial(zb_h1, ranks, ahead=ahead)),
    "zbv": lambda ranks, per_rank, ahead: (vee, partial(zbv, ranks)),
    "forward-only": lambda ranks, per_rank, ahead: (None, None),
}
"""Functions that return a schedule's placement (None: any) and its builder (None: by placement)."""


def _taking_turns(forward: Sequence[Step], backward: Sequence[Step], warm: int) -> Iterator[Step]:
    yield from forward[:warm]
    for a, b in zip(forward[warm:], backward, strict=False):
        yield a
        yield b
    yield from backward[len(forward) - warm :]


def _waves(placement: Sequence[int], num_microbatches: int, kind: Kind) -> tuple[Row, ...]:
    """Return steps of one kind in an order in which none waits for a later one."""
    stages = len(placement)
    _check(stages, num_microbatches)

    def wave(step: Step) -> tuple[int, int]:
        depth = step.stage if kind is F else stages - 1 - step.stage
        return (step.microbatch or 0) + depth, depth

    return tuple(
        tuple(
            sorted(
                (
                    Step(stage, kind, microbatch)
                    for stage in range(stages)
                    if placement[stage] == rank
                    for microbatch in range(num_microbatches)
                ),
                key=wave,
            )
        )
        for rank in range(1 + max(placement))
    )


def _check(stages: int, num_microbatches: int) -> None:
    if stages < 1 or num_microbatches < 1:
        raise ConfigError(
            f"a schedule of {stages} stages and {num_microbatches} microbatches: it takes at "
            f"least one of each"
        )


def _named(name: str, ahead: int) -> str:
    return f"{name}+{ahead}" if ahead else name
