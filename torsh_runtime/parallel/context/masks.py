"""Masks that go through a model's layers unread, and refuse to be computed with."""

from __future__ import annotations

from typing import Any

import torch

from torsh_runtime.errors import ConfigError

_HARMLESS = {
    "__get__",
    "as_subclass",
    "clone",
    "contiguous",
    "detach",
    "dim",
    "is_floating_point",
    "requires_grad_",
    "size",
    "to",
}


class Mask(torch.Tensor):
    """Numbers that Look.of() reads, in the place of a mask with a number for each pair of tokens.

    A model that changes its mask, as one does whose attention makes a mask of its own, would change
    these. It is refused.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch that looks at shapes alone. Raises ConfigError for others."""
        name = getattr(func, "__name__", "")
        if name not in _HARMLESS and not torch.compiler.is_compiling():
            raise ConfigError(
                f"the model computes with its attention_mask ({name}), as attentions do that make "
                f"a mask of their own, and context parallelism has none for whole sequences: use a "
                f"model without that"
            )
        call: Any = super().__torch_function__
        return call(func, types, args, kwargs or {})

    def plain(self) -> torch.Tensor:
        """Return the numbers."""
        return self.as_subclass(torch.Tensor)


def unread(numbers: torch.Tensor) -> torch.Tensor:
    """Return the numbers as a Mask; as they are within a graph of torch.compile."""
    return numbers if torch.compiler.is_compiling() else numbers.as_subclass(Mask)
