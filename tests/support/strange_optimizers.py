"""Optimizers of many kinds on models of which ranks have parts; each function is one rank's part.

What one process computes is compared with.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from support.ddp_faults import raised
from torch import nn

import torsh_runtime as tr

STEPS, ROWS, LATE = 12, 8, 35
Make = Callable[[Any], Any]


class Polyak(torch.optim.SGD):
    """Takes its rate from the loss and the norm of all gradients."""

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        parts = [each for each in self.param_groups[0]["params"] if each.grad is not None]
        with torch.no_grad():
            rate = loss.detach() / sum(each.grad.square().sum() for each in parts)
            for each in parts:
                each.sub_(each.grad * rate.clamp(max=0.1))
        return loss


class Sharpness(torch.optim.SGD):
    """Calls the closure again, at values that it has moved along the gradient (SAM)."""

    def step(self, closure: Any = None) -> Any:
        parts = self.param_groups[0]["params"]
        with torch.enable_grad():
            closure()
        norm = torch.stack([each.grad.norm() for each in parts]).norm()
        moves = [each.grad * 0.05 / norm for each in parts]
        with torch.no_grad():
            torch._foreach_add_(parts, moves)
            with torch.enable_grad():
                loss = closure()
            torch._foreach_sub_(parts, moves)
        super().step()
        return loss


class Extragradient(torch.optim.SGD):
    """Computes elementwise, and calls the closure again at other values."""

    def step(self, closure: Any = None) -> Any:
        parts = self.param_groups[0]["params"]
        with torch.enable_grad():
            closure()
        before = [each.detach().clone() for each in parts]
        super().step()
        with torch.enable_grad():
            loss = closure()
        with torch.no_grad():
            for each, own in zip(parts, before, strict=True):
                each.copy_(own)
        super().step()
        return loss


class Upright(torch.optim.SGD):
    """Projects a gradient that is nearly orthogonal to its parameter (AdamP)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for each in self.param_groups[0]["params"]:
            inner = (each * each.grad).sum() / each.norm()
            if abs(inner) < 0.1 / each.numel() ** 0.5 * each.grad.norm():
                each.grad.mul_(2.0).sub_(each * inner / each.norm())
        return super().step(closure)


class Decayed(torch.optim.SGD):
    """Divides a small decay by the mean of all gradients (AdamS)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        parts = self.param_groups[0]["params"]
        mean = sum(each.grad.square().sum() for each in parts).sqrt()
        for each in parts:
            each.mul_(1 - 1e-4 * self.param_groups[0]["lr"] / mean)
        return super().step(closure)


class Curved(torch.optim.SGD):
    """Multiplies by the Hessian, so that the whole backward pass has to be differentiable."""

    def step(self, closure: Any = None) -> Any:
        parts = self.param_groups[0]["params"]
        gradients = [each.grad for each in parts]
        found = torch.autograd.grad(gradients, parts, [each.detach() for each in gradients])
        with torch.no_grad():
            torch._foreach_sub_(parts, found, alpha=1e-2)


class Steady(torch.optim.SGD):
    """Moves by signs at a rate that grows while most signs stay as they are (D-Adaptation)."""

    rate = 1e-6

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        agreed, total = 0.0, 0.0
        for each in self.param_groups[0]["params"]:
            sign, seen = (
                each.grad.sign(),
                self.state[each].setdefault("sum", torch.zeros_like(each)),
            )
            each.sub_(sign, alpha=self.rate * self.param_groups[0]["lr"])
            agreed += float((sign * seen).sum())
            total += float(seen.add_(sign).abs().sum())
        self.rate = max(self.rate, self.rate * self.param_groups[0]["lr"] * 10 * agreed / total)


class Late(torch.optim.SGD):
    """Collects products of rows, and uses them after many steps (Shampoo in large training)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for each in self.param_groups[0]["params"]:
            if each.grad is not None:
                rows, state = each.grad.reshape(len(each), -1), self.state[each]
                state["products"] = state.get("products", 0) + rows @ rows.T
                state["steps"] = state.get("steps", 0) + 1
                if state["steps"] > LATE:
                    each.grad /= state["products"].norm()
        return super().step(closure)


class Slow(torch.optim.SGD):
    """Computes elementwise, and has copies of all values before its first step (Lookahead)."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        for each in self.param_groups[0]["params"]:
            self.state[each].update(slow=each.detach().clone(), step=0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for each in self.param_groups[0]["params"]:
            state = self.state[each]
            state["step"] += 1
            if state["step"] % 3 == 0:
                each.copy_(state["slow"].lerp_(each, 0.5))


class Masked(torch.optim.SGD):
    """Trains elements that were small when it was made (SaRA)."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        for each in self.param_groups[0]["params"]:
            self.state[each]["mask"] = each.detach().abs() < 0.1

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for each in self.param_groups[0]["params"]:
            each.grad.mul_(self.state[each]["mask"])
        return super().step(closure)


class Averaged(torch.optim.SGD):
    """Divides gradients by their norms, and shows means of values in evaluation (SPlus)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for each in self.param_groups[0]["params"]:
            if each.grad is not None:
                each.grad /= each.grad.norm()
                self.state[each].setdefault("mean", each.clone()).lerp_(each, 0.1)
        return super().step(closure)

    @torch.no_grad()
    def eval(self) -> None:
        for each in self.param_groups[0]["params"]:
            each.copy_(self.state[each]["mean"])

    def train(self) -> None:
        """Do nothing."""


def _of(name: str, **named: Any) -> Make:
    return lambda parameters: getattr(torch.optim, name)(parameters, lr=0.05, **named)


def _kinds() -> dict[str, Make]:
    found = {name: _of(name) for name in ("Adafactor", "AdamW", "LBFGS", "Rprop")}
    found["LBFGS once"] = _of("LBFGS", max_iter=1)
    found["LBFGS short"] = _of("LBFGS", history_size=2, max_iter=4)
    found["LBFGS searching"] = _of("LBFGS", line_search_fn="strong_wolfe")
    for kind in (
        *(Polyak, Sharpness, Extragradient, Upright, Decayed, Curved, Steady, Late, Slow, Masked),
        Averaged,
    ):
        found[kind.__name__] = partial(kind, lr=0.05)
    return found


KINDS = _kinds()
CLOSURES = {"LBFGS", "Polyak", "Sharpness", "Extragradient"}
OTHERS = {
    "prodigyopt": ("Prodigy",),
    "dadaptation": ("DAdaptAdam", "DAdaptLion"),
    "schedulefree": ("AdamWScheduleFree",),
    "pytorch_optimizer": ("AdamP", "AdamS", "AvaGrad", "Lamb", "ASGD", "SPAM", "SaRA", "SPlus"),
}
"""Packages of optimizers, which are tried where they are installed."""
for package, names in OTHERS.items():
    if importlib.util.find_spec(package):
        module = importlib.import_module(package)
        KINDS |= {f"{package}.{each}": partial(getattr(module, each), lr=0.05) for each in names}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.inner, self.last = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 6)
        self.to(torch.float64)

    def forward(self, inputs: Any) -> Any:
        return self.last(torch.tanh(self.inner(torch.tanh(self.first(inputs)))))


def train(model: Any, optimizer: Any, kind: str, rows: slice, ranks: int) -> None:
    if hasattr(optimizer, "train"):
        optimizer.train()
    for step in range(LATE + 3 if kind == "Late" else STEPS):
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(step))
        inputs, wanted = (draw(ROWS, wide, dtype=torch.float64)[rows] for wide in (12, 6))

        def closure(inputs: Any = inputs, wanted: Any = wanted) -> Any:
            optimizer.zero_grad()
            loss = (model(inputs) - wanted).square().mean()
            loss.backward(create_graph=kind == "Curved")
            found = loss.detach().clone()
            if ranks > 1:
                tr.all_reduce(found)
            return found / ranks

        if kind.split()[0] in CLOSURES:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def alone(kind: str) -> Any:
    model = Net()
    train(model, KINDS[kind](model.parameters()), kind, slice(None), 1)
    return model.state_dict()


def sharded(kind: str, rank: int) -> Any:
    model = tr.FullyShardedDataParallel(
        Net(), auto_wrap_policy=tr.SizeBasedAutoWrap(50), min_num_params=0
    )
    return model, KINDS[kind](model.parameters())


def spread(kind: str, rank: int) -> Any:
    """The optimizer's state is spread over the ranks."""
    model = tr.DistributedDataParallel(Net())
    make: Any = type(KINDS[kind](Net().parameters()))
    named = getattr(KINDS[kind], "keywords", None)
    if named is None:
        groups = KINDS[kind](Net().parameters()).defaults
        named = {key: groups[key] for key in ("lr", "max_iter", "line_search_fn") if key in groups}
    return model, tr.DistributedOptimizer(model.parameters(), make, **named)


def cut(kind: str, rank: int) -> Any:
    model = tr.parallelize(
        Net(), tr.init_device_mesh({"tp": 2}), {"first": tr.Column(), "inner": tr.Row()}
    )
    return model, KINDS[kind](model.parameters())


WAYS = {"sharded": sharded, "spread": spread, "cut": cut}


def compared(way: str, kind: str, rank: int) -> float | str:
    """The largest difference from one process's parameters, or what the training raises."""
    rows = slice(None) if way == "cut" else slice(4 * rank, 4 * rank + 4)
    wanted, models = alone(kind), []

    def body() -> None:
        model, optimizer = WAYS[way](kind, rank)
        models.append(model)
        train(model, optimizer, kind, rows, 2)

    text = raised(body)
    if text != "nothing":
        return text
    options = tr.StateDictOptions(full_state_dict=True)
    found = tr.get_model_state_dict(models[0], options=options)
    return max(float((found[name] - each).abs().max()) for name, each in wanted.items())
