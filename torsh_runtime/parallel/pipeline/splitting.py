"""Cuts a model into stages."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import framework_of
from torsh_runtime.framework.models import all_parameters
from torsh_runtime.parallel.pipeline.batches import call_of
from torsh_runtime.parallel.pipeline.cutting import parts_of


class StageModule:
    """Calls some of a model's layers one after the other, under the names that they have in the
    model.

    Each layer gets what the one before returned. A tuple becomes its arguments, so that skip
    connections are values that layers pass on.
    """

    def __init__(self, layers: Mapping[str, Any], tied: Mapping[str, Any]) -> None:
        """Make a stage of these layers. tied: parameters of other stages, too, by name in the
        model.
        """
        super().__init__()
        for name, parameter in tied.items():
            home, _, own = name.rpartition(".")
            _container(self, home).register_parameter(own, parameter)
        for name, layer in layers.items():
            home, _, own = name.rpartition(".")
            parent = _container(self, home)
            parent.add_module(own, layer)
        self.layer_names, self.tied_names = (*layers,), (*tied,)

    def forward(self, *values: Any) -> Any:
        """Return what the last of the layers returns.

        The first layer gets copies if it works in place, as a ReLU may: autograd does not allow
        changes of tensors from another stage.
        """
        for place, name in enumerate(self.layer_names):
            layer: Any = reduce(_child, name.split("."), self)
            if not place and works_in_place(layer):
                values = tuple(each.clone() for each in values)
            values = _tuple(layer(*values))
        return values if len(values) > 1 else values[0]


def layers_of(model: Any) -> dict[str, Any]:
    """Return the layers that a model calls one after the other, by name.

    They are those that its method pipeline_layers() names, in order. Without one they are its
    children, with containers (Sequential, ModuleList, ModuleDict) replaced by their children.

    Args:
        model: The model.

    Raises:
        ConfigError: If pipeline_layers() names a layer twice or one that does not exist.

    Example:
        ```python
        list(layers_of(model))  # ["embed", "blocks.0", "blocks.1", ..., "head"]
        ```
    """
    named = dict(model.named_modules(remove_duplicate=False))
    if hasattr(model, "pipeline_layers"):
        names = [*model.pipeline_layers()]
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise ConfigError(
                f"pipeline_layers() of {type(model).__qualname__} names {', '.join(twice)} more "
                f"than once: a layer that is called again is a module of another name, which may "
                f"be the same object"
            )
        unknown = [name for name in names if name not in named]
        if unknown:
            raise ConfigError(
                f"pipeline_layers() of {type(model).__qualname__} names {', '.join(unknown)}, "
                f"which it has not"
            )
        return {name: named[name] for name in names}
    return dict(_flat(model, ""))


def works_in_place(layer: object) -> bool:
    """Return whether a layer's attributes say that it changes its input."""
    return getattr(layer, "inplace", False) is True


def study_of(model: Any, example: Any) -> Any | None:
    """Return a Study of a torch model whose stages are to run its own forward(), or None.

    Such a model describes its inputs, as models of transformers do, or the example is a dict of its
    arguments. Layers of other models are called one after the other. Raises ConfigError for a model
    that cannot be cut so.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module) or not has_own_forward(model):
        return None
    says = all(hasattr(model, name) for name in ("config", "main_input_name"))
    if not says and not isinstance(example, Mapping):
        return None
    from torsh_runtime.parallel.pipeline.whole.studying import Study

    return Study(model, None if example is None else call_of(example))


def split_model(model: Any, cuts: Sequence[str], example: Any = None) -> list[Any]:
    """Return the stages of a model; all but the first begin with the layer of a name in `cuts`.

    Parameters keep their names in the model; one that several stages use has the same name in all.
    Layers are the model's own, not copies.

    Args:
        model: The model.
        cuts: The names of layers, in the layers' order.
        example: A microbatch as a dict, for a model whose stages are to run its own forward(); one
            of transformers needs none.

    Raises:
        ConfigError: For names that are no layers, or not in the layers' order, and for a model that
            has parameters outside of them.

    Example:
        ```python
        stages = split_model(model, ["blocks.6"])
        pipeline = tr.PipelineParallel(stages, 8, loss_fn=loss_fn)
        ```
    """
    study = study_of(model, example)
    if study is not None:
        found: list[Any] = study.stages(cuts)
        return found
    layers = layers_of(model)
    parts = parts_of(model, [*layers], cuts)
    _check_whole(model, layers)
    return _stages(model, [{name: layers[name] for name in part} for part in parts])


def check_chain(model: Any, example: Sequence[Any], begin_anew: Callable[[], None]) -> None:
    """Raise ConfigError if the layers, one after the other, do not give what the model gives.

    begin_anew: restores the random numbers that the model drew.
    """
    wanted, values = _tuple(model(*example)), tuple(example)
    begin_anew()
    try:
        for layer in layers_of(model).values():
            values = _tuple(layer(*values))
        is_same = len(wanted) == len(values) and all(map(_is_close, values, wanted))
    except (TypeError, ValueError, RuntimeError, IndexError):  # one takes something else
        is_same = False
    if not is_same:
        raise ConfigError(
            f"the layers of {type(model).__qualname__}, one after the other, do not give what its "
            f"forward() gives: {', '.join(layers_of(model))}. Put what it does between them, as "
            f"adding up, into modules, and name these in pipeline_layers(), or pass the example as "
            f"a dict of what forward() takes: then each stage runs forward() itself"
        )


def has_own_forward(model: Any) -> bool:
    """Return whether a model may do more than call its layers one after the other.

    A method pipeline_layers() says that it does not.
    """
    is_row = type(model).forward.__qualname__ == "Sequential.forward"
    return not is_row and not hasattr(model, "pipeline_layers")


def _tuple(output: Any) -> tuple[Any, ...]:
    return output if isinstance(output, tuple) else (output,)


def _is_close(tensor: Any, other: Any) -> bool:
    if tuple(tensor.shape) != tuple(other.shape):
        return False
    apart = abs(tensor - other)
    return math.prod(apart.shape) == 0 or float(apart.max()) <= 1e-3 * float(abs(other).max())


def measured(model: Any, example: Sequence[Any], wait: Callable[[], None]) -> list[float]:
    """Return the seconds of each layer for a microbatch, in the faster of two forward passes."""
    found: list[float] = []
    for number in range(2):
        values = tuple(example)
        for place, layer in enumerate(layers_of(model).values()):
            begun = time.perf_counter()
            values = _tuple(layer(*values))
            wait()
            took = time.perf_counter() - begun
            if number:
                found[place] = min(found[place], took)
            else:
                found.append(took)
    return found


def balanced(costs: Sequence[float], parts: int) -> list[int]:
    """Cut a row of costs so that the largest sum of a part is as small as possible.

    Returns the places at which the second part and the later ones begin. ConfigError for too few
    costs.
    """
    if not 1 <= parts <= len(costs):
        raise ConfigError(f"{len(costs)} layers do not make {parts} stages")

    @cache
    def best(start: int, left: int) -> tuple[float, tuple[int, ...]]:
        if left == 1:
            return sum(costs[start:]), ()
        return min(
            (max(sum(costs[start:end]), best(end, left - 1)[0]), (end, *best(end, left - 1)[1]))
            for end in range(start + 1, len(costs) - left + 2)
        )

    return [*best(0, parts)[1]]


def stage_class(model: Any) -> type[Any]:
    """Return a class that is StageModule and a module of the model's framework."""
    return _class_around(framework_of(model).module_type)


@cache
def _class_around(module_class: type) -> type[Any]:
    return type(StageModule.__name__, (StageModule, module_class), {"__module__": __name__})


def _stages(model: Any, parts: Sequence[Mapping[str, Any]]) -> list[Any]:
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    owners: dict[int, int] = {}
    stages = []
    for number, part in enumerate(parts):
        own = {id(p): p for layer in part.values() for _, p in all_parameters(layer)}
        tied = {first[key]: p for key, p in own.items() if owners.setdefault(key, number) != number}
        stages.append(stage_class(model)(part, tied))
    return stages


def _check_whole(model: Any, layers: Mapping[str, Any]) -> None:
    held = {id(p) for layer in layers.values() for _, p in all_parameters(layer)}
    outside = [name for name, p in model.named_parameters() if id(p) not in held]
    if outside:
        raise ConfigError(
            f"{', '.join(outside[:5])} of {type(model).__qualname__} are in none of its layers "
            f"{', '.join(layers)}: put them into a module that pipeline_layers() names"
        )


def _flat(module: Any, prefix: str) -> Any:
    below = module.named_modules(remove_duplicate=False)
    children = [(name, child) for name, child in below if name and "." not in name]
    for name, child in children:
        if type(child).__name__ in ("Sequential", "ModuleList", "ModuleDict"):
            yield from _flat(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


def _container(root: Any, path: str) -> Any:
    """Return the module of this path, and create empty ones where there is none."""
    kind = next(base for base in type(root).__mro__ if base.__name__ == "Module")
    for name in filter(None, path.split(".")):
        found = dict(root.named_children()).get(name)
        if found is None:
            found = kind()
            root.add_module(name, found)
        root = found
    return root


def _child(module: object, name: str) -> Any:
    return getattr(module, name)
