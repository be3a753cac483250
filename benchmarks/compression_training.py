"""What compressed gradients do to training: a script for torshrun.

    torshrun --nproc-per-node 2 benchmarks/compression_training.py --bars

Trains the digits' classifier and a small character GPT, both in torsh_runtime.nn, from the same
first values on the same batches, with dense gradients and with each compressor. Printed are the
loss on data that was held out, as a multiple of the dense run's, and the bytes that a rank sent, as
a part of the dense run's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "examples"))

import train as digits
import train_gpt

import torsh_runtime as tr
from benchmarks import bars, table
from benchmarks.bars import Check
from torsh_runtime import compression, nn, optim
from torsh_runtime.nn import functional as F  # noqa: N812

BYTES = {"topk:0.01": 0.05, "powersgd:4": 0.10, "int8": 0.27, "onebit": 0.05}
_NEAR = 1.01
Batch = Callable[[int, slice], tuple[Any, Any]]


class Digits:
    """A classifier of handwritten digits."""

    rate = 0.05

    def __init__(self, quick: bool) -> None:
        self.train_set, self.held_out = digits.load_data()
        self.steps, self.size = (20 if quick else 900), 64
        nn.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))

    def loss(self, model: Any, step: int, share: slice) -> Any:
        """Of a share of a batch."""
        inputs, targets = self.train_set
        picked = np.random.default_rng(step).integers(len(inputs), size=self.size)[share]
        return F.cross_entropy(model(nn.from_numpy(inputs[picked])), nn.from_numpy(targets[picked]))

    def validation(self) -> float:
        """The loss on data that was held out."""
        inputs, targets = map(nn.from_numpy, self.held_out)
        return float(F.cross_entropy(self.model(inputs), targets).item())


class Gpt:
    """A character GPT, on the standard library but for its last tenth."""

    rate = 1e-3

    def __init__(self, quick: bool) -> None:
        self.text = train_gpt.Text(train_gpt.standard_library(), 0)
        whole = self.text.data
        self.text.data, self.held_out = np.split(whole, [len(whole) * 9 // 10])
        self.steps, self.size, self.context = (10 if quick else 600), 16, 64
        nn.manual_seed(0)
        self.model = train_gpt.GPT(len(self.text.alphabet), self.context, 2, 4, 128)

    def loss(self, model: Any, step: int, share: slice) -> Any:
        """Of a share of a batch."""
        return self._loss(model, *self.text.batch(step, self.size, self.context, share))

    def validation(self) -> float:
        """The loss on data that was held out."""
        pieces = self.held_out[: 65 * (self.context + 1)].reshape(65, -1)
        return float(self._loss(self.model, pieces[:, :-1], pieces[:, 1:]).item())

    def _loss(self, model: Any, inputs: Any, targets: Any) -> Any:
        scores = model(nn.from_numpy(np.ascontiguousarray(inputs)))
        return F.cross_entropy(scores.flatten(0, 1), nn.from_numpy(targets.reshape(-1)))


def train(task: Any, name: str) -> tuple[float, float]:
    """The loss on data that was held out, and the bytes sent as a part of the dense run's."""
    compressor = None if name == "dense" else compression.from_name(name)
    model = tr.DistributedDataParallel(task.model, gradient_compression=compressor)
    optimizer = optim.SGD(model.parameters(), lr=task.rate, momentum=0.9)
    if isinstance(task, Gpt):
        optimizer = optim.AdamW(model.parameters(), lr=task.rate)
    share = slice(tr.get_rank(), None, tr.get_world_size())
    for step in range(task.steps):
        optimizer.zero_grad()
        task.loss(model, step, share).backward()
        optimizer.step()
    with nn.no_grad():
        loss = task.validation()
    if compressor is None:
        return loss, 1.0
    return loss, compressor.stats().ratio


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--compressors", type=lambda text: text.split(","), default=tuple(BYTES))
    parser.add_argument("--quick", action="store_true", help="a few steps: shows that it works")
    parser.add_argument("--bars", action="store_true", help="exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    tr.init_process_group()
    rows, checks = [], []
    for kind in (Digits, Gpt):
        dense, _ = train(kind(options.quick), "dense")
        for name in options.compressors:
            loss, sent = train(kind(options.quick), name)
            rows.append([kind.__name__, name, f"{loss / dense:.4f}", f"{100 * sent:.2f} %"])
            checks.append(Check(f"{kind.__name__}, {name}", loss / dense, _NEAR, True, "loss"))
            if name in BYTES:
                what = f"{kind.__name__}, {name}"
                checks.append(Check(what, sent, BYTES[name], True, "bytes"))
    first = tr.get_rank() == 0
    tr.destroy_process_group()
    if first:
        print(table.render(["model", "gradients", "loss / dense", "bytes"], rows))
        if options.bars:
            print("\n" + bars.summary(checks))
    return 1 if options.bars and not bars.all_pass(checks) else 0


if __name__ == "__main__":
    raise SystemExit(main())
