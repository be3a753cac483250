"""A plan carried out on a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal, TypeVar

from torsh_runtime.comm.agreement import Attempt, agree_in_turn
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, Tensor, framework_of, framework_of_model
from torsh_runtime.framework.models import all_parameters
from torsh_runtime.framework.parts import Same
from torsh_runtime.parallel import automatic
from torsh_runtime.parallel.agreement import SAME_VALUES, model_told, values_told
from torsh_runtime.parallel.layouts import sharded_by_id
from torsh_runtime.parallel.tensor.axis import (
    DEFAULT_NAME,
    Axis,
    axis_beside,
    axis_of,
    experts_axis_of,
    has_experts,
)
from torsh_runtime.parallel.tensor.checks import check_plan
from torsh_runtime.parallel.tensor.kits import Kit, layers_of
from torsh_runtime.parallel.tensor.layer import Layer
from torsh_runtime.parallel.tensor.outputs import refuse_parts
from torsh_runtime.parallel.tensor.parts import (
    Layouts,
    keep_part,
    layouts,
)
from torsh_runtime.parallel.tensor.plan import (
    Attention,
    Block,
    Cut,
    Entry,
    Experts,
    Own,
    Row,
    Shared,
    Summed,
    matched,
)

Model = TypeVar("Model", bound=Module)


def parallelize(model: Model, mesh: Any, plan: Mapping[str, Entry] | Literal["auto"]) -> Model:
    """Let each rank of an axis have its part of a model of torch or of torsh_runtime.nn, in place.

    Args:
        model: The model, the same on all ranks, with the same values; its parameters stay the
            objects that they are, and hold the ranks' parts of those values.
        mesh: A mesh with one axis, or with one called "tp", or a group; None is the default group.
            Along an axis called "ep" ranks have experts: those are whole, and each rank has tokens
            of its own except along "tp".
        plan: What to do with which modules. Names are those of named_modules(), in which * and ?
            match what is between two dots. "auto" is that of plan_of(), for models of transformers.

    Returns:
        The model.

    Raises:
        ConfigError: On all ranks, with nothing changed: for patterns that match no module, or one
            that a different one matches; entries that are not for a layer of that kind; heads and
            features that cannot be cut; weights of several layers that are cut in one only; and
            where plans, models or values differ between ranks.
        TypeError: If `model` is no model.
        CommError: If an exchange among the ranks fails.

    Example:
        ```python
        plan = {"blocks.*.mlp.up": tr.Column(), "blocks.*.mlp.down": tr.Row()}
        model = tr.parallelize(model, mesh, plan)
        ```
    """
    framework_of_model(model)  # TypeError for what is none
    axes, tasks = _Axes(mesh), list[_Task]()
    with Attempt() as attempt:
        tasks = [*_tasks(model, axes.resolved(plan, model), axes)]
        _check_tied(model, tasks)
    spread = sharded_by_id(model)  # as experts along another axis, of the same ranks maybe
    named = all_parameters(model)
    same = [each for each in named if id(each[1]) not in spread]
    told = {
        "plan": [f"{task.where}: {task.entry}" for task in tasks],
        **model_told(model, False, spread.keys()),
        "values": [] if attempt.error else values_told(same),
    }
    groups = {axis.group: {"ranks": axis.size, **told} for axis in axes.used}
    agree_in_turn(groups, "parallelize", attempt.error, SAME_VALUES)
    _carry_out(tasks, axes.tensor, same)
    _adapt_modules(model, tasks, axes)
    if axes.experts is not None:
        layers_of(framework_of(model).name).count_all_tokens(model, axes.experts)
    return model


class _Axes:
    """Holds the axes of a mesh along which a model is spread.

    Attributes: tensor, experts (None where the plan has none).
    """

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh
        self.experts: Axis | None = None
        self.tensor = axis_beside(mesh) if has_experts(mesh) else axis_of(mesh)

    @property
    def used(self) -> list[Axis]:
        """Return the axes in the order in which ranks exchange messages along them."""
        return [self.tensor] if self.experts is None else [self.tensor, self.experts]

    def resolved(self, plan: Mapping[str, Entry] | str, model: Module) -> Mapping[str, Entry]:
        """Return the plan that is meant. Raises ConfigError for entries for which the mesh has
        no axis."""
        found = automatic.resolved(plan, model, self.tensor.size, has_experts(self.mesh))
        others = [pattern for pattern, entry in found.items() if not isinstance(entry, Experts)]
        if len(others) < len(found):
            self.experts = experts_axis_of(self.mesh)
            if others and DEFAULT_NAME not in self.mesh.mesh_dim_names:
                raise ConfigError(
                    f"{self.mesh} has no axis {DEFAULT_NAME!r} along which layers are cut, as the "
                    f"plan says of {others[0]!r}: pass a mesh that has one, of 1 rank maybe"
                )
        elif has_experts(self.mesh):
            self.tensor = axis_of(self.mesh)
        return found

    def of(self, entry: Any) -> Axis:
        """Return the axis of an entry."""
        is_of_experts = isinstance(_around(entry), Experts)
        return self.experts if is_of_experts and self.experts is not None else self.tensor


@dataclass(frozen=True, slots=True)
class _Task:
    """Describes what is done with one module."""

    where: str
    module: Any
    entry: Any
    kind: type[Layer]
    lie: Layouts
    axis: Axis


def _tasks(model: Module, plan: Mapping[str, Entry], axes: _Axes) -> Iterator[_Task]:
    modules, layers = dict(model.named_modules()), layers_of(framework_of(model).name)
    owners = {
        ".".join(filter(None, (where, name))): (where, name)
        for where, module in modules.items()
        for name, _ in module.named_parameters(recurse=False)
    }
    entries: dict[str, Entry] = {}
    own: dict[str, dict[str, Cut | Shared]] = {}
    for name, entry in matched(modules, plan, owners).items():
        if name in owners and isinstance(entry, Cut | Shared):
            where, parameter = owners[name]
            own.setdefault(where, {})[parameter] = entry
            continue
        for below, each in _expanded(layers, name, modules[name], entry, axes.tensor).items():
            where = ".".join(filter(None, (name, below)))
            if where in entries:
                raise ConfigError(f"the plan says twice what becomes of {where!r}")
            entries[where] = each
    said = {
        where: _joined(layers, where, module, entries.get(where), own.get(where, {}))
        for where, module in modules.items()
        if where in entries or where in own
    }
    for where, entry in said.items():
        yield _task(layers, where, modules[where], entry, axes.of(entry))
    if axes.tensor.size > 1:
        check_plan(model, said)


def _joined(
    layers: Kit, where: str, module: Module, entry: Entry | None, own: dict[str, Cut | Shared]
) -> Any:
    """Return what the plan says of a module and of parameters of its own. Raises ConfigError if
    it says both and these conflict."""
    if entry is None or layers.is_around(module, entry):
        return Own(entry, own)
    if own:
        raise ConfigError(
            f"the plan says {type(entry).__name__}() of {where!r}, and something else of its "
            f"{', '.join(own)}"
        )
    return entry


def _task(layers: Kit, where: str, module: Module, entry: Any, axis: Axis) -> _Task:
    parallel = layers.kind_of(where, module, entry)
    try:
        shards = parallel.shards(module, entry, axis)
    except ConfigError as error:
        raise ConfigError(f"{where!r} cannot be cut: {error}") from None
    _check_own(where, module, shards)
    _check_ungraded(where, module, shards)
    return _Task(where, module, entry, parallel, layouts(module, shards, axis), axis)


def _check_own(where: str, module: Module, names: Iterable[str]) -> None:
    """Raise ConfigError for names that are cut, and are computed from other parameters."""
    own = dict(module.named_parameters(recurse=False))
    made = [name for name in names if name not in own and getattr(module, name, None) is not None]
    if made:
        raise ConfigError(
            f"{where!r} cannot be cut: its {made[0]} is no parameter, but computed of others, "
            f"{', '.join(own) or 'of modules below it'}"
        )


def _check_ungraded(where: str, module: Module, names: Iterable[str]) -> None:
    """Raise ConfigError for parameters that are cut, and have a gradient of the whole."""
    for name in names:
        if getattr(getattr(module, name, None), "grad", None) is not None:
            raise ConfigError(
                f"{where!r} cannot be cut: its {name} has a gradient of an earlier backward pass, "
                f"which would be of another size: call model.zero_grad() before"
            )


def _expanded(layers: Kit, name: str, module: Module, entry: Entry, axis: Axis) -> dict[str, Entry]:
    """Return what an entry means for a module and those below it."""
    found = {"": entry}
    if isinstance(entry, Block):
        if not isinstance(module, layers.BLOCKS):
            names = ", ".join(kind.__name__ for kind in layers.BLOCKS)
            raise ConfigError(f"{name!r} is a {type(module).__name__}, and Block() is for {names}")
        found = layers.within_block(module, entry, axis.size)
    return found | {
        ".".join(filter(None, (below, "out_proj"))): Row(
            unit=_head_dim(module, below), sequence_dim=each.sequence_dim
        )
        for below, each in found.items()
        if isinstance(each, Attention)
    }


def _head_dim(module: Module, below: str) -> int:
    found: Any = getattr(module, below) if below else module
    if not hasattr(found, "num_heads"):
        return 1  # which is refused for what it is
    width: int = found.embed_dim // found.num_heads
    return width


def _check_tied(model: Module, tasks: list[_Task]) -> None:
    """Raise ConfigError if a parameter of several modules is not cut alike in all of them."""
    lie = {(task.where, name): each for task in tasks for name, each in task.lie.items()}
    owners: dict[int, list[tuple[str, str]]] = {}
    for where, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((where, name))
    for names in owners.values():
        if len({lie.get(each) for each in names}) > 1:
            told = ", ".join(
                f"{'.'.join(filter(None, each))} {'is' if each in lie else 'is not'} cut"
                for each in names
            )
            raise ConfigError(
                f"these are one parameter, and it has to be cut alike in all layers: {told}"
            )


def _carry_out(tasks: list[_Task], axis: Axis, same: Sequence[tuple[str, Tensor]]) -> None:
    """Cut the parameters, and turn the modules into layers. same: parameters by name that all
    ranks of the axis have alike before."""
    done = set[int]()
    for task in tasks:
        for name, layout in task.lie.items():
            parameter = getattr(task.module, name)
            if id(parameter) not in done:
                done.add(id(parameter))
                path = ".".join(filter(None, (task.where, name)))
                keep_part(parameter, layout, task.axis, path)
        task.module.__class__ = task.kind
        task.module.become(task.entry, task.axis, task.where, task.lie)
    for summed in (task for task in tasks if isinstance(_around(task.entry), Summed)):
        for task in tasks:
            if task is not summed and f"{task.where}.".startswith(f"{summed.where}.".lstrip(".")):
                task.module.summed_in = summed.module.where
    for name, parameter in same if axis.size > 1 else ():
        if id(parameter) not in done:
            framework_of(parameter).mark(parameter, Same(name, axis.group))


def _around(entry: Any) -> Any:
    return entry.entry if isinstance(entry, Own) else entry


def _adapt_modules(model: Module, tasks: list[_Task], axes: _Axes) -> None:
    """Adapt modules above and beside the layers to ranks that have parts."""
    modules: list[Any] = [module for _, module in model.named_modules()]
    if axes.tensor.size > 1:
        refuse_parts(modules, [task.entry for task in tasks])
        layers_of(framework_of(model).name).watch_features(model, axes.tensor)
    is_cut = any(axis.size > 1 for axis in axes.used)
    if is_cut:
        layers_of(framework_of(model).name).refuse_changes()
    for module in modules:
        if getattr(module, "use_nested_tensor", False):  # torch's encoder, for its own kernels
            module.use_nested_tensor = False
        if is_cut and callable(getattr(module, "save_pretrained", None)):
            module.save_pretrained = partial(_save_pretrained, module)
        if is_cut and hasattr(module, "resize_token_embeddings"):
            module.resize_token_embeddings = _refuse_resizing
        if hasattr(module, "note_parts"):  # of experts, which tokens may come to in parts
            module.note_parts(axes.tensor.group)


def _save_pretrained(module: Module, *given: Any, **named: Any) -> None:
    """Save the model as transformers does, although ranks have parts of it."""
    pretrained = import_module("torsh_runtime.checkpoint.pretrained")  # a floor above
    pretrained.save_pretrained_of(module, *given, **named)


def _refuse_resizing(*_: Any, **__: Any) -> None:
    """Raise ConfigError instead of resizing embeddings of which ranks have parts."""
    raise ConfigError(
        "resize_token_embeddings() was called on a model of which ranks have parts, and would take "
        "this rank's part for the whole: resize first, and call tr.parallelize() then"
    )
