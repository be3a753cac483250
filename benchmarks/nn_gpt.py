"""Compares training steps of torsh_runtime.nn with torch's.

    python benchmarks/nn_gpt.py --help

The model of examples/train_gpt.py and the same one in torch eager start with the same weights and
train on the same batches in one process, on one thread each, in turns of one step. So a disturbance
of the machine affects both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when numpy and torch are imported
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy
import torch
from torch.nn import functional as F  # noqa: N812

if not __package__:  # torsh_runtime is the installed one, not the source tree beside this folder
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]
sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))

import train_gpt

from benchmarks import bars, session
from benchmarks.bars import Check
from benchmarks.table import render

MOST_TIMES_TORCH = 1.5
MOST_LOSS_DIFFERENCE = 0.02
"""Largest difference of losses of one step, as rounding errors grow from step to step."""
_WARM_UP = 2


class Attention(torch.nn.Module):
    """Computes attention in torch, with the parameters of its MultiheadAttention."""

    def __init__(self, embed: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = torch.nn.Parameter(torch.empty(3 * embed, embed))
        self.in_proj_bias = torch.nn.Parameter(torch.empty(3 * embed))
        self.out_proj = torch.nn.Linear(embed, embed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        apart = packed.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*apart.unbind(0), is_causal=True)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class Block(torch.nn.Module):
    """Implements torsh_runtime.nn.TransformerBlock in torch."""

    def __init__(self, embed: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(embed), torch.nn.LayerNorm(embed)
        self.attention = Attention(embed, heads)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(embed, 4 * embed),
            torch.nn.GELU("tanh"),
            torch.nn.Linear(4 * embed, embed),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(torch.nn.Module):
    """Implements gpt.GPT in torch."""

    def __init__(self, vocabulary: int, options: argparse.Namespace) -> None:
        super().__init__()
        embed = options.embed
        self.tokens = torch.nn.Embedding(vocabulary, embed)
        self.positions = torch.nn.Embedding(options.context, embed)
        blocks = [Block(embed, options.heads) for _ in range(options.layers)]
        self.blocks = torch.nn.Sequential(*blocks)
        self.norm = torch.nn.LayerNorm(embed)
        self.head = torch.nn.Linear(embed, vocabulary, bias=False)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        x = self.tokens(characters) + self.positions(torch.arange(characters.shape[-1]))
        return self.head(self.norm(self.blocks(x)))


class TorchTraining:
    """Implements train_gpt.Training in torch, from the same weights and on the same batches."""

    def __init__(self, ours: train_gpt.Training) -> None:
        self.options = ours.options
        self.text = ours.text
        self.model = GPT(len(ours.text.alphabet), ours.options)
        state = {name: torch.tensor(array) for name, array in ours.model.state_dict().items()}
        self.model.load_state_dict(state)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=ours.options.lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: train_gpt.rate(step, ours.options.steps)
        )
        self.losses: list[float] = []

    def step(self) -> None:
        inputs, targets = self.text.batch(
            len(self.losses), self.options.batch, self.options.context
        )
        scores = self.model(torch.from_numpy(inputs))
        loss = F.cross_entropy(scores.flatten(0, 1), torch.from_numpy(targets.reshape(-1)))
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())


@dataclass(frozen=True, slots=True)
class Round:
    """Holds the medians of one step of both, in ms, over some steps."""

    ours: float
    torch: float

    @property
    def ratio(self) -> float:
        return self.ours / self.torch


def measure(trainings: Sequence[Any], steps: int) -> Round:
    """Do one round of `steps` steps of each, in turns."""
    times: list[list[float]] = [[], []]
    for _ in range(steps):
        for training, own in zip(trainings, times, strict=True):
            own.append(_ms(training.step))
    return Round(*map(statistics.median, times))


def _ms(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1e3


def loss_difference(trainings: Sequence[Any]) -> float:
    """Return the largest difference between the two loss curves."""
    pairs = zip(*(training.losses for training in trainings), strict=False)  # if interrupted
    return max(abs(ours - theirs) for ours, theirs in pairs)


def checks(rounds: Sequence[Round], difference: float) -> list[Check]:
    """Return the checks of the median ratio and of the loss curves."""
    ratio = statistics.median(each.ratio for each in rounds) if rounds else None
    return [
        Check("step time, times torch's", ratio, MOST_TIMES_TORCH, at_most=True, bar="nn"),
        Check("loss curves apart", difference, MOST_LOSS_DIFFERENCE, at_most=True, bar="nn"),
    ]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--rounds", type=session.positive, default=5, help="default: 5")
    add("--steps", type=session.positive, default=20, help="of each, per round; default: 20")
    add("--batch", type=session.positive, default=16)
    add("--context", type=session.positive, default=128)
    add("--layers", type=session.positive, default=4)
    add("--heads", type=session.positive, default=4)
    add("--embed", type=session.positive, default=128)
    add("--json", type=Path, metavar="FILE", help="write the figures and the machine's description")
    add("--quick", action="store_true", help="a small model, few steps: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.steps, options.batch = 1, 3, 2
        options.context, options.layers, options.embed = 16, 1, 16
    options.seed, options.lr, options.experts = 0, 1e-3, 0
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(1)
    training = argparse.Namespace(**vars(options) | {"steps": options.rounds * options.steps})
    ours = train_gpt.Training(training)
    trainings = (ours, TorchTraining(ours))
    rounds, interrupted = [], False
    try:
        measure(trainings, _WARM_UP)
        rounds.extend(measure(trainings, options.steps) for _ in range(options.rounds))
    except KeyboardInterrupt:
        interrupted = True
    return _report(options, rounds, loss_difference(trainings), interrupted)


def _report(
    options: argparse.Namespace, rounds: Sequence[Round], difference: float, interrupted: bool
) -> int:
    body = [[f"{r.ours:.1f}", f"{r.torch:.1f}", f"{r.ratio:.2f}"] for r in rounds]
    print("ms of one step: medians of each round\n" + render(["ours", "torch", "ours/torch"], body))
    found = checks(rounds, difference)
    for check in found:
        print(f"{check.what}: {check.value:.3g}" if check.value is not None else check.what)
    record = {
        "versions": {"numpy": numpy.__version__, "torch": torch.__version__},
        "rounds": [asdict(each) for each in rounds],
        "loss_difference": difference,
    }
    return bars.conclude(options, found, record, interrupted)


if __name__ == "__main__":
    raise SystemExit(main())
