"""State of modules of torch of which ranks have parts: whole tensors go out, and come in."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from torsh_runtime.arrays.raw import dtype_name
from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.torch.elsewhere import Elsewhere
from torsh_runtime.layout import Piece, TensorLayout
from torsh_runtime.parallel.collecting import collected, meet
from torsh_runtime.parallel.layouts import cut
from torsh_runtime.parallel.tensor.axis import Axis
from torsh_runtime.parallel.tensor.layer import Layer

_ELSEWHERE = (
    "this rank has no values of {0!r}: state_dict() of a model of which ranks have parts gives "
    "whole tensors to rank 0 of the axis {1!r} alone. All ranks call state_dict(), and that one "
    "uses what it gives; or all call tr.save_pretrained(model, path), or "
    "tr.whole_state_dict(model), which gives the others an empty dict"
)
_KEEP_VARS = (
    "state_dict(keep_vars=True) would have this rank's part of {0!r} in the place of a whole "
    "parameter: leave keep_vars out for whole tensors; the parts are in "
    "dict(model.named_parameters())"
)
_ASSIGN = (
    "load_state_dict(assign=True) would put another tensor in the place of {0!r}, of which this "
    "rank has a part: leave assign out, so that values are copied"
)


def put_whole(layer: Layer, destination: dict[str, Any], prefix: str, keeps_vars: bool) -> None:
    """Put whole tensors into a state in place of a layer's own parts: on rank 0 of the axis, and
    Elsewhere on the others. Several names of a parameter have one tensor. All ranks of the axis
    call it. Raises ConfigError if others do not."""
    axis = layer.axis
    own = dict(layer.named_parameters(recurse=False))
    names = [name for name in layer.parameter_layouts if prefix + name in destination]
    if keeps_vars and names:
        raise ConfigError(_KEEP_VARS.format(prefix + names[0]))
    meet(axis.group, "state_dict() of a model of which ranks have parts", f"{layer.where} {names}")
    for name in names:
        key, parameter = prefix + name, own[name]
        known = axis.wholes.get(id(parameter))
        if known is None or not any(each is known for each in destination.values()):
            known = _whole(key, parameter, layer.parameter_layouts[name], axis)
            axis.wholes[id(parameter)] = known
        destination[key] = known


def _whole(name: str, parameter: Tensor, layout: TensorLayout, axis: Axis) -> Tensor:
    if parameter.is_meta:
        return parameter.detach().new_empty(layout.shape)
    places = [{axis.name: rank} for rank in range(axis.size)]
    pieces = {
        rank: layout.piece(place) for rank, place in enumerate(places) if layout.is_first(place)
    }
    dtype = dtype_name(parameter)
    found = collected(parameter.detach(), pieces, dtype, axis.group, parameter)
    if found is None:
        return Elsewhere.of(layout.shape, parameter.dtype, _ELSEWHERE.format(name, axis.name))
    return cast(Tensor, found)


def own_parts(
    layer: Layer, state: dict[str, Any], prefix: str, is_assigned: bool
) -> dict[str, Any]:
    """Return a state with this rank's parts in place of a layer's whole tensors. Raises
    ConfigError if they would be assigned as its parameters."""
    found = dict(state)
    for name, layout in layer.parameter_layouts.items():
        given = state.get(prefix + name)
        if given is None:
            continue
        if is_assigned:
            raise ConfigError(_ASSIGN.format(prefix + name))
        if tuple(given.shape) == layout.shape:
            piece: Piece = layout.piece({layer.axis.name: layer.axis.index})
            found[prefix + name] = cut(given, piece)
    return found
