"""Describes how a model's parameters are placed on the axes of a mesh.

The module that owns a parameter tells it: `module.parameter_layouts` has, by the parameter's own
name, a TensorLayout whose axes are named as the mesh's. Along axes that it does not name, and of
parameters that are not in it, all ranks have the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import Piece, TensorLayout
from torsh_runtime.mesh.mesh import DeviceMesh

OF_ONE_MODULE = frozenset(
    {
        "communicates_in_backward",
        "mesh_coordinate",
        "note_parts",
        "parallel_wrappers",
        "parameter_layouts",
        "parts_group",
        "stage_ranks",
        "sums_parts",
        "use_nested_tensor",
    }
)
"""Attributes by which a module describes itself, and not those around it."""


@dataclass(frozen=True, slots=True)
class StageRanks:
    """Describes the ranks of a pipeline's stages, as `stage_ranks` of a module that is a stage
    of a model, or all stages of a rank. Copies share it; a pickled one has lost its group."""

    group: ProcessGroup | None
    """Ranks that have the other stages."""
    is_all: bool
    """Tells that this rank has no further stages."""
    earlier: frozenset[str] = frozenset()
    """Names of its parameters that earlier ranks have as well."""

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return StageRanks, (None, self.is_all, self.earlier)


def stages_in(model: Any) -> tuple[Any, StageRanks] | None:
    """Return the module in a model that is a rank's part of a pipeline, and the ranks with the
    other stages; None if that is unknown. Raises ConfigError for one of several that the rank
    has."""
    modules = (module for _, module in model.named_modules())
    stage = next((each for each in modules if hasattr(each, "stage_ranks")), None)
    if stage is None:
        return None
    found: StageRanks = stage.stage_ranks
    if not found.is_all:
        raise ConfigError(
            "this is one of several stages that the rank has: pass the pipeline's module, which "
            "has all of them"
        )
    return None if found.group is None else (stage, found)


def layouts_of(model: Any) -> dict[str, TensorLayout]:
    """Return the layouts that the model's modules have, by the parameters' full names in it.

    Args:
        model: The model, wrapped or not.

    Returns:
        The layout of each parameter that has one.

    Raises:
        ConfigError: If a module has a layout of a parameter that it lacks.

    Example:
        ```python
        for name, layout in tr.layouts_of(model).items():
            print(name, layout.shape, layout.sharded())
        ```
    """
    own = layouts_by_id(model)
    named = model.named_parameters()
    return {name: own[id(parameter)] for name, parameter in named if id(parameter) in own}


def layouts_by_id(model: Any) -> dict[int, TensorLayout]:
    """Return the layouts by the id() of each parameter, whatever wraps the modules. Raises
    ConfigError like layouts_of()."""
    found = {}
    for path, module in model.named_modules():
        told = getattr(module, "parameter_layouts", None) or {}
        own = dict(module.named_parameters(recurse=False)) if told else {}
        for name, layout in told.items():
            if name not in own:
                raise ConfigError(
                    f"{path or 'the model'} has parameter_layouts of {name!r}, and no such "
                    f"parameter: it has {', '.join(own) or 'none'}"
                )
            found[id(own[name])] = layout
    return found


def coordinates_by_id(model: Any) -> dict[int, dict[str, int]]:
    """Return this rank's coordinate along the axes of those layouts whose modules know it as
    their `mesh_coordinate`, by the id() of each parameter."""
    return {
        id(parameter): dict(module.mesh_coordinate)
        for _, module in model.named_modules()
        if getattr(module, "parameter_layouts", None) and hasattr(module, "mesh_coordinate")
        for name, parameter in module.named_parameters(recurse=False)
        if name in module.parameter_layouts
    }


def sharded_by_id(model: Any) -> dict[int, TensorLayout]:
    """Return the layouts by id() of parameters of which ranks along some axis have different
    parts."""
    return {key: each for key, each in layouts_by_id(model).items() if each.sharded()}


def check_replicas(model: Any, group: ProcessGroup) -> set[int]:
    """Raise ConfigError if ranks of the group have other parts of the model than this one, as its
    modules tell: different elements would be averaged over them.

    Such a module has `parts_group`, the ranks that have the other parts of its parameters, and the
    same batches. Returns the id() of the parameters of all these modules.
    """
    known = set[int]()
    for path, module in model.named_modules():
        parts = getattr(module, "parts_group", None)
        if parts is None:
            continue
        known |= {id(parameter) for _, parameter in module.named_parameters(recurse=False)}
        if len({*parts.ranks} & {*group.ranks}) < 2:
            continue
        ranks = ", ".join(map(str, sorted({*parts.ranks} & {*group.ranks})))
        what = repr(path) if path else "the model"
        raise ConfigError(
            f"ranks {ranks} have different parts of {what}, and would average their gradients: "
            f"pass the ranks that have the same, as process_group=mesh['dp']"
        )
    return known


def coordinate_on(
    mesh: DeviceMesh | None, name: str, layout: TensorLayout, known: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return this rank's coordinate along the layout's axes, with 0 along those that make no
    difference.

    name: of what has the layout. known: where it stands along axes that no mesh has to tell of.
    Raises ConfigError if it takes axes that the mesh has not, or with other sizes.
    """
    coordinate = dict.fromkeys((axis for axis, _, _ in layout.axes), 0) | dict(known or {})
    sharded = {*layout.sharded()} - {*(known or ())}
    here = {} if mesh is None else mesh.coordinate
    for axis, size, _ in layout.axes:
        if axis not in sharded:
            continue
        if mesh is None or axis not in here or mesh.size(axis) != size:
            raise ConfigError(
                f"{name!r} is sharded over {size} ranks along {axis!r}, and the mesh is {mesh}: "
                f"pass the mesh that the model was made for"
            )
        coordinate[axis] = here[axis]
    return coordinate


def piece_of(
    name: str, layout: TensorLayout, mesh: DeviceMesh | None, known: Mapping[str, int] | None = None
) -> Piece:
    """Return this rank's piece of the parameter of this name. Raises ConfigError like
    coordinate_on()."""
    return layout.piece(coordinate_on(mesh, name, layout, known))


def part_of(
    name: str,
    layout: TensorLayout,
    mesh: DeviceMesh | None,
    part: Piece,
    known: Mapping[str, int] | None = None,
) -> Piece:
    """Return this rank's piece of a parameter of which a wrapper has left this part. Raises
    ConfigError like coordinate_on(), and for a part of something of a different shape."""
    held = piece_of(name, layout, mesh, known)
    if part.global_shape != held.shape:
        raise ConfigError(
            f"{name!r} is of shape {part.global_shape}, and its layout gives this rank "
            f"{held.shape} of {held.global_shape}"
        )
    return held.part(part.start, part.end)


def cut(whole: Any, piece: Piece) -> Any:
    """Return the piece's elements of a whole array or tensor, in the piece's shape: a view if it
    is one box, else a copy. Raises ConfigError for a whole of a different shape, or a part of a
    box."""
    if tuple(whole.shape) != piece.global_shape or not piece.is_box:
        raise ConfigError(f"{piece} cannot be cut out of a tensor of shape {tuple(whole.shape)}")
    for dim in range(len(piece.shape)):
        spans = piece.spans_of(dim)
        index: Any = slice(*spans[0])
        if len(spans) > 1:
            index = [at for span in spans for at in range(*span)]
        whole = whole[(slice(None),) * dim + (index,)]
    return whole
