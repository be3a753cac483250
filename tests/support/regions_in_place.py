"""What is written in place around collectives within a model; each function one rank's part."""

from __future__ import annotations

import importlib
from typing import Any

import torsh_runtime as tr
from torsh_runtime.parallel import regions


def overwriting_a_view(rank: int) -> bool:
    """Whether a sum in the memory of a view, which torch derives from its base, is one all the
    same."""
    torch: Any = importlib.import_module("torch")
    group = tr.group.WORLD
    assert group is not None
    leaf = torch.full((2, 3), rank + 1.0, requires_grad=True)
    total = regions.reduce((leaf * 2).t(), group, overwrites=True)
    (total * 3).sum().backward()
    return bool((total == 6).all() and (leaf.grad == 6).all())


def overwritten_though_saved(rank: int) -> str:
    """What torch says of a sum in memory that a backward pass needs."""
    torch: Any = importlib.import_module("torch")
    group = tr.group.WORLD
    assert group is not None
    saved = torch.ones(2, requires_grad=True).exp()
    regions.reduce(saved, group, overwrites=True)
    try:
        saved.sum().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def overwriting_what_is_read(rank: int) -> list[str]:
    """What torch says where what only reads the result of a copy is preceded by writing in place to
    it, with and without a graph, to what was copied, or to what that is a view of."""
    torch: Any = importlib.import_module("torch")
    group = tr.group.WORLD
    assert group is not None
    said = []
    for number, records in ((0, True), (0, False), (1, True), (2, True)):
        leaf = torch.ones(3, requires_grad=True)
        base = leaf * 1
        tensor = base[:2]
        copied = regions.copy(tensor, group)
        try:
            with torch.set_grad_enabled(records):
                (copied, tensor, base)[number].mul_(2)
            copied.sum().backward()
            said.append(str(leaf.grad))
        except RuntimeError as error:
            said.append(str(error))
    return said
