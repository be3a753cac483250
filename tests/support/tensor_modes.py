"""Tensor parallel layers of torch under modes of its dispatcher; each function one rank's part."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torsh_runtime as tr

KEPT: dict[str, Callable[[str], bool]] = {
    "nothing": lambda name: False,
    "products": lambda name: "mm" in name,
    "views": lambda name: "view" in name,
    "all": lambda name: True,
}
"""Which of a checkpoint's operations are not done anew, by their names."""


def selectively_checkpointed(rank: int, kept: str, sequence_dim: int | None) -> dict[str, float]:
    """How far an input's gradient, and those of biases, are from one process's, where selective
    checkpointing keeps what some operations return."""
    torch: Any = importlib.import_module("torch")
    checkpoint: Any = importlib.import_module("torch.utils.checkpoint")
    policies = checkpoint.CheckpointPolicy

    def policy(context: Any, operation: Any, *inputs: Any, **named: Any) -> Any:
        keeps = KEPT[kept](str(operation))
        return policies.MUST_SAVE if keeps else policies.PREFER_RECOMPUTE

    torch.manual_seed(0)
    linear = partial(torch.nn.Linear, 8, 8, dtype=torch.float64)
    whole = torch.nn.Sequential(linear(), torch.nn.Tanh(), linear(), torch.nn.Tanh())
    plan = {"0": tr.Column(sequence_dim=sequence_dim), "2": tr.Row(sequence_dim=sequence_dim)}
    cut = tr.parallelize(copy.deepcopy(whole), None, plan)
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    own = x if sequence_dim is None else x.chunk(tr.get_world_size(), sequence_dim)[rank]
    whole_leaf, leaf = x.clone().requires_grad_(), own.clone().requires_grad_()
    whole(whole_leaf).square().sum().backward()
    contexts = partial(checkpoint.create_selective_checkpoint_contexts, policy)
    output = checkpoint.checkpoint(cut, leaf, use_reentrant=False, context_fn=contexts)
    output.square().sum().backward()
    wanted = whole_leaf.grad
    if sequence_dim is not None:
        wanted = wanted.chunk(tr.get_world_size(), sequence_dim)[rank]
    pairs = {"input": (leaf.grad, wanted), "bias": (cut[2].bias.grad, whole[2].bias.grad)}
    return {name: float((got - there).abs().max()) for name, (got, there) in pairs.items()}
