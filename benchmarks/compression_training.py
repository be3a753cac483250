"""Measures the effect of compressed gradients on training.

    torshrun --nproc-per-node 2 benchmarks/compression_training.py --bars

Trains the digits' classifier and a small character GPT, both in torsh_runtime.nn, from the same
initial values, with dense gradients and with each compressor. The optimizer is SGD with momentum,
and the rate rises and then falls with a cosine. Each compressor is used as docs/compression.md
advises: top-k and 1 bit with momentum before them, PowerSGD's matrices in half precision.

Prints the validation loss as a multiple of the dense run's, and the bytes that a rank sent in the
whole run as a share of the dense run's. Compressed training may need more steps to reach the same
loss: each compressor but int8 trains for as many steps as the dense run, and then again for 1.5 or
2 times as many.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]
sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))

import gpt
import train as digits
import train_gpt

import torsh_runtime as tr
from benchmarks import bars, table
from benchmarks.bars import Check
from benchmarks.session import several
from torsh_runtime import compression, nn, optim
from torsh_runtime.nn import functional as F  # noqa: N812

_MOMENTUM = 0.9
_NEAR = 1.01


@dataclass(frozen=True)
class Recipe:
    """Describes the use of a compressor."""

    make: Callable[[int, float | None], compression.Compressor]
    """Function of the number of steps and the norm to which gradients are clipped."""
    bytes: float
    """The bar: largest share of the dense run's bytes."""
    more: float = 1.5
    """Number of steps as a multiple of the dense run's, in the run for which the bars hold."""


def _after_momentum(
    compressor: compression.Compressor, clip: float | None, **options: Any
) -> compression.Compressor:
    return compression.MomentumCorrection(compressor, _MOMENTUM, clip_norm=clip, **options)


RECIPES: Mapping[str, Recipe] = {
    "topk:0.01": Recipe(
        lambda steps, clip: _after_momentum(
            compression.TopK(0.01), clip, warmup_steps=max(steps // 20, 1)
        ),
        bytes=0.05,
        more=2,
    ),
    "powersgd:4": Recipe(lambda *_: compression.PowerSGD(4, values="float16"), bytes=0.10),
    "int8": Recipe(lambda *_: compression.Int8(), bytes=0.27, more=1),
    "onebit": Recipe(lambda _, clip: _after_momentum(compression.OneBit(), clip), bytes=0.05),
}
Batch = Callable[[int, slice], tuple[Any, Any]]


class Digits:
    """Trains a classifier of handwritten digits."""

    rate, clip = 0.05, None

    def __init__(self, quick: bool) -> None:
        self.train_set, self.held_out = digits.load_data()
        self.steps, self.size = (4 if quick else 900), 64
        nn.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))

    def loss(self, model: Any, step: int, share: slice) -> Any:
        """Return the loss of a share of a batch."""
        inputs, targets = self.train_set
        picked = np.random.default_rng(step).integers(len(inputs), size=self.size)[share]
        return F.cross_entropy(model(nn.from_numpy(inputs[picked])), nn.from_numpy(targets[picked]))

    def validation(self) -> float:
        """Return the validation loss."""
        inputs, targets = map(nn.from_numpy, self.held_out)
        return float(F.cross_entropy(self.model(inputs), targets).item())


class Gpt:
    """Trains a character GPT on all but the last tenth of the standard library's text."""

    rate, clip = 0.1, 1.0

    def __init__(self, quick: bool) -> None:
        self.text = gpt.Text(gpt.standard_library(), 0)
        whole = self.text.data
        self.text.data, self.held_out = np.split(whole, [len(whole) * 9 // 10])
        self.steps, self.size, self.context = (2 if quick else 1500), 16, 64
        self.pieces = 4 if quick else 256
        nn.manual_seed(0)
        self.model = gpt.GPT(len(self.text.alphabet), self.context, 2, 4, 128)

    def loss(self, model: Any, step: int, share: slice) -> Any:
        """Return the loss of a share of a batch."""
        return self._loss(model, *self.text.batch(step, self.size, self.context, share))

    def validation(self) -> float:
        """Return the loss on pieces that are spread over the validation text."""
        starts = np.linspace(0, len(self.held_out) - self.context - 1, self.pieces).astype(int)
        pieces = self.held_out[starts[:, None] + np.arange(self.context + 1)]
        return float(self._loss(self.model, pieces[:, :-1], pieces[:, 1:]).item())

    def _loss(self, model: Any, inputs: Any, targets: Any) -> Any:
        scores = model(nn.from_numpy(np.ascontiguousarray(inputs)))
        return F.cross_entropy(scores.flatten(0, 1), nn.from_numpy(targets.reshape(-1)))


def train(task: Any, hook: compression.Compressor | None, steps: int) -> float:
    """Train, and return the validation loss."""
    has_momentum = isinstance(hook, compression.MomentumCorrection)
    model = tr.DistributedDataParallel(task.model, gradient_compression=hook)
    momentum = 0.0 if has_momentum else _MOMENTUM
    optimizer = optim.SGD(model.parameters(), lr=task.rate, momentum=momentum, weight_decay=1e-4)
    rates = optim.LambdaLR(optimizer, lambda step: train_gpt.rate(step, steps))
    share = slice(tr.get_rank(), None, tr.get_world_size())
    for step in range(steps):
        optimizer.zero_grad()
        task.loss(model, step, share).backward()
        if task.clip is not None and not has_momentum:
            optim.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
        rates.step()
    with nn.no_grad():
        return float(task.validation())


def _recipes(text: str) -> tuple[str, ...]:
    return several(text, tuple(RECIPES))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--compressors", type=_recipes, default=tuple(RECIPES))
    parser.add_argument("--quick", action="store_true", help="a few steps: shows that it works")
    parser.add_argument("--bars", action="store_true", help="exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    tr.init_process_group()
    rows, checks = [], []
    for kind in (Digits, Gpt):
        task = kind(options.quick)
        dense = train(task, None, task.steps)
        for name in options.compressors:
            recipe = RECIPES[name]
            for more in sorted({1, recipe.more}):
                task = kind(options.quick)
                steps = int(task.steps * more)
                hook = recipe.make(steps, task.clip)
                ratio = train(task, hook, steps) / dense
                sent = hook.stats().ratio * steps / task.steps
                numbers = [f"{steps}", f"{ratio:.4f}", f"{100 * sent:.2f} %"]
                rows.append([kind.__name__, name, *numbers])
            what = f"{kind.__name__}, {name}"
            checks.append(Check(what, ratio, _NEAR, True, "loss"))
            checks.append(Check(what, sent, recipe.bytes, True, "bytes"))
    first = tr.get_rank() == 0
    tr.destroy_process_group()
    if first:
        print(table.render(["model", "gradients", "steps", "loss / dense", "bytes"], rows))
        if options.bars:
            print("\n" + bars.summary(checks))
    return 1 if options.bars and not bars.all_pass(checks) else 0


if __name__ == "__main__":
    raise SystemExit(main())
