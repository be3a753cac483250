"""Modules of torch of any class that hold experts, of which each rank has some."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.torch.compiling import leave_alone
from torsh_runtime.layout import Shard
from torsh_runtime.parallel.dispatch.routing import Groups
from torsh_runtime.parallel.dispatch.rows import Beside
from torsh_runtime.parallel.dispatch.sending import is_routed_there, mixed
from torsh_runtime.parallel.operations import applied
from torsh_runtime.parallel.tensor.anyone import AnyLayer, argument_names
from torsh_runtime.parallel.tensor.axis import Axis
from torsh_runtime.parallel.tensor.cuts import cuts, sharded
from torsh_runtime.parallel.tensor.kinds import replaced
from torsh_runtime.parallel.tensor.parts import Layouts
from torsh_runtime.parallel.tensor.plan import Experts, Own
from torsh_runtime.parallel.tensor.trying import number_of_experts, tried


class ExpertsOfAny(AnyLayer):
    """Computes the own experts' part of the outputs of all experts."""

    entry: Experts
    sums_parts = True
    """Modules below it compute with other tokens than one process's."""
    parts_group = None
    """Ranks with other experts have tokens of their own: see `parameter_layouts`."""

    @classmethod
    def shards(cls, plain: Any, entry: Own, axis: Axis) -> dict[str, Shard]:
        number = number_of_experts(plain, entry.entry.counts)
        if number < axis.size:
            raise ConfigError(
                f"{number} expert(s) are too few for {axis.size} ranks: take a smaller axis 'ep'"
            )
        found = sharded(number, axis.size)
        tried(plain, entry.entry.counts)
        return dict.fromkeys(plain._parameters, found)

    def become(self, entry: Own, axis: Axis, where: str, lie: Layouts) -> None:
        super().become(entry, axis, where, lie)
        every = next(iter(lie.values())).shape[0]
        self._cuts = cuts(every, axis.size)
        own = self._cuts[axis.index + 1] - self._cuts[axis.index]
        for name in entry.entry.counts:
            setattr(self, name, own)

    @leave_alone
    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the weighted outputs of all experts, as the module's own forward() does."""
        if self.axis.size == 1:
            return super().forward(*inputs, **named)
        tokens, chosen, weights = self._arguments(inputs, named)
        rows = tokens.reshape(-1, tokens.shape[-1])
        chosen, weights = (each.reshape(-1, each.shape[-1]) for each in (chosen, weights))
        places: Any = chosen.detach().long()
        if not is_routed_there(rows):
            places = places.cpu().numpy()
        axis: Any = self.axis
        found = mixed(axis.ranks, self._cuts, rows, places, weights, self._computed)
        return found.to(tokens.dtype).reshape(tokens.shape)

    def _arguments(self, inputs: Any, named: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, experts and weights. Raises ConfigError for anything else."""
        names = argument_names(type(self))
        given = dict(zip(names, inputs, strict=False)) | named
        tokens, chosen, weights = (given.pop(name, None) for name in names[:3])
        others = [name for name, each in given.items() if each is not None]
        is_right = not others and all(isinstance(e, Tensor) for e in (tokens, chosen, weights))
        if is_right:
            is_right = not chosen.is_floating_point() and chosen.shape == weights.shape
        if not is_right or chosen.shape[:-1].numel() != tokens.shape[:-1].numel():
            told = ", ".join(map(_told, (*inputs, *others)))
            raise ConfigError(
                f"{self.where}: experts that are spread over ranks take tokens, the experts of "
                f"each and their weights, and were given {told}"
            )
        return tokens, chosen, weights

    def _computed(self, rows: Tensor, groups: Groups) -> Tensor:
        """Return the outputs of this rank's experts for rows that are sorted by expert."""
        axis: Any = self.axis
        own = {name: axis.ranks.averaged(each) for name, each in self._parameters.items()}
        chosen = _experts_of(groups).to(rows.device)[:, None]
        this: Any = self
        with replaced({this: own}):
            found = super().forward(rows, chosen, rows.new_ones(chosen.shape))
        joined: Tensor = applied(Beside(), found, rows, *own.values())
        return joined


def _experts_of(groups: Groups) -> Tensor:
    """Return the expert of each row."""
    if groups.ends is None:
        return torch.arange(len(groups.counts)).repeat_interleave(torch.tensor(groups.counts))
    counts, every = groups.ends.diff(prepend=groups.ends.new_zeros(1)), sum(groups.counts)
    numbers = torch.arange(len(counts), device=counts.device)
    return numbers.repeat_interleave(counts, output_size=every)


def _told(given: Any) -> str:
    if isinstance(given, Tensor):
        return f"{tuple(given.shape)} {given.dtype}"
    return str(given) if isinstance(given, str) else type(given).__name__
