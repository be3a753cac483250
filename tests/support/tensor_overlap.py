"""Column layers of torch that compute their weights' gradients beside the sum of their inputs',
as on GPUs, on CPU tensors; each function one rank's part."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import nn

import torsh_runtime as tr
from torsh_runtime.parallel.tensor import overlap

WIDTH, LENGTH = 6, 4


def there(body: Any, rank: int) -> Any:
    """What a body gives where CPUs are taken for devices that compute beside communications."""
    with mock.patch.object(overlap, "_WITHOUT_STREAMS", ()):
        return body(rank)


class Three(nn.Module):
    """Layers that are given one tensor, as those of queries, keys and values are."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.some = nn.ModuleList(nn.Linear(WIDTH, 4, bias=number > 0) for number in range(3))
        self.down = nn.Linear(4, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        first, second, third = (each(x) for each in self.some)
        found: torch.Tensor = self.down(first * second + third.tanh())
        return x + found


def _run(sequence: bool, in_parts: bool = True) -> list[torch.Tensor]:
    """What a pass over this rank's part of a sequence, or the whole, gives."""
    torch.manual_seed(3)
    model, x = Three().double(), torch.randn(2, LENGTH, WIDTH).double()
    dim = 1 if sequence else None
    plan = {"some.*": tr.Column(sequence_dim=dim), "down": tr.Row(sequence_dim=dim)}
    if in_parts:
        tr.parallelize(model, None, plan)
    if sequence:
        own = LENGTH // tr.get_world_size()
        x = x[:, own * tr.get_rank() : own * (tr.get_rank() + 1)]
    x.requires_grad_()
    result = model(x)
    result.square().sum().backward()
    return [result.detach(), x.grad, *(each.grad for each in model.parameters())]


def same_bits(rank: int) -> dict[str, bool]:
    """Whether results and gradients have the same bits as without overlapping."""
    found = {}
    for sequence in (False, True):
        plain = _run(sequence)
        with mock.patch.object(overlap, "_WITHOUT_STREAMS", ()):
            overlapped = _run(sequence)
        pairs = zip(plain, overlapped, strict=True)
        found[f"{sequence}"] = all(torch.equal(one, other) for one, other in pairs)
    return found


def order(rank: int) -> dict[str, list[str]]:
    """What a backward pass does with the sum of the input's gradient, and with weights'."""
    said: list[str] = []
    kind: Any = type(tr.group.WORLD)
    product, begun = overlap._of_weight, overlap._begun

    def multiplied(*operands: Any) -> Any:
        said.append("product")
        return product(*operands)

    def noted(*arguments: Any) -> Any:
        said.append("begin")
        found, work = begun(*arguments)
        waited = mock.Mock(wraps=work)
        waited.wait = lambda: (said.append("wait"), work.wait())
        return found, waited

    def collective(name: str) -> Any:
        call = getattr(kind, name)

        def called(group: Any, *arguments: Any, **named: Any) -> Any:
            said.append(name)
            return call(group, *arguments, **named)

        return mock.patch.object(kind, name, called)

    found = {}
    for sequence in (False, True):
        _run(sequence)
        with (
            mock.patch.object(overlap, "_WITHOUT_STREAMS", ()),
            mock.patch.object(overlap, "_of_weight", multiplied),
            mock.patch.object(overlap, "_begun", noted),
            collective("all_reduce"),
            collective("reduce_scatter_tensor"),
        ):
            said.clear()
            _run(sequence)
        found[f"{sequence}"] = [*said]
    return found


def unneeded(rank: int) -> list[bool]:
    """Whether gradients that nobody wants are none, and those of a graph that is gone through twice
    are twice as large."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)
    ).double()
    tr.parallelize(model, None, {"1": tr.Column(), "2": tr.Row()})
    x = torch.randn(2, WIDTH).double()
    result = model(x).sum()
    [alone] = torch.autograd.grad(result, [model[0].weight], retain_graph=True)
    kept = [model[1].weight.grad is None]
    result.backward(retain_graph=True)
    once = [each.grad.clone() for each in model.parameters()]
    kept.append(torch.equal(model[0].weight.grad, alone))
    result.backward()
    pairs = zip(once, model.parameters(), strict=True)
    return [*kept, all(torch.equal(2 * one, each.grad) for one, each in pairs)]
