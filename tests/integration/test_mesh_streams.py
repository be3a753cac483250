"""Random numbers on a mesh: one process's masks, or streams by region; and streams by name."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from support import mesh_streams
from support.forked import Raised
from support.worlds import run_in_one_world

import torsh_runtime as tr
from torsh_runtime import nn

needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")


def found(*names: str) -> dict[str, list[Any]]:
    results = run_in_one_world(4, {name: getattr(mesh_streams, name) for name in names}, 60.0)
    for each in results.values():
        for rank, result in enumerate(each):
            told = isinstance(result, Raised)
            assert not told, f"rank {rank}: {result.error.trace}"
    return results


def test_masks_of_nn_are_pieces_of_those_of_one_process() -> None:
    found("nn_masks")


@pytest.mark.torch
@needs_torch
def test_masks_of_torch_are_alike_on_replicas_and_else_differ() -> None:
    masks = found("torch_masks", "torch_recomputed")["torch_masks"]
    (whole, own, after), (_, other, _), *replicas = masks
    assert [mask[1] for mask in replicas] == [own, other]
    assert own != other
    assert all((mask[0], mask[2]) == (whole, after) for mask in masks)


class Net(nn.Module):
    def __init__(self, names: str) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Dropout(0.5))

    def forward(self, x: Any) -> list[Any]:
        return [module(x).data.tolist() for module in self.children()]


def test_streams_by_name_do_not_depend_on_which_modules_there_are() -> None:
    whole, stage = Net("abc"), Net("bc")
    for each in (whole, stage):
        tr.draw_by_name(each)
    ones = nn.Tensor(np.ones(64))
    masks = []
    for microbatch in range(2):
        with tr.random_stream(1, 0, microbatch):
            (_, *wanted) = whole(ones)
        with tr.random_stream(1, 0, microbatch):
            assert stage(ones) == wanted
        masks += wanted
    assert all(one != other for at, one in enumerate(masks) for other in masks[:at])


class Twice(nn.Module):
    """Calls one module twice, and another one before it if it has one."""

    def __init__(self, *others: str) -> None:
        super().__init__()
        for name in others:
            self.add_module(name, nn.Dropout(0.5))
        self.shared = nn.Dropout(0.5)

    def forward(self, x: Any) -> list[Any]:
        others = [module for module in self.children() if module is not self.shared]
        rest = [module(x).data.tolist() for module in others]
        return [*(self.shared(x).data.tolist() for _ in range(2)), *rest]


def test_a_module_that_is_called_twice_draws_twice() -> None:
    whole, stage = Twice("other"), Twice()
    for each in (whole, stage):
        tr.draw_by_name(each)
    ones = nn.Tensor(np.ones(64))
    masks = []
    for microbatch in (0, 1, 0):
        with tr.random_stream(1, microbatch):
            first, second, _ = whole(ones)
        with tr.random_stream(1, microbatch):
            assert stage(ones) == [first, second]
        masks.append((first, second))
    assert masks[0] == masks[2]
    assert len({str(mask) for pair in masks for mask in pair}) == 4


@pytest.mark.torch
@needs_torch
def test_a_module_that_is_called_twice_is_computed_again_as_it_was() -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Dropout(0.5)
    tr.draw_by_name(layer)
    given = torch.ones(4, 64, requires_grad=True)
    results = []
    for microbatch in range(2):
        with tr.random_stream(7, microbatch):
            rows = given[2 * microbatch :][:2]
            results += [checkpoint(layer, row, use_reentrant=False) for row in rows]
    torch.stack(results).sum().backward()
    assert given.grad is not None
    assert torch.equal(given.grad, torch.stack(results))
    assert len({str(each.tolist()) for each in results}) == 4


@pytest.mark.torch
@needs_torch
def test_a_stream_leaves_no_trace() -> None:
    import torch

    torch.manual_seed(2)
    nn.manual_seed(2)
    wanted = torch.rand(2).tolist(), nn.randn(2).data.tolist()
    torch.manual_seed(2)
    nn.manual_seed(2)
    with tr.random_stream("a", 1):
        drawn = torch.rand(2).tolist(), nn.randn(2).data.tolist()
    assert (torch.rand(2).tolist(), nn.randn(2).data.tolist()) == wanted
    with tr.random_stream("a", 1):
        assert (torch.rand(2).tolist(), nn.randn(2).data.tolist()) == drawn
    assert nn.random.initial_seed() == 2


@pytest.mark.torch
@needs_torch
def test_what_checkpointing_computes_again_is_drawn_again() -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    layers = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Dropout(0.5))
    tr.draw_by_name(layers)
    given, results = torch.ones(2, 64, requires_grad=True), []
    for microbatch in range(2):  # two forward passes, and then their backward passes
        with tr.random_stream(7, microbatch):
            results.append(checkpoint(layers, given[microbatch], use_reentrant=False))
    torch.stack(results).sum().backward()
    assert given.grad is not None
    assert torch.equal(given.grad, torch.stack(results))
    own = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    tr.draw_by_name(own)
    ones = nn.Tensor(np.ones(64), requires_grad=True)
    with tr.random_stream(7, 0):
        result = nn.checkpoint(own, ones)
    result.sum().backward()
    assert ones.grad is not None
    assert (ones.grad.data == result.data).all()
