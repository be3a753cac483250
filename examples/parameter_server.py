"""Asynchronous training of a small classifier on handwritten digits with a parameter server.

    torshrun examples/parameter_server.py --trainers 3

The server holds the parameters and starts trainers, processes of their own, which join by RPC. Each
fetches the parameters, computes the gradient of a batch and sends it back at its own pace. Kill one
(the server prints their pids): the server learns that it is lost and starts another in its place,
and nobody else waits. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
from train import CLASSES, HIDDEN, PIXELS, Samples, load_data

import torsh_runtime as tr
from torsh_runtime import nn, optim
from torsh_runtime.nn import functional as F  # noqa: N812

Arrays = Mapping[str, np.ndarray]


def make_model() -> Any:
    nn.manual_seed(0)
    return nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


class ParameterServer:
    """The parameters, and how gradients change them. Trainers call its methods by an RRef."""

    def __init__(self, updates: int, lr: float) -> None:
        self.model = make_model()
        self.optimizer = optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.updates, self.wanted = 0, updates
        self.by_trainer: dict[str, int] = {}
        self._lock = threading.Lock()

    def fetch(self) -> Arrays | None:
        """Copies of the parameters, since the next gradient changes them; None at the end."""
        with self._lock:
            if self.updates >= self.wanted:
                return None
            return {name: array.copy() for name, array in self.model.state_dict().items()}

    def push(self, trainer: str, gradients: Arrays) -> Arrays | None:
        """Take one step, and return what fetch() does then."""
        with self._lock:
            self.optimizer.zero_grad()
            for name, parameter in self.model.named_parameters():
                parameter.grad = nn.from_numpy(gradients[name])
            self.optimizer.step()
            self.updates += 1
            self.by_trainer[trainer] = self.by_trainer.get(trainer, 0) + 1
        return self.fetch()

    def accuracy(self, test_set: Samples) -> float:
        with self._lock, nn.no_grad():
            scores = self.model(nn.from_numpy(test_set[0]))
        return float((scores.numpy().argmax(axis=1) == test_set[1]).mean())


def train(server: Any, seed: int, batch: int, dies_after: int | None) -> int:
    """Train until the server has enough; how many steps. The server calls this on each trainer."""
    name = tr.rpc.get_worker_info().name
    model, batches = make_model(), shuffled(seed, batch)
    parameters, steps = server.rpc_sync().fetch(), 0
    while parameters is not None:
        model.load_state_dict(parameters)
        model.zero_grad()
        inputs, targets = next(batches)
        F.cross_entropy(model(nn.from_numpy(inputs)), nn.from_numpy(targets)).backward()
        gradients = {name: each.grad.numpy() for name, each in model.named_parameters()}
        parameters = server.rpc_sync().push(name, gradients)
        steps += 1
        if steps == dies_after:
            os.kill(os.getpid(), signal.SIGKILL)
    return steps


def shuffled(seed: int, size: int) -> Iterator[Samples]:
    """Batches without an end."""
    (inputs, targets), _ = load_data()
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(len(inputs))
        for start in range(0, len(order), size):
            yield inputs[order[start : start + size]], targets[order[start : start + size]]


def start(name: str) -> subprocess.Popen[bytes]:
    """A trainer as a process of its own, which belongs to this job but is no rank of it."""
    environment = {key: value for key, value in os.environ.items() if key != "RANK"}
    command = [sys.executable, os.path.abspath(__file__), "--join", name]  # noqa: PTH100
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
    print(f"{name} is process {process.pid}", flush=True)
    return process


def keep_trainer(number: int, server: Any, options: argparse.Namespace) -> int:
    """Have a trainer train, and another in its place whenever it is lost; how many were lost."""
    name, lost = f"trainer{number}", 0
    while True:
        dies_after = None if lost else options.lose_after
        with start(name) as process:  # closes its input at the end, which is its end
            if has_joined(name, process):
                try:
                    arguments = server, 100 * number + lost, options.batch, dies_after
                    tr.rpc.rpc_sync(name, train, arguments)
                    return lost
                except tr.PeerLost as error:
                    print(f"{name} was lost: {error}", flush=True)
            lost += 1


def has_joined(name: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait for a trainer; False if its process ends before. Its predecessor had the same name."""
    while process.poll() is None:
        with suppress(tr.PeerLost, tr.rpc.CallRefused):
            if tr.rpc.rpc_sync(name, os.getpid) == process.pid:
                return True
        time.sleep(0.05)
    return False


def serve(options: argparse.Namespace) -> None:
    """The server's side: start trainers, report, and end when there were enough updates."""
    tr.rpc.init_rpc("server", rank=0, rpc_backend_options=rpc_options())
    server, (_, test_set) = ParameterServer(options.updates, options.lr), load_data()
    reference = tr.rpc.RRef(server)
    with ThreadPoolExecutor(options.trainers) as pool:
        numbers = range(options.trainers)
        kept = [pool.submit(keep_trainer, number, reference, options) for number in numbers]
        while server.updates < options.updates and not all(each.done() for each in kept):
            time.sleep(options.report)
            print(f"{server.updates:5} updates  accuracy {server.accuracy(test_set):.2%}")
        lost = sum(each.result() for each in kept)
    steps = ", ".join(f"{name} {count}" for name, count in sorted(server.by_trainer.items()))
    print(f"{server.updates} updates: {steps}; {lost} trainers were lost")
    print(f"test accuracy {server.accuracy(test_set):.2%}", flush=True)
    tr.rpc.shutdown()


def join(name: str) -> None:
    """A trainer's side: answer calls until the server closes this process's input."""
    tr.rpc.init_rpc(name, rpc_backend_options=rpc_options())
    sys.stdin.read()
    tr.rpc.shutdown()


def rpc_options() -> Any:
    """train() takes as long as it takes."""
    return tr.rpc.RpcBackendOptions(rpc_timeout=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--trainers", type=int, default=3)
    add("--updates", type=int, default=2000, help="of all trainers together")
    add("--batch", type=int, default=32, help="images per update")
    add("--lr", type=float, default=0.05)
    add("--lose-after", type=int, metavar="N", help="trainers die after N updates, once each")
    add("--report", type=float, default=1.0, help="seconds between two lines")
    add("--join", metavar="NAME", help="as a trainer; the server starts these itself")
    options = parser.parse_args()
    if options.join:
        join(options.join)
    else:
        serve(options)


if __name__ == "__main__":
    main()
