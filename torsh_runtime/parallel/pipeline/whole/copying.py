"""Copies a model's modules, with some of them absent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

if TYPE_CHECKING:
    from torsh_runtime.parallel.pipeline.whole.stages import Part, Passing

Module = torch.nn.Module


class _Absent:
    """Stands for a layer of another stage: it has the layer's class and attributes, and no
    parameters.
    """

    def __call__(self, *_: Any, **__: Any) -> Any:
        passing, name = self.__dict__["torsh_place"]
        return passing.output_of(name)


class _Noting:
    """Notes the output of a module if it crosses a cut."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        output = super().__call__(*arguments, **named)  # type: ignore[misc]
        passing, name = self.__dict__["torsh_place"]
        passing.note(name, output)
        return output


class Mode:
    """Keeps a copy's training mode: the one set last, on the copy or on the model."""

    def __init__(self, made: Module, original: Module) -> None:
        self._made, self._original, self._seen = made, ref(original), original.training

    def follow(self) -> None:
        """Copy the model's mode if it has changed since the last call."""
        original = self._original()
        if original is not None and original.training is not self._seen:
            self._made.training = self._seen = original.training


class Copy:
    """Makes a stage's copy of a model. Its layers are the model's own, and so are parameters."""

    def __init__(self, model: Module, part: Part, passing: Passing) -> None:
        self._part, self._passing = part, passing
        named = model.named_parameters(remove_duplicate=False)
        self._kept = {id(each) for name, each in named if name in part.parameters}
        self._made: dict[int, Module] = {}
        self.modes: list[Mode] = []
        self.placeholders: list[tuple[Module, str, torch.dtype]] = []
        """Modules with placeholders, the names of these, and the dtypes that the parameters had."""

    def of(self, module: Module, path: str) -> Module:
        """Return the copy of the module that has this path in the model."""
        if path in self._part.absent:
            return self._absent(module, path)
        is_noting = path in self._part.leaving
        if path in self._part.layers:
            return self._placed(self._copied(module), path) if is_noting else module
        if id(module) in self._made:
            return self._made[id(module)]
        made = self._made[id(module)] = self._copied(module)
        made._buffers = dict(made._buffers)
        made._modules = {
            name: None if child is None else self.of(child, f"{path}.{name}".lstrip("."))
            for name, child in made._modules.items()
        }
        self._leave_out(made)
        return self._placed(made, path) if is_noting else made

    def _copied(self, module: Module) -> Module:
        made: Module = _shallow(module)
        self.modes.append(Mode(made, module))
        return made

    def _placed(self, made: Module, path: str) -> Module:
        made.__class__ = _mixed(_Noting, type(made))
        made.__dict__["torsh_place"] = self._passing, path
        return made

    def _absent(self, module: Module, path: str) -> Module:
        kind = _mixed(_Absent, type(module))
        made: Module = kind.__new__(kind)
        Module.__init__(made)
        there = {*made.__dict__, "parameter_layouts"}
        made.__dict__ |= {name: v for name, v in module.__dict__.items() if name not in there}
        made.__dict__["torsh_place"] = self._passing, path
        return made

    def _leave_out(self, made: Module) -> None:
        """Replace parameters that the stage does not have by placeholders.

        Parameters that are not of floating point are all kept.
        """
        own = dict(made._parameters)
        made._parameters = own
        for name, each in [*own.items()]:
            if each is None or id(each) in self._kept or not each.is_floating_point():
                continue
            del own[name]
            made.__dict__[name] = placeholder(each.shape, each.dtype, each.device)
            self.placeholders.append((made, name, each.dtype))
        layouts: Any = made.__dict__.get("parameter_layouts")
        if layouts:
            made.__dict__["parameter_layouts"] = {k: v for k, v in layouts.items() if k in own}


def placeholder(shape: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor of this shape that is one NaN in memory, so that any use is noticed."""
    return torch.full((), torch.nan, dtype=dtype, device=device).expand(shape)


def merged_copies(modules: Sequence[Module]) -> Module:
    """Merge copies of one module into one that has everything each of them has."""
    present = [each for each in modules if not isinstance(each, _Absent)]
    first = (present or [*modules])[0]
    if all(each is first for each in present[1:]):
        return first
    made: Module = _shallow(first)
    for kind in ("_parameters", "_buffers"):
        made.__dict__[kind] = {k: v for each in present for k, v in each.__dict__[kind].items()}
    for name, each in made._parameters.items():
        if each is not None:
            made.__dict__.pop(name, None)
    names = dict.fromkeys(name for each in present for name in each._modules)
    made._modules = {name: _merged_child([m._modules.get(name) for m in present]) for name in names}
    layouts = [each.__dict__.get("parameter_layouts") or {} for each in present]
    if any(layouts):
        made.__dict__["parameter_layouts"] = {k: v for each in layouts for k, v in each.items()}
    return made


def _merged_child(children: Sequence[Module | None]) -> Module | None:
    there = [each for each in children if each is not None]
    return merged_copies(there) if there else None


def _shallow(module: Module) -> Any:
    """Return a copy with the same parameters and children, in the same dicts."""
    made = type(module).__new__(type(module))
    made.__dict__ |= module.__dict__
    return made


def _mix(mixin: type, kind: type) -> type:
    """Make a class of the same name, by which libraries recognize classes of modules."""
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (mixin, kind), names)


_mixed: Any = cache(_mix)
