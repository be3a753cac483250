"""torch's settings of modules that fully_shard() was given; each function is one rank's part."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from support.ddp_faults import raised
from support.fsdp_training import without_common_memory
from torch import nn

import torsh_runtime as tr

REFUSED: dict[str, tuple[Any, ...]] = {
    "set_custom_all_gather": (None,),
    "set_custom_reduce_scatter": (None,),
    "set_all_reduce_hook": (print,),
    "set_symm_mem_for_comm": (),
    "set_gradient_divide_factor": (0.0,),
}
HINTS: dict[str, tuple[Any, ...]] = {
    "set_is_last_backward": (False,),
    "set_reshard_after_backward": (False,),
    "set_unshard_in_backward": (False,),
    "set_force_sum_reduction_for_comms": (True,),
    "set_reduce_scatter_max_input_buffers": (2,),
    "set_separate_reduce_scatter_group": (),
}


def made() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    tr.fully_shard(model[0])
    return tr.fully_shard(model)


def gradients(model: Any, passes: int = 1) -> list[torch.Tensor]:
    inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(tr.get_rank()))
    for number in range(passes):
        model.set_requires_gradient_sync(number == passes - 1)
        model(inputs).square().sum().backward()
    return [each.grad.clone() for each in model.parameters()]


def divided(rank: int, gathers: bool) -> list[float]:
    """Return how far gradients are from averages times ranks / factor."""
    found = []
    with without_common_memory(gathers):
        for passes in (1, 3):
            averages = gradients(made(), passes)
            model: Any = made()
            model.set_gradient_divide_factor(1.0)
            model[0].set_reduce_scatter_divide_factor(8)
            for _ in range(2):  # and they add up
                got = gradients(model, passes)
            pairs = zip(got, averages, (8, 8, 1, 1), strict=True)
            ranks = tr.get_world_size()
            found += [
                float((2 * each * ranks / factor - one).abs().amax())
                for one, each, factor in pairs
                if one.numel()
            ]
    return found


def divided_over_replicas(rank: int) -> list[float]:
    """Return the same where two groups of two ranks replicate the parts."""
    mesh = tr.init_device_mesh({"replicas": 2, "parts": 2})
    found = []
    for factor in (None, 1.0):
        torch.manual_seed(0)
        model: Any = tr.fully_shard(nn.Linear(3, 4), mesh=mesh)
        if factor is not None:
            model.set_gradient_divide_factor(factor)
        found.append(gradients(model))
    return [float((4 * a - b).abs().amax()) for a, b in zip(*found, strict=True) if a.numel()]


def reset(rank: int) -> list[bool]:
    """Return whether gradients are as without a pass that broke off, and one that was kept."""
    alone, model = gradients(made()), made()
    model.set_requires_gradient_sync(False)
    model(torch.ones(1, 3)).sum().backward()
    hook = model[1].register_forward_hook(lambda *_: 1 / 0)
    text = raised(lambda: model(torch.ones(1, 3)))
    assert "ZeroDivisionError" in text, text
    hook.remove()
    model.reset_iter_state()
    return [torch.equal(*each) for each in zip(alone, gradients(model), strict=True)]


def told(rank: int) -> dict[str, str]:
    """Return what settings that are not supported raise."""
    model = made()
    calls: dict[str, Callable[[], Any]] = {
        name: partial(getattr(model, name), *given) for name, given in REFUSED.items()
    }
    calls["reset_iter_state"] = model[0].reset_iter_state
    calls["share_comm_ctx"] = lambda: tr.share_comm_ctx([model, nn.Linear(1, 1)])
    return {name: raised(call) for name, call in calls.items()}


def hinted(rank: int) -> list[bool]:
    """Return whether gradients are the same with all hints."""
    alone, model = gradients(made()), made()
    tr.share_comm_ctx([model, model[0]])
    for name, given in HINTS.items():
        getattr(model, name)(*given)
    events: list[str] = []

    class Event:
        def wait(self) -> None:
            events.append("waited")

    model.set_post_optim_event(Event())
    same = [torch.equal(*each) for each in zip(alone, gradients(model), strict=True)]
    return [*same, events == ["waited"]]


def of_torch() -> dict[str, tuple[str, ...]]:
    """Return the parameters of each method that torch's class has, by its name."""
    from torch.distributed.fsdp import FSDPModule

    return {name: parameters_of(FSDPModule, name) for name in public(FSDPModule)}


def public(kind: type) -> list[str]:
    return [each for each in vars(kind) if not each.startswith("_")]


def parameters_of(kind: type, name: str) -> tuple[str, ...]:
    found = inspect.signature(getattr(kind, name)).parameters.values()
    return tuple(f"{each.name} {each.kind.name}" for each in found if each.name != "self")
