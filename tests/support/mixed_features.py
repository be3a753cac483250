"""Models of torch between whose Columns and Rows features are mixed, or modules called from two
places; each function is one rank's part."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from support.ddp_faults import raised
from support.tensor_families import DECODER, decoder
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import torsh_runtime as tr
from torsh_runtime.parallel.tensor import Column, Cut, Row, Shared, Summed

WIDTH, INNER = 6, 16


def _written(hidden: Tensor) -> Tensor:
    found = torch.empty_like(hidden)
    found[:] = hidden.softmax(-1)
    return found


def _gated(hidden: Tensor) -> Tensor:
    gate, value = hidden.chunk(2, -1)
    return gate.sigmoid() * value


MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda hidden: hidden.softmax(-1),
    "norm": lambda hidden: functional.layer_norm(hidden, hidden.shape[-1:]),
    "mean": lambda hidden: hidden - hidden.mean(-1, keepdim=True),
    "sums": lambda hidden: hidden.cumsum(-1),
    "sums from the end": lambda hidden: hidden.flip(-1).cumsum(-1).flip(-1),
    "sorted": lambda hidden: hidden.sort(-1).values,
    "largest": lambda hidden: hidden * (hidden >= hidden.topk(3, -1).values[..., -1:]),
    "place of the largest": lambda hidden: hidden * (hidden.argmax(-1)[..., None] == 0),
    "neighbours": lambda hidden: functional.avg_pool1d(hidden, 3, 1, 1),
    "reversed": lambda hidden: hidden.flip(-1),
    "moved": lambda hidden: hidden.roll(1, -1),
    "written": _written,
    "gates as one section": _gated,
}
APART: dict[str, Callable[[Tensor], Tensor]] = {
    "by feature": lambda hidden: functional.gelu(hidden) * hidden.sigmoid(),
    "in place": lambda hidden: hidden.clone().relu_().mul_(2),
    "over rows": lambda hidden: hidden - hidden.mean(0),
    "heads": lambda hidden: hidden.unflatten(-1, (-1, 2)).softmax(-1).flatten(-2),
    "gates": _gated,
}


class Hidden(nn.Module):
    def __init__(self, middle: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        inner = INNER if middle is not _gated else 2 * INNER
        self.up, self.down, self.middle = nn.Linear(WIDTH, inner), nn.Linear(INNER, WIDTH), middle

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.middle(self.up(x)))
        return found


def _built(middle: Callable[[Tensor], Tensor]) -> Any:
    torch.manual_seed(0)
    return Hidden(middle).double()


def _inputs() -> Tensor:
    return torch.randn(5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


PLAN: dict[str, Any] = {"up": Column(), "down": Row()}


def mixed(rank: int) -> dict[str, str]:
    """What the first forward pass raises where features are mixed."""
    found = {}
    for name, middle in MIXING.items():
        model = tr.parallelize(_built(middle), None, PLAN)
        with torch.no_grad():
            found[name] = raised(lambda each=model: each(_inputs()))
    llama = decoder("Llama")
    for layer in llama.model.layers:
        layer.mlp.act_fn = nn.Softmax(-1)
    tr.parallelize(llama, None, DECODER)
    found["llama"] = raised(lambda: llama(input_ids=torch.arange(8)[None]))
    return found


class Switched(nn.Module):
    """Mixes features if it is told to, or in training only."""

    def __init__(self, mixes: bool | None) -> None:
        super().__init__()
        self.up, self.down, self.mixes = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH), mixes

    def forward(self, x: Tensor) -> Tensor:
        mixes = self.training if self.mixes is None else self.mixes
        hidden = self.up(x)
        found: Tensor = self.down(hidden.softmax(-1) if mixes else hidden.relu())
        return found


PAIRS: dict[str, Callable[[], list[Any]]] = {
    "bools": lambda: [Switched(False), Switched(True)],
    "partials": lambda: [Hidden(partial(torch.softmax, dim=each)) for each in (0, -1)],
    "functions of partials": lambda: [
        Hidden(partial(each)) for each in (functional.relu, MIXING["softmax"])
    ],
    "numbers": lambda: [Hidden(nn.Softmax(each)) for each in (0, -1)],
}


def kinds(rank: int) -> dict[str, str]:
    """What is said where only the second module of a class mixes features, or the first one in
    training after evaluation."""
    found = {}
    for name, modules in PAIRS.items():
        model = nn.Sequential(*modules()).double()
        tr.parallelize(model, None, {f"*.{key}": each for key, each in PLAN.items()})
        found[name] = raised(lambda each=model: each(_inputs()))
    model = tr.parallelize(Switched(None).double(), None, PLAN).eval()
    model(_inputs())
    found["training"] = raised(lambda each=model: each.train()(_inputs()))
    return found


def apart(rank: int) -> dict[str, float]:
    """How far results are from one process's where features are not mixed across ranks."""
    found = {}
    for name, middle in APART.items():
        sections = (INNER, INNER) if middle is _gated else ()
        whole, model = _built(middle), _built(middle)
        tr.parallelize(model, None, PLAN | {"up": Column(sections=sections)})
        for step in range(2):
            found[f"{name} {step}"] = float(
                (model(_inputs()) - whole(_inputs())).detach().abs().max()
            )
    return found | {"drawn": _drawn(), "hooks": _hooks_left()}


def _drawn() -> float:
    """How far random numbers after a first forward pass are from those after a second one."""
    model = tr.parallelize(_built(lambda hidden: functional.dropout(hidden, 0.5)), None, PLAN)
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        model(_inputs())
        states.append(torch.rand(4))
    return float((states[0] - states[1]).abs().max())


def _hooks_left() -> int:
    model = tr.parallelize(_built(functional.gelu), None, PLAN)
    copied = copy.deepcopy(model)
    for each in (model, copied):
        each(_inputs())
    names = ("_forward_hooks", "_forward_pre_hooks")
    modules = [*model.modules(), *copied.modules()]
    return sum(len(getattr(each, name)) for each in modules for name in names)


class Summing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.up(self.norm(x)).relu())
        return found


class Outer(nn.Module):
    """Calls what is within a sum from outside, too."""

    def __init__(self, checkpoints: bool | None, calls: str = "norm") -> None:
        super().__init__()
        self.inner, self.checkpoints, self.calls = Summing(), checkpoints, calls

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpoints is None:
            return self._computed(x)
        found: Tensor = checkpoint(self._computed, x, use_reentrant=self.checkpoints)
        return found

    def _computed(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x) + getattr(self.inner, self.calls)(x).sum(-1, keepdim=True)
        return found


SUM: dict[str, Any] = {
    "inner": Summed(),
    "inner.norm": Shared(),
    "inner.up.*": Cut(),
    "inner.down.weight": Cut(1),
}


def from_outside(rank: int) -> dict[str, Any]:
    """How far gradients are from one process's of a module that is called within a sum and from
    outside; and what is said of one that has a part."""
    found: dict[str, Any] = {}
    for checkpoints in (None, False, True):
        torch.manual_seed(0)
        whole = Outer(checkpoints).double()
        model = tr.parallelize(copy.deepcopy(whole), None, SUM)
        for each in (whole, model):
            each(_inputs().requires_grad_()).square().sum().backward()
        for name in ("weight", "bias"):
            one, other = (getattr(each.inner.norm, name).grad for each in (whole, model))
            found[f"{name} {checkpoints}"] = float((one - other).abs().max())
    model = tr.parallelize(Outer(None, "up").double(), None, SUM)
    found["part"] = raised(lambda: model(_inputs()))
    return found
