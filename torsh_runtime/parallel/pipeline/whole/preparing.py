"""Prepares a model to be studied: without dropout, with all parameters trained, and with memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

Module = torch.nn.Module


@contextmanager
def prepared(model: Module) -> Iterator[None]:
    """Prepare a model, within the block, to be called with an example.

    Results then depend on parameters in ways that can be traced. Tensors on the meta device are
    replaced by ones with numbers, few of which take memory.
    """
    training = [(each, each.training) for each in model.modules()]
    constant = [each for each in model.parameters() if not each.requires_grad]
    try:
        model.eval()
        for each in constant:
            each.requires_grad_(each.is_floating_point())
        with _with_memory(model), torch.enable_grad():
            yield
    finally:
        for each in constant:
            each.requires_grad_(False)
        for module, was in training:
            module.training = was


@contextmanager
def _with_memory(model: Module) -> Iterator[None]:
    """Replace parameters and buffers on the meta device within the block."""
    made: dict[int, torch.Tensor] = {}
    replaced = []
    for module in [*model.modules()]:
        for own in (module._parameters, module._buffers):
            for name, each in own.items():
                if each is None or each.device.type != "meta":
                    continue
                replaced.append((own, name, each))
                own[name] = made.setdefault(id(each), _of_few_numbers(each))  # type: ignore[assignment]
    try:
        yield
    finally:
        for own, name, each in replaced:
            own[name] = each  # type: ignore[assignment]


def _of_few_numbers(each: torch.Tensor) -> torch.Tensor:
    """Return a tensor of this shape in which each row repeats one number."""
    rows = each.shape[:1] if each.ndim > 1 else each.shape
    count = torch.Size(rows).numel()
    numbers = torch.arange(1.0, count + 1, dtype=torch.float64).mul(0.7).sin().mul(0.1)
    numbers = numbers.to(each.dtype).view(*rows, *[1] * (each.ndim - len(rows)))
    found = numbers.expand(each.shape)
    if isinstance(each, torch.nn.Parameter):
        return torch.nn.Parameter(found, requires_grad=each.is_floating_point())
    return found


def reached(tensors: list[torch.Tensor]) -> set[int]:
    """Return the id() of all leaves on which tensors depend."""
    found = {id(each) for each in tensors if each.grad_fn is None and each.requires_grad}
    waiting = [each.grad_fn for each in tensors if each.grad_fn is not None]
    seen = {*waiting}
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.add(id(leaf))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found
