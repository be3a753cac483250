"""Initial values that do not depend on the mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torsh_runtime.arrays import raw
from torsh_runtime.arrays.raw import empty
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, framework_of, framework_of_model
from torsh_runtime.framework.models import all_parameters, is_meta, kind_of, own_initialiser
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.layouts import cut, layouts_by_id, piece_of
from torsh_runtime.parallel.streams import random_stream


def init_parameters(
    model: Module, init: Callable[[str, Any], object], seed: int = 0, mesh: DeviceMesh | None = None
) -> None:
    """Give a model's parameters the values that they have on every mesh, and in one process.

    It is called before the model is wrapped. What is on torch's meta device gets memory on the CPU:
    parameters, which stay the objects that they are, and buffers of modules that have a
    reset_parameters(), which is called.

    Args:
        model: The model, of either framework.
        init: A function (name, tensor) that writes a whole parameter's values into a tensor of its
            framework; `name` is the parameter's full name. Random numbers come from a stream of
            seed and name alone, so they depend neither on the order nor on which parameters this
            rank has. This rank keeps its piece of each whole tensor, one after the other: the
            largest has to fit into memory.
        seed: The seed of the random numbers, the same on all ranks.
        mesh: The mesh of the model's layouts (parallel/layouts.py); None if there are none.

    Raises:
        ConfigError: For a parameter that is not of its layout's shape, and for buffers on the meta
            device that nothing gives values.

    Example:
        ```python
        def init(name, tensor):
            torch.nn.init.normal_(tensor, std=0.02) if tensor.ndim > 1 else tensor.zero_()

        tr.init_parameters(model, init, seed=1, mesh=mesh)
        ```
    """
    framework, layouts = framework_of_model(model), layouts_by_id(model)
    _materialise(model)
    for name, parameter in all_parameters(model):
        shape = tuple(parameter.shape)
        layout = layouts.get(id(parameter))
        piece = None if layout is None else piece_of(name, layout, mesh)
        if piece is not None and piece.shape != shape:
            raise ConfigError(
                f"{name!r} is of shape {shape}, and its layout gives this rank {piece.shape} of "
                f"{piece.global_shape}: call init_parameters() before the model is wrapped"
            )
        values = parameter.data
        whole_shape = shape if piece is None else piece.global_shape
        whole = empty(raw.framework_of(values), whole_shape, kind_of(parameter)[0])
        with random_stream(seed, name):
            init(name, framework.tensor(whole))
        parameter.data[...] = whole if piece is None else cut(whole, piece)


def _materialise(model: Module) -> None:
    """Let all that is on the meta device have memory, and what is no parameter values."""
    left = [named for named in model.named_modules() if is_meta(named[1])]
    having = [(name, own_initialiser(each), each) for name, each in left]
    without = [name for name, call, each in having if call is None and _has_buffers(each)]
    if without:
        raise ConfigError(
            f"module(s) {', '.join(map(repr, without[:5]))} have buffers on the meta device and no "
            f"reset_parameters(): make these buffers on a device that has memory"
        )
    for _, call, each in having:
        initialise = call if call and _has_buffers(each) else lambda _: None
        framework_of(model).materialise(each, initialise)


def _has_buffers(module: Module) -> bool:
    return next(module.buffers(recurse=False), None) is not None
