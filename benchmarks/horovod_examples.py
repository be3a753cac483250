"""Runs Horovod's published examples for torch with one line changed.

`python benchmarks/horovod_examples.py HOROVOD`, a checkout of its repository: each example runs on
two ranks with `import horovod` replaced by `import torsh_runtime.integrations.horovod`, and nothing
else. Modules replace torchvision and tensorboard: data are scikit-learn's digits, and models are
small. In elastic examples a worker is killed during the run. With --bars it ends with 1 if one of
them does not complete, or learns nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

_LINE = re.compile(r"^import horovod\b", re.MULTILINE)
_OURS = "import torsh_runtime.integrations.horovod"
_PATIENCE = 600.0

_TORCHVISION = """
import types

import torch
from sklearn.datasets import load_digits


class Digits(torch.utils.data.Dataset):
    def __init__(self, is_training, size, channels, count=None):
        digits = load_digits()
        rows = [n for n in range(len(digits.target)) if (n % 5 != 0) == is_training][:count]
        images = torch.tensor(digits.images[rows], dtype=torch.float32)[:, None] / 8 - 1
        self.images = torch.nn.functional.interpolate(images, size).repeat(1, channels, 1, 1)
        self.labels = digits.target[rows].tolist()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return self.images[row], self.labels[row]


def resnet(**_):
    layers = [torch.nn.Conv2d(3, 8, 3, 2), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
    layers += [torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(128, 1000)]
    return torch.nn.Sequential(*layers)


class Transforms:
    def __getattr__(self, name):
        return lambda *_, **__: None


datasets = types.SimpleNamespace(
    MNIST=lambda root, train=True, **_: Digits(train, 28, 1),
    ImageFolder=lambda root, **_: Digits("val" not in str(root), 32, 3, 200),
)
models = types.SimpleNamespace(resnet18=resnet, resnet50=resnet)
transforms = Transforms()
"""
_TENSORBOARD = """
import sys
import types

__version__ = "2.0"
stand_in = types.SimpleNamespace(
    FileWriter=None,
    RecordWriter=None,
    SummaryWriter=lambda *_: types.SimpleNamespace(add_scalar=lambda *_: None),
)
sys.modules["torch.utils.tensorboard.writer"] = stand_in
sys.modules["tensorboard.summary.writer.record_writer"] = stand_in
"""


class Example(NamedTuple):
    """Describes a program, and how to run it."""

    path: str
    arguments: str
    kill_at: str = ""
    """Pattern in the output after which a worker is killed; "" for never."""
    accuracy: str = ""
    """Pattern in the output before the accuracy in percent; "" for programs without one."""


_MNIST = "--no-cuda --batch-size 16 --lr 0.02 --epochs"
_IMAGENET = "--no-cuda --batch-size 5 --val-batch-size 20 --base-lr 0.02 --epochs"
_TIMING = "--no-cuda --model resnet18 --batch-size 4 --num-iters"
_TEST_SET = r"Test set: .* Accuracy: "
_EXAMPLES = [
    Example("examples/pytorch/pytorch_mnist.py", f"{_MNIST} 4", "", _TEST_SET),
    Example("examples/pytorch/pytorch_mnist.py", f"{_MNIST} 4 --use-adasum", "", _TEST_SET),
    Example("examples/pytorch/pytorch_mnist.py", f"{_MNIST} 4 --fp16-allreduce", "", _TEST_SET),
    Example("examples/pytorch/pytorch_synthetic_benchmark.py", f"{_TIMING} 3"),
    Example(
        "examples/pytorch/pytorch_imagenet_resnet50.py",
        f"{_IMAGENET} 3 --batches-per-allreduce 2 --gradient-predivide-factor 2",
    ),
    Example(
        "examples/elastic/pytorch/pytorch_mnist_elastic.py",
        f"{_MNIST} 4",
        r"Train Epoch: 2 \[[1-9]",
        _TEST_SET,
    ),
    Example(
        "examples/elastic/pytorch/pytorch_synthetic_benchmark_elastic.py",
        f"{_TIMING} 6",
        r"Iter #2",
    ),
    Example(
        "examples/elastic/pytorch/pytorch_imagenet_resnet50_elastic.py",
        f"{_IMAGENET} 3",
        r"Train Epoch +#2: +[1-9]\d%",
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("horovod", type=Path, help="a checkout of Horovod's repository")
    parser.add_argument("--only", default="", help="those whose name has this in it")
    parser.add_argument("--bars", action="store_true", help="end with 1 if a bar is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "torchvision.py").write_text(_TORCHVISION)
        (place / "tensorboard.py").write_text(_TENSORBOARD)
        passed = [
            run(options.horovod, each, place) for each in _EXAMPLES if options.only in each.path
        ]
    return 0 if all(passed) or not options.bars else 1


def run(horovod: Path, example: Example, place: Path) -> bool:
    """Run an example, print the result, and return whether it is right."""
    program = place / Path(example.path).name
    text, changed = _LINE.subn(_OURS, (horovod / example.path).read_text())
    program.write_text(text)
    command = [sys.executable, "-m", "torshrun", "--nproc-per-node=2", "--max-restarts=1"]
    command += [str(program), *example.arguments.split()]
    if "imagenet" in example.path:
        command += ["--checkpoint-format", str(place / f"{program.stem}-{{epoch}}.pt")]
    start = time.perf_counter()
    code, output, killed = _follow(command, example.kill_at, place)
    found = re.findall(example.accuracy + r"([\d.]+)%", output) if example.accuracy else []
    is_right = code == 0 and bool(killed) == bool(example.kill_at)
    is_right &= not example.accuracy or (bool(found) and float(found[-1]) >= 60)
    what = f"{program.name} {' '.join(example.arguments.split()[1:])}"
    told = f"exit code {code}, {changed} line(s) changed, {time.perf_counter() - start:.0f} s"
    told += f", worker {killed} killed" if killed else ""
    told += f", accuracy {found[-1]} %" if found else ""
    print(f"{what}: {told}: {'pass' if is_right else 'FAIL'}", flush=True)
    if not is_right:
        print(output[-3000:])
    return is_right


def _follow(command: list[str], kill_at: str, place: Path) -> tuple[int, str, int]:
    """Return the exit code, the output, and the process that was killed at the words (0: none)."""
    mark = f"HOME={place}"
    environ = {**os.environ, "HOME": str(place), "PYTHONPATH": str(place)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=place, env=environ, stdout=pipe, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        output, killed = b"", 0
        deadline = time.monotonic() + _PATIENCE
        while chunk := os.read(process.stdout.fileno(), 4096):
            output += chunk
            if kill_at and not killed and re.search(kill_at, output.decode(errors="replace")):
                killed = _kill_a_worker(mark)
            if time.monotonic() > deadline:
                process.terminate()
        return process.wait(), output.decode(errors="replace"), killed


def _kill_a_worker(mark: str) -> int:
    """Kill the worker with local rank 1 among the processes with this in their environment."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environ = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in environ and b"LOCAL_RANK=1" in environ:
            os.kill(int(entry.name), signal.SIGKILL)
            return int(entry.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
