"""Losses that models of transformers have for the balance of experts, over all ranks' tokens."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module
from torsh_runtime.parallel import regions

_FUNCTION = "load_balancing_loss_func"
_OPTIONS = ("num_experts", "num_experts_per_tok", "router_aux_loss_coef")


def count_all_tokens(model: Module, axis: Any) -> None:
    """Let models that add such a loss to theirs count the tokens of all ranks for it: it is no mean
    of those of parts of a batch."""
    if axis.ranks.tokens.world_size == 1:
        return
    modules: Any = model.named_modules()
    found: Iterator[tuple[str, torch.nn.Module]] = modules
    for _, module in found:
        if hasattr(sys.modules.get(type(module).__module__), _FUNCTION) and _asks(module):
            module.register_forward_hook(_Balance(axis.ranks.tokens), with_kwargs=True)


def _asks(module: Any) -> bool:
    names = inspect.signature(type(module).forward).parameters
    return "labels" in names and "output_router_logits" in names


class _Balance:
    """Called with what a model gives."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __call__(self, model: Any, inputs: Any, named: Any, outputs: Any) -> Any:
        """Return the same outputs, with losses of all ranks' tokens."""
        given = inspect.signature(type(model).forward).bind_partial(model, *inputs, **named)
        told = given.arguments
        if isinstance(outputs, tuple) and _is_asked(model, told.get("output_router_logits")):
            raise ConfigError(
                f"{type(model).__name__} was asked for a tuple, in which its loss of the balance "
                f"of experts, over the tokens of all ranks, cannot be told: leave out "
                f"return_dict=False"
            )
        if not isinstance(getattr(outputs, "aux_loss", None), Tensor):
            return outputs
        missing = [name for name in _OPTIONS if not hasattr(model, name)]
        if missing:
            raise ConfigError(
                f"{type(model).__name__} has no {', '.join(missing)}, by which its loss of the "
                f"balance of experts would be counted over the tokens of all ranks: leave out "
                f"output_router_logits=True"
            )
        found = self._of_all(model, outputs.router_logits, told.get("attention_mask"))
        if outputs.loss is not None:
            more = (found - outputs.aux_loss) * model.router_aux_loss_coef
            outputs.loss = outputs.loss + more.to(outputs.loss)
        outputs.aux_loss = found
        return outputs

    def _of_all(self, model: Any, logits: Any, mask: Tensor | None) -> Tensor:
        rows = torch.stack([each.reshape(-1, each.shape[-1]) for each in logits], 1)
        told = self.group.all_gather_numbers(np.array([len(rows), mask is not None], np.int64))
        sizes = told[:, 0].tolist()
        every = regions.all_gather(rows, self.group, 0, sizes).unbind(1)
        masks = None
        if told[:, 1].any():
            own = (
                torch.ones_like(rows[:, 0, 0]) if mask is None else mask.reshape(-1).to(rows.dtype)
            )
            masks = regions.all_gather(own.detach(), self.group, 0, sizes)[None]
        function = getattr(sys.modules[type(model).__module__], _FUNCTION)
        found: Tensor = function(every, model.num_experts, model.num_experts_per_tok, masks)
        return found


def _is_asked(model: Any, given: bool | None) -> bool:
    config = getattr(model, "config", None)
    return bool(getattr(config, "output_router_logits", False) if given is None else given)
