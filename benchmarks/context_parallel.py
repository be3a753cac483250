"""Measures attention over parts of sequences.

    torshrun --nproc-per-node 2 benchmarks/context_parallel.py

Times forward and backward of causal attention by each method, with every rank on one thread, and by
one process on one thread that has the whole sequence while the others sleep. The ring is also timed
with a window of an eighth of the sequence, outside of which tokens do not attend. torch's own
context parallelism is tried on the same tensors over Gloo, and its time or error is printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional

import torsh_runtime as tr

sys.path.append(str(Path(__file__).resolve().parents[1]))
from benchmarks import bars, table
from benchmarks.bars import Check
from benchmarks.session import positive
from benchmarks.timing import typical

METHODS = ("ring", "all_gather", "all_to_all")
WINDOW = "ring, window"
_LIMIT, _WINDOW_LIMIT = 0.57, 0.6
Step = Callable[[], torch.Tensor]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--tokens", type=positive, default=2048, help="of the whole sequence; default: 2048")
    add("--heads", type=positive, default=8, help="default: 8")
    add("--head-dim", type=positive, default=64, help="default: 64")
    add("--rounds", type=positive, default=7, help="interleaved; default: 7")
    add("--steps", type=positive, default=5, help="of each in a round; default: 5")
    add("--quick", action="store_true", help="a short sequence in one round: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    if options.quick:
        options.tokens, options.rounds, options.steps = 64, 1, 1
    return options


def step(attention: Callable[..., torch.Tensor], parts: Sequence[torch.Tensor]) -> Step:
    """Return a function that does a forward and a backward pass.

    parts: query, key, value and the gradient of the result.
    """

    def run() -> torch.Tensor:
        leaves = [each.detach().requires_grad_() for each in parts[:3]]
        result = attention(*leaves)
        result.backward(parts[3])
        return result.detach()

    return run


def steps(whole: Sequence[torch.Tensor]) -> dict[str, Step]:
    """Return the steps to measure by name. "one process" is for rank 0."""
    world = tr.group.WORLD
    parts = [tr.context_shard(each.transpose(1, 2), world).transpose(1, 2) for each in whole]
    found = {
        method: step(lambda *each, m=method: tr.context_attention(*each, world, method=m), parts)
        for method in METHODS
    }
    window = whole[0].shape[2] // 8
    found[WINDOW] = step(lambda *each: tr.context_attention(*each, world, window=window), parts)
    return {
        "one process": step(
            lambda *each: functional.scaled_dot_product_attention(*each, is_causal=True), whole
        )
    } | found


def check_results(todo: dict[str, Step]) -> None:
    expected = todo["one process"]()
    for method in METHODS:
        found = tr.context_gather(todo[method](), tr.group.WORLD, dim=2)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def seconds(name: str, run: Step, count: int) -> float:
    """Return the seconds of one step: the slowest rank's median."""
    tr.barrier()
    own = torch.zeros(1, dtype=torch.float64)
    if name != "one process" or tr.get_rank() == 0:
        run()
        own[0] = typical(run, count)
    tr.all_reduce(own, tr.ReduceOp.MAX)
    return float(own)


def torchs(whole: Sequence[torch.Tensor]) -> str:
    """Return the time of torch's context parallelism on the same tensors, or its error."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    dist.init_process_group("gloo")
    try:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
        buffers = [each.clone() for each in whole]
        with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * len(buffers)):
            start = time.perf_counter()
            step(
                lambda *each: functional.scaled_dot_product_attention(*each, is_causal=True),
                buffers,
            )()
            return f"{(time.perf_counter() - start) * 1e3:.1f} ms"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    finally:
        dist.destroy_process_group()


def report(times: dict[str, list[float]], options: argparse.Namespace) -> list[Check]:
    """Print the table, and return the checks."""
    alone, rows, checks = times["one process"], [], []
    for name, each in times.items():
        ratio = statistics.median(a / b for a, b in zip(each, alone, strict=True))
        rows.append([name, f"{statistics.median(each) * 1e3:.1f}", f"{ratio:.3f}"])
        if name == "ring":
            what = f"{options.tokens} tokens, {tr.get_world_size()} ranks: ring / one process"
            checks.append(Check(what, ratio, _LIMIT, True, "zigzag ring"))
    pairs = zip(times[WINDOW], times["ring"], strict=True)
    saved = statistics.median(a / b for a, b in pairs)
    what = f"a window of {options.tokens // 8} of {options.tokens} tokens / none"
    checks.append(Check(what, saved, _WINDOW_LIMIT, True, "work that a window saves"))
    print(table.render(["attention", "ms", "of one process"], rows))
    return checks


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(1)
    tr.init_process_group()
    torch.manual_seed(0)
    shape = (1, options.tokens, options.heads, options.head_dim)
    whole = [torch.randn(shape).transpose(1, 2) for _ in range(4)]  # laid out as by projections
    todo = steps(whole)
    check_results(todo)
    times: dict[str, list[float]] = {name: [] for name in todo}
    for _ in range(options.rounds):
        for name, run in todo.items():
            times[name].append(seconds(name, run, options.steps))
    refusal = torchs(whole)
    checks: list[Check] = []
    if tr.get_rank() == 0:
        checks = report(times, options)
        print(f"torch's context_parallel on gloo: {refusal}")
        if options.bars:
            print("\n" + bars.summary(checks))
    is_missed = options.bars and tr.get_rank() == 0 and not bars.all_pass(checks)
    tr.destroy_process_group()
    return int(is_missed)


if __name__ == "__main__":
    raise SystemExit(main())
