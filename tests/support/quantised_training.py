"""Trainings with optimizers whose moments are quantised in blocks; each function is one rank's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.elastic.commits import Commits

BATCH, WIDTH = 12, 64
"""Rows of a step over all ranks; features, of which a half of a weight has whole blocks."""
STOP, END = 3, 6


class Blockwise(torch.optim.Optimizer):
    """Momentum in 8 bits, with a scale for each block, where a parameter has enough elements."""

    def __init__(self, params: Any, lr: float = 0.1, block: int = 64, least: int = 86) -> None:
        super().__init__(params, {"lr": lr})
        self._block, self._least = block, least

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        for state in self.state.values():
            if "codes" in state:  # which torch casts to the parameter's dtype
                state["codes"] = state["codes"].to(torch.int8)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.numel():
                    state = self.state[parameter]
                    state["step"] = state.get("step", 0) + 1
                    move = self._momentum if parameter.numel() < self._least else self._quantised
                    parameter.sub_(move(parameter, state), alpha=group["lr"])

    def _momentum(self, parameter: Any, state: dict[str, Any]) -> Any:
        before = state.get("momentum", torch.zeros_like(parameter))
        state["momentum"] = 0.9 * before + parameter.grad
        return state["momentum"]

    def _quantised(self, parameter: Any, state: dict[str, Any]) -> Any:
        rest = -parameter.numel() % self._block
        gradient = nn.functional.pad(parameter.grad.reshape(-1), (0, rest)).view(-1, self._block)
        moment = gradient
        if "codes" in state:
            codes = nn.functional.pad(state["codes"].reshape(-1), (0, rest)).view(gradient.shape)
            moment = 0.9 * codes.float() * state["scales"][:, None] / 127 + gradient
        scales = moment.abs().amax(1).clamp(min=1e-12)
        codes = (moment / scales[:, None] * 127).round().to(torch.int8)
        state["scales"] = scales
        state["codes"] = codes.view(-1)[: parameter.numel()].view(parameter.shape)
        return moment.view(-1)[: parameter.numel()].view(parameter.shape)


def optimizer_of(kind: str, parameters: Any, way: str) -> Any:
    made, rate = Blockwise, 0.1
    if kind == "bitsandbytes":
        import bitsandbytes

        made, rate = bitsandbytes.optim.AdamW8bit, 0.01
    elif kind != "blockwise":
        import torchao.optim

        made, rate = getattr(torchao.optim, kind.removeprefix("torchao ")), 0.01
    if way == "zero":
        return tr.DistributedOptimizer(parameters, made, lr=rate)
    return made(parameters, lr=rate)


class Training:
    """A model in DDP, FSDP or nothing, an optimizer and a schedule."""

    def __init__(self, kind: str, way: str, rank: int, ranks: int) -> None:
        torch.manual_seed(0)
        self._rows = slice(BATCH // ranks * rank, BATCH // ranks * (rank + 1))
        first, second = (nn.Linear(*sizes, bias=False) for sizes in ((64, 128), (128, 64)))
        wrap: dict[str, Any] = dict.fromkeys(("ddp", "zero"), tr.DistributedDataParallel)
        wrap |= {"fsdp": tr.FullyShardedDataParallel}
        layers = [first, nn.Tanh(), second, nn.Tanh(), nn.Linear(WIDTH, 4)]
        model = nn.Sequential(*layers)
        self.model: Any = wrap[way](model) if way in wrap else model
        self.optimizer = optimizer_of(kind, self.model.parameters(), way)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4])
        self.state = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

    def train(self, start: int, end: int) -> list[Any]:
        """These steps. What the model is like then, whole."""
        for step in range(start, end):
            generator = torch.Generator().manual_seed(step)
            inputs = torch.randn(BATCH, WIDTH, generator=generator)
            self.optimizer.zero_grad()
            self.model(inputs[self._rows]).square().mean().backward()
            self.optimizer.step()
            self.schedule.step()
        return [each.detach().numpy().copy() for each in self.model.state_dict().values()]

    def kinds(self) -> list[Any]:
        """The classes, dtypes and shapes of the optimizer's state of what this rank has."""
        return [
            sorted((key, type(each).__name__, _kind(each)) for key, each in state.items())
            for parameter, state in getattr(self.optimizer, "local", self.optimizer).state.items()
            if parameter.numel()
        ]


def _kind(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if torch.is_tensor(value) else ""


@contextmanager
def eager() -> Iterator[None]:
    """torchao compiles its steps, which takes longer than the test."""
    torch.compiler.set_stance("force_eager")
    try:
        yield
    finally:
        torch.compiler.set_stance("default")


def go_on(
    kind: str, way: str, rank: int, ranks: int, directory: Path, memory: dict[str, str]
) -> dict[str, Any]:
    """Train, save and commit in the middle, and go on from each. What the model is like in the
    end: undisturbed, from the checkpoint, and from the commit."""
    with eager():
        first = Training(kind, way, rank, ranks)
        first.train(0, STOP)
        Checkpointer(directory).save(STOP, first.state)
        commits = Commits(Ranks.of(None), memory)
        commits.commit(first.state)
        kinds, ends = first.kinds(), {"undisturbed": first.train(STOP, END)}
        for source in ("checkpoint", "commit"):
            other = Training(kind, way, rank, ranks)
            if source == "checkpoint":
                Checkpointer(directory).load(other.state)
            else:
                assert commits.restore(other.state) is not None
            assert other.kinds() == kinds, (source, kinds, other.kinds())
            ends[source] = other.train(STOP, END)
        return ends


def load_elsewhere(
    kind: str, way: str, rank: int, ranks: int, directory: Path
) -> tuple[str, list[Any]]:
    """What load() says, and what the model is like in the end if it does not refuse."""
    with eager():
        training = Training(kind, way, rank, ranks)
        try:
            Checkpointer(directory).load(training.state)
        except tr.CheckpointError as error:
            return str(error), []
        return "", training.train(STOP, END)


def pieces(kind: str, way: str, rank: int, ranks: int) -> list[bool]:
    """For each parameter that this rank has elements of whether its state is quantised."""
    training = Training(kind, way, rank, ranks)
    training.train(0, 1)
    return ["codes" in state for state in training.optimizer.state.values()]
