"""Defines DistributedOptimizer, which makes an optimizer's steps the same on all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.horovod.torch.collectives import (
    Adasum,
    Average,
    grouped_allreduce_,
)
from torsh_runtime.integrations.horovod.torch.compression import Compression, Compressor
from torsh_runtime.integrations.horovod.torch.fusion import Fusion
from torsh_runtime.integrations.horovod.torch.world import (
    ProcessSet,
    global_process_set,
    size,
)
from torsh_runtime.integrations.torch.marking import mark_optimizers

Tensor = torch.Tensor

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object  # the optimizer's own class follows it among the bases


def DistributedOptimizer(  # noqa: N802  (Horovod's name for it)
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optimizer of the same class whose gradients are reduced over ranks.

    The reduction of a gradient starts when it is complete, in any order. step() waits for all of
    them; so does synchronize(), for programs that change gradients before `with
    optimizer.skip_synchronize(): optimizer.step()`. With op=Adasum each rank makes its own step,
    and the steps are combined.

    named_parameters: the names by which gradients of different ranks are matched; None: their
        order.
    backward_passes_per_step: the number of backward passes before each step.
    gradient_predivide_factor: divides before the sum; the rest of the average's division follows.
    num_groups, groups: have no effect. sparse_as_dense: reduces sparse gradients as dense ones.

    Raises ConfigError for arguments that do not fit.
    """
    if backward_passes_per_step < 1:
        raise ConfigError(f"backward_passes_per_step={backward_passes_per_step}: at least 1")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ConfigError(f"gradient_predivide_factor is for op=Average, not {op}")
    is_adasum = op == Adasum and size() > 1
    base = type(optimizer)
    kind = _AdasumOptimizer if is_adasum else _AveragingOptimizer
    made: Any = object.__new__(type(base.__name__, (kind, base), {}))
    kept = {name: each for name, each in vars(optimizer).items() if name != "step"}
    vars(made).update(kept)  # without the `step` that a scheduler may have put there
    made._options = {"op": op, "process_set": process_set}
    if gradient_predivide_factor != 1.0:
        factor = gradient_predivide_factor
        made._options |= {"prescale_factor": 1 / factor, "postscale_factor": factor}
    made._compression, made._sparse_as_dense = compression, sparse_as_dense
    made._names = _names(made, named_parameters)
    made.backward_passes_per_step = backward_passes_per_step
    made._begin()
    return made


class _AveragingOptimizer(_Base):
    """Reduces gradients while the backward pass is running."""

    _options: dict[str, Any]
    _compression: type[Compressor]
    _sparse_as_dense: bool
    _names: dict[Tensor, str]
    backward_passes_per_step: int

    def _begin(self) -> None:
        mark_optimizers()
        self._complete: set[Tensor] = set()
        self._passes: dict[Tensor, int] = dict.fromkeys(self._names, 0)
        self._watched: set[Tensor] = set()
        self._is_synchronized = False
        self._skips = False
        set_of_ranks = self._options["process_set"]
        self._is_distributed = set_of_ranks.included() and set_of_ranks.size() > 1
        if self._is_distributed:
            how = self._options, self._compression, self._sparse_as_dense
            self._fusion = Fusion(self._names, *how)
            self._watch()

    def _watch(self) -> None:
        """Register hooks on parameters that require gradients."""
        for parameter in self._names:
            if parameter.requires_grad and parameter not in self._watched:
                self._watched.add(parameter)
                register: Any = parameter.register_post_accumulate_grad_hook
                register(self._count)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, and reduce the gradients of its parameters, too."""
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            self._names[parameter] = f"parameter {len(self._names)}"
            self._passes[parameter] = 0
        if self._is_distributed:
            self._watch()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes before each step from now on."""
        self.backward_passes_per_step = passes
        self._passes = dict.fromkeys(self._names, 0)

    def _count(self, parameter: Tensor) -> None:
        """Count a backward pass that has given the parameter's gradient."""
        if parameter in self._complete:
            raise AssertionError(
                f"{self._names[parameter]} has had {self.backward_passes_per_step} backward "
                f"pass(es) since the last step(): call step() or synchronize(), or raise "
                f"backward_passes_per_step"
            )
        self._passes[parameter] += 1
        if self._passes[parameter] == self.backward_passes_per_step:
            self._complete.add(parameter)
            self._fusion.come(parameter)

    def synchronize(self) -> None:
        """Wait until all gradients are reduced."""
        if self._is_distributed:
            try:
                self._fusion.finish()
            finally:
                self._complete.clear()
                self._passes = dict.fromkeys(self._names, 0)
            self._watch()
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Keep step() from reducing gradients in this block, as synchronize() has done so."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the optimizer once all gradients are reduced."""
        if not self._skips:
            if self._is_synchronized:
                warnings.warn(
                    "step() reduces gradients again that synchronize() has reduced: call it within "
                    "`with optimizer.skip_synchronize():`",
                    stacklevel=2,
                )
            self.synchronize()
        self._is_synchronized = False
        return super().step(closure)

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """Reset the optimizer's gradients. Raises AssertionError while they are being reduced."""
        if self._complete:
            raise AssertionError(
                "zero_grad() was called while gradients are reduced: call step() or synchronize() "
                "first"
            )
        super().zero_grad(*arguments, **named)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's state once complete gradients are reduced.

        Backward passes are counted from zero again.
        """
        if self._complete:
            self.synchronize()
        self._passes = dict.fromkeys(self._names, 0)
        self._is_synchronized = False
        super().load_state_dict(state_dict)


class _AdasumOptimizer(_Base):
    """Makes a step on each rank, and combines these steps."""

    _options: dict[str, Any]
    _compression: type[Compressor]
    _names: dict[Tensor, str]
    backward_passes_per_step: int

    def _begin(self) -> None:
        if self._options["process_set"] is not global_process_set:
            raise ConfigError("op=Adasum combines the steps of all ranks: leave process_set out")

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number, which has no effect, as Adasum combines steps."""
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Do nothing: each rank keeps its own gradients."""

    def skip_synchronize(self) -> Any:
        """Raise AssertionError: there is nothing to skip."""
        raise AssertionError("op=Adasum combines steps, and not gradients: call step() alone")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the optimizer, and combine the step with the other ranks' steps."""
        parameters = [each for each in self._names if each.requires_grad]
        before = [each.detach().clone() for each in parameters]
        loss = super().step(closure)
        with torch.no_grad():
            deltas = [each - start for each, start in zip(parameters, before, strict=True)]
            sent, contexts = zip(*map(self._compression.compress, deltas), strict=True)
            combined = grouped_allreduce_([*sent], name="adasum.step", op=Adasum)
            for each, start, delta, context in zip(
                parameters, before, combined, contexts, strict=True
            ):
                each.copy_(start + self._compression.decompress(delta, context))
        return loss


def _names(
    optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, Tensor]] | None
) -> dict[Tensor, str]:
    """Return the optimizer's parameters with their names. Raises ConfigError for wrong names."""
    own = [each for group in optimizer.param_groups for each in group["params"]]
    if named is None:
        return {each: f"parameter {number}" for number, each in enumerate(own)}
    pairs = [*named]
    if not all(isinstance(each, tuple) and len(each) == 2 for each in pairs):
        raise ConfigError("named_parameters takes pairs, such as model.named_parameters() gives")
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"named_parameters has more than one {', '.join(twice)}: name each once")
    by_parameter = {parameter: name for name, parameter in pairs}
    missing = sum(each not in by_parameter for each in own)
    if missing:
        raise ConfigError(
            f"named_parameters leaves out {missing} of the optimizer's parameters: give all their "
            f"names, or none"
        )
    return {each: by_parameter[each] for each in own}
