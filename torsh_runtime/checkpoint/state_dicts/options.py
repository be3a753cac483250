"""Says how states are returned and set, and of what."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.state.optimizers import is_optimizer

MODEL, OPTIMIZER = "model", "optimizer"
"""Names of the two in a state."""


@dataclass(frozen=True)
class StateDictOptions:
    """Says how states are returned and set, with the names and meanings of torch's class.

    Wherever it is taken, torch's own StateDictOptions is taken as well.

    Example:
        ```python
        options = tr.StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = tr.get_model_state_dict(model, options=options)
        ```
    """

    full_state_dict: bool = False
    """True for whole tensors. Otherwise they are this rank's pieces, as ShardedTensor, of what is
    cut."""
    cpu_offload: bool = False
    """True for tensors in the host's memory. Whole ones are then on rank 0 only, and the others
    get an empty dict."""
    ignore_frozen_params: bool = False
    """True to leave parameters that need no gradients out of a model's state."""
    strict: bool = True
    """True if missing and unexpected names are an error when a state is set."""
    broadcast_from_rank0: bool = False
    """True if rank 0 alone has the state that is set, and gives the others their parts, a tensor at
    a time. Requires full_state_dict."""

    @classmethod
    def of(cls, options: Any) -> StateDictOptions:
        """Return options of this class or torch's as ones of this class. Raises TypeError."""
        if options is None:
            return cls()
        if not all(hasattr(options, each.name) for each in fields(cls)):
            raise TypeError(
                f"options must be a StateDictOptions, not {type(options).__name__}: write "
                f"options=tr.StateDictOptions(full_state_dict=True)"
            )
        if getattr(options, "flatten_optimizer_state_dict", False):
            raise ConfigError(
                "flatten_optimizer_state_dict=True is not supported: leave it out, so that the "
                "state has 'state' and 'param_groups'"
            )
        found = cls(**{each.name: getattr(options, each.name) for each in fields(cls)})
        if found.broadcast_from_rank0 and not found.full_state_dict:
            raise ConfigError("broadcast_from_rank0=True requires full_state_dict=True")
        return found

    @property
    def is_on_all(self) -> bool:
        """Return whether whole tensors are on all ranks."""
        return not self.cpu_offload


def several(optimizers: Any) -> list[Any]:
    """Return a list of one optimizer or several."""
    return [optimizers] if is_optimizer(optimizers) else [*optimizers]
