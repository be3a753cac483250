"""Runs the model's own forward() for one stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torsh_runtime.parallel.pipeline.batches import Call
from torsh_runtime.parallel.pipeline.splitting import works_in_place
from torsh_runtime.parallel.pipeline.whole.copying import Copy, Mode, merged_copies, placeholder
from torsh_runtime.parallel.pipeline.whole.structures import Structure, parted

Module = torch.nn.Module
_Parted = tuple[Structure, list[torch.Tensor]]


class Part(NamedTuple):
    """Describes a stage's part of a model."""

    layers: tuple[str, ...]
    absent: frozenset[str]
    """Layers of other stages, and modules whose output comes from another stage."""
    parameters: frozenset[str]
    """Names of the stage's parameters outside of layers."""
    entering: Mapping[str, Structure]
    """Outputs, by module, that come from the stage before."""
    leaving: Mapping[str, Structure | None]
    """Outputs, by module, for the next stage; None: the structure is not known yet."""
    instead: Mapping[str, str]
    """For absent layers whose own output does not come, the module whose output replaces it."""
    following: str
    """The next stage's first layer; "" for the last stage."""
    dtype: torch.dtype | None = None
    """Dtype of the first tensor that comes, as long as the model has the dtype that it had when
    cut.
    """


class _Reached(BaseException):
    """Signals that a pass has come to the next stage's first layer. It is no Exception, because
    models catch these.
    """

    def __init__(self, passing: Passing) -> None:
        super().__init__("the next stage's first layer is called by that stage")
        self.passing = passing


class Passing:
    """Holds the inputs and outputs of a stage's pass."""

    def __init__(self, part: Part, copies: bool) -> None:
        """Prepare passes. copies: whether the first layer works in place, which needs copies."""
        self._part, self._copies = part, copies
        self._entered: dict[str, _Parted] = {}
        self._noted: dict[str, _Parted] = {}

    def enter(self, received: Sequence[Any]) -> None:
        """Take the tensors from the stage before, in order."""
        rest = [each.clone() for each in received] if self._copies else list(received)
        self._entered, self._noted = {}, {}
        for name, structure in self._part.entering.items():
            own, rest = rest[: structure.tensors], rest[structure.tensors :]
            self._entered[name] = structure, list(own)

    def output_of(self, name: str) -> Any:
        """Return an absent module's output."""
        if name == self._part.following:
            raise _Reached(self)
        structure, tensors = self._entered[self._part.instead.get(name, name)]
        return structure.filled(tensors)

    def note(self, name: str, output: Any) -> None:
        """Note a module's output that crosses the next cut, before its caller may change it."""
        self._noted[name] = parted(output, name)

    def left(self) -> dict[str, _Parted]:
        """Return what crosses the next cut. TypeError for another structure than the example's."""
        found = {**self._entered, **self._noted}
        self._entered, self._noted = {}, {}
        outputs = {}
        for name, structure in self._part.leaving.items():
            if name not in found:
                raise RuntimeError(f"{name} was not called before {self._part.following}")
            outputs[name] = found[name]
            if structure not in (None, outputs[name][0]):
                raise TypeError(
                    f"{name} returned {outputs[name][0]}, and for the example {structure}: pass an "
                    f"example= that is like your batches"
                )
        return outputs


class WholeStage(torch.nn.Module):
    """Runs a part of a model, under the names that it has in the model. It is called with what the
    stage before returned, and with the microbatch that the model gets.
    """

    _own: Module
    """Copy of the model, which is no child: it has this module's parameters and children."""

    def __init__(self, model: Module, part: Part) -> None:
        super().__init__()
        copies = works_in_place(model.get_submodule(part.layers[0]))
        self.part, self._passing = part, Passing(part, copies)
        copy = Copy(model, part, self._passing)
        self._share(copy.of(model, ""))
        self._placeholders, self._modes = copy.placeholders, [*copy.modes, Mode(self, model)]
        self.structures: dict[str, Structure] = {}
        """Structures of the outputs that crossed the next cut in the last pass."""
        self.defaults: dict[str, Any] = {}
        """Arguments of the model unless the microbatch has them."""
        self.counted: Callable[[Call], float] | None = None
        """Counts, for a microbatch, the elements whose mean is the model's own loss."""

    def _share(self, own: Module) -> None:
        # The same dicts, so that both have whatever wrappers put there.
        self._parameters, self._modules, self._buffers = own._parameters, own._modules, own._buffers
        self.__dict__["_own"] = own
        layouts = getattr(own, "parameter_layouts", None)
        if layouts is not None:
            self.parameter_layouts = layouts

    def forward(self, *received: Any, microbatch: Call) -> Any:
        """Return a tuple of tensors for the next stage; in the last one what the model returns."""
        arguments, named = microbatch
        for each in self._modes:
            each.follow()
        self._own.training = self.training
        self._place(received)
        self._passing.enter(received)
        try:
            output = self._own(*arguments, **{**self.defaults, **named})
        except _Reached as reached:
            if reached.passing is not self._passing:
                raise
            left = self._passing.left()
            self.structures = {name: structure for name, (structure, _) in left.items()}
            return tuple(each for _, tensors in left.values() for each in tensors)
        if self.part.following:
            raise RuntimeError(
                f"{type(self._own).__qualname__}.forward() did not call {self.part.following}, "
                f"with which the next stage begins: layers may not be left out"
            )
        return output

    def merged_with(self, others: Sequence[WholeStage]) -> Module:
        """Merge stages of the same model into a module with all their layers and parameters."""
        return _Merged([self, *others])

    def _place(self, received: Sequence[Any]) -> None:
        """Move placeholders to the model's present device and dtype."""
        like = next((each for each in received if each.is_floating_point()), None)
        if like is None:
            like = next(self.parameters(), None)
        if like is None:
            return
        for module, name, first in self._placeholders:
            there = module.__dict__[name]
            dtype = like.dtype if first is self.part.dtype else first
            if there.device != like.device or there.dtype is not dtype:
                module.__dict__[name] = placeholder(there.shape, dtype, like.device)


class _Merged(torch.nn.Module):
    """Merges the stages of one rank. Each stage has copies of the modules that are no layers, with
    the same parameters: modes, dtypes and devices are passed on to these.
    """

    _stages: Sequence[WholeStage]
    """Stages, which are no children, because their parameters would have other names."""
    _own: Module
    """Copy of the model with the parameters and children of all stages."""

    def __init__(self, stages: Sequence[WholeStage]) -> None:
        super().__init__()
        own = merged_copies([each._own for each in stages])
        self._parameters, self._modules, self._buffers = own._parameters, own._modules, own._buffers
        self.__dict__ |= {"_stages": stages, "_own": own}

    def train(self, mode: bool = True) -> _Merged:
        """Set the mode of all stages."""
        for each in self._stages:
            each.train(mode)
        super().train(mode)
        return self

    def _apply(self, fn: Callable[..., torch.Tensor], recurse: bool = True) -> _Merged:
        modules: list[Any] = [*self._stages, super()]
        for each in modules:
            each._apply(fn, recurse)
        return self
