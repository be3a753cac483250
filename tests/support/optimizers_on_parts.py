"""Optimizers, torch's and others', on parameters of which ranks have parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from support.ddp_faults import raised
from support.wrapped_models import batch, layers, sharded
from torch import nn

import torsh_runtime as tr


class Sign(torch.optim.Optimizer):
    """A stranger's, which computes elementwise, and whose step() has to have a closure."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "decay": 0.1})
        self.history: list[int] = []

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for each in group["params"]:
                mean = self.state[each].setdefault("mean", torch.zeros_like(each))
                mean.lerp_(each.grad, 0.1)
                each.mul_(1 - group["lr"] * group["decay"]).sub_(mean.sign(), alpha=group["lr"])
        self.history.append(len(self.state))
        return loss


class Noisy(torch.optim.SGD):
    """Draws random numbers for each element."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for each in self.param_groups[0]["params"]:
            each.add_(torch.randn_like(each), alpha=1e-4)
        return super().step(closure)


class ByNorm(torch.optim.SGD):
    """Divides by the norm of all gradients that it sees."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        gradients = [each.grad for group in self.param_groups for each in group["params"]]
        norm = torch.cat([each.flatten() for each in gradients]).norm()
        for each in gradients:
            each.div_(norm)
        return super().step(closure)


class NoisyByNorm(Noisy):
    """Draws random numbers, and divides by the norm of each gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for each in self.param_groups[0]["params"]:
            each.grad.div_(each.grad.norm())
        return super().step(closure)


class OfMatrices(torch.optim.SGD):
    """Divides what is a matrix of some size by its largest singular value."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for each in self.param_groups[0]["params"]:
            if each.grad is not None and each.ndim == 2 and min(each.shape) >= 4:
                each.grad.div_(torch.linalg.matrix_norm(each.grad, 2))
        return super().step(closure)


class Limited(torch.optim.SGD):
    """Limits the change of each parameter by its norm, if that is more than the one before."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for each in self.param_groups[0]["params"]:
            if each.grad is None:
                continue
            norm, state = each.grad.norm(), self.state[each]
            each.grad.mul_((state.get("norm", norm) / norm).clamp(max=1))
            state.setdefault("norm", norm)
        return super().step(closure)


class Unknown(torch.optim.SGD):
    """Keeps what cannot be copied."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.generator = (each for each in ())


class Sharpness(torch.optim.Optimizer):
    """Moves parameters along the gradient in one method, and back and further in another (SAM)."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.base = torch.optim.SGD(self.param_groups, lr=lr)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        parts = [each for group in self.param_groups for each in group["params"]]
        norm = torch.stack([each.grad.norm() for each in parts]).norm()
        for each in parts:
            self.state[each]["before"] = each.clone()
            each.add_(each.grad * (0.05 / norm))

    @torch.no_grad()
    def second_step(self) -> None:
        for each in (each for group in self.param_groups for each in group["params"]):
            each.copy_(self.state[each]["before"])
        self.base.step()

    def step(self, closure: Any = None) -> None:
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()


def perturbed(rank: int) -> list[str]:
    """Return what a first step raises, before it changes anything: of parts, and of whole ones."""
    mesh = tr.init_device_mesh({"tp": 2})
    plan = {"0": tr.Column(), "2": tr.Row()}
    models: list[Any] = [sharded(layers()), tr.parallelize(layers(), mesh, plan)]
    models.append(tr.DistributedDataParallel(layers()))
    texts = []
    for model in models:
        optimizer = Sharpness(model.parameters(), lr=0.01)
        before = [each.detach().clone() for each in model.parameters()]
        model(batch(0, 4)).square().mean().backward()
        texts.append(raised(optimizer.first_step))
        assert all(map(torch.equal, before, model.parameters())) is (texts[-1] != "nothing")
    return texts


def first_steps(model: Any, make: Callable[[Any], Any]) -> str:
    """What a training with this optimizer raises, before it changes anything."""
    optimizer = make(model.parameters())
    before = [each.detach().clone() for each in model.parameters()]

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(batch(0, 4)).square().mean()
        loss.backward()
        return loss

    def steps() -> None:
        for _ in range(2):
            closure()
            optimizer.step(*(closure,) * isinstance(optimizer, Sign | torch.optim.LBFGS))

    closure()
    text = raised(steps)
    if text != "nothing":
        assert all(map(torch.equal, before, model.parameters())), "something was changed"
    return text


OF_EACH: dict[str, Any] = {
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "OfMatrices": lambda p: OfMatrices(p, lr=0.01),
    "Limited": lambda p: Limited(p, lr=0.01),
}
"""Optimizers that need whole parameters."""
OF_ALL: dict[str, Any] = {
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.01),
    "ByNorm": lambda p: ByNorm(p, lr=0.0),  # as a warm-up begins
    "NoisyByNorm": lambda p: NoisyByNorm(p, lr=0.01),
}
"""Optimizers that need all parameters, or cannot be compared."""
if hasattr(torch.optim, "Muon"):
    OF_EACH["Muon"] = lambda p: torch.optim.Muon([each for each in p if each.ndim == 2], lr=0.01)


def refused(rank: int) -> dict[str, str]:
    return {name: first_steps(sharded(layers()), make) for name, make in OF_ALL.items()}


def refused_by_plan(rank: int) -> dict[str, str]:
    """Of parameters that a plan has cut, no rank can own the whole."""
    mesh = tr.init_device_mesh({"tp": 2})
    plan = {"0": tr.Column(), "2": tr.Row()}
    model = tr.parallelize(layers(), mesh, plan)
    return {name: first_steps(model, make) for name, make in {**OF_EACH, **OF_ALL}.items()}


def accepted(rank: int) -> dict[str, str]:
    def scheduled(parameters: Any) -> Any:
        optimizer = Sign(parameters, lr=0.01)
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step)
        return optimizer

    kinds: dict[str, Any] = {
        "Sign": scheduled,
        "Noisy": lambda p: Noisy(p, lr=0.01),
        "Unknown": lambda p: Unknown(p, lr=0.01),
        "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        **OF_EACH,
    }
    for name in ("Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "Rprop", "RMSprop", "Adagrad"):
        kinds[name] = type(name, (getattr(torch.optim, name),), {})  # as if it were a stranger's
    torch.manual_seed(3)
    drawn = torch.get_rng_state()
    found = {name: first_steps(sharded(layers()), make) for name, make in kinds.items()}
    found["random numbers"] = "nothing" if _is_drawn_alike(drawn, kinds["Sign"]) else "drawn"
    return found


def _is_drawn_alike(state: torch.Tensor, make: Any) -> bool:
    model = sharded(layers())
    torch.set_rng_state(state)
    first_steps(model, make)
    return torch.equal(state, torch.get_rng_state())


def clipped(rank: int) -> list[str]:
    """torch's clip_grad_norm_ on parts, of FSDP, of a plan and of experts; and on whole ones."""
    mesh = tr.init_device_mesh({"tp": 2})
    plan = {"0": tr.Column(), "2": tr.Row()}
    models: list[Any] = [sharded(layers()), tr.parallelize(layers(), mesh, plan)]
    models.append(tr.DistributedDataParallel(layers()))
    texts = []
    for model in models:
        model(batch(0, 4)).square().mean().backward()
        before = [each.grad.clone() for each in model.parameters()]
        texts.append(raised(lambda m=model: nn.utils.clip_grad_norm_(m.parameters(), 1e-3)))
        after = [each.grad for each in model.parameters()]
        assert all(map(torch.equal, before, after)) is (texts[-1] != "nothing")
    moe: Any = tr.MixtureOfExperts(8, 8, 2, top_k=1, mesh=mesh)
    texts.append(raised(lambda: nn.utils.clip_grad_norm_([moe.up], 1.0)))
    return texts
