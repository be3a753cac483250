"""Pairs a spread model's values with those of the whole model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from torsh_runtime.layout import TensorLayout
from torsh_runtime.parallel.clipping import clip_grad_norm_
from torsh_runtime.parallel.verification.difference import Kind, Pair, close, scale_of
from torsh_runtime.parallel.verification.placing import Part, Share, places, within
from torsh_runtime.parallel.verification.recording import Key, Parts, Recording, Spread, taken

Norm = Callable[[Any], float]
_ORDER: tuple[Kind, ...] = (
    "parameter",
    "activation",
    "loss",
    "output's gradient",
    "gradient",
    "norm",
)


class Comparison:
    """Compares two recordings. All ranks make one, and make the same calls of its methods."""

    def __init__(self, spread: Spread, share: Share, whole: Recording, own: Recording) -> None:
        self._spread, self._share, self._place = spread, share, share.place
        self._whole, self._own = whole, own
        wholes = {key: one[0].shape for key, one in whole.outputs.items()}
        joins = {
            key: _joins(parts, wholes[key], share)
            for key, parts in own.outputs.items()
            if key in wholes
        }
        self._outputs = _joined(own.outputs, joins, is_output=True)
        self._gradients = _joined(own.gradients, joins, is_output=False)
        self._parts: dict[Key, Part | None] = {}
        self._find_parts()

    def pairs(self, norm: Norm | None, is_reduced: bool) -> Iterator[Pair]:
        """Yield everything that can be compared, in the order of the computation.

        is_reduced: gradients are final; otherwise those that no wrapper has averaged are averaged
        here.
        """
        yield from self._parameters("parameter", self._whole.parameters, self._own.parameters)
        yield from self._activations("activation", self._whole.outputs, self._outputs)
        if self._own.loss is not None and self._whole.loss is not None:
            loss = self._place.summed(self._own.loss, self._place.data_axes)
            yield _number("loss", float(loss) / self._place.data_ranks, self._whole.loss)
        yield from self._activations("output's gradient", self._whole.gradients, self._gradients)
        gradients = self._own.of_parameters if is_reduced else self._averaged()
        yield from self._parameters("gradient", self._whole.of_parameters, gradients)
        self._spread.set_gradients(gradients)
        found = norm or (lambda _: clip_grad_norm_(self._spread.module, math.inf, self._place.mesh))
        squares = [float((each * each).sum()) for each in self._whole.of_parameters.values()]
        yield _number("norm", found(self._spread.made), math.sqrt(sum(squares)))

    def is_cut(self, name: str) -> bool:
        """Return whether ranks have parts of a module's output, apart from their share of the
        batch.
        """
        for key, part in self._parts.items():
            if key.name == name and part is not None:
                own = math.prod(map(within, part.spans)) * self._place.size(part.axes)
                size: int = self._whole.outputs[key][0].size
                return size > own
        return False

    # ---- parameters

    def _parameters(
        self, kind: Kind, whole: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Iterator[Pair]:
        largest, pieces = _largest(whole), self._spread.pieces()
        elsewhere = {name for names in self._place.of_all([*pieces]) for name in names}
        for number, (name, value) in enumerate(whole.items()):
            if name not in pieces and name in elsewhere:
                continue
            here, piece = own.get(name), pieces.get(name)
            shape = value.shape if here is None else here.shape
            yield Pair(
                order=(_ORDER.index(kind), number),
                kind=kind,
                name=name,
                own=here,
                part=None if piece is None else taken(value, piece, shape),
                whole_shape=value.shape,
                scale=scale_of(value, largest),
            )

    def _averaged(self) -> dict[str, Any]:
        """Return all gradients, with those averaged that no wrapper has averaged.

        Means are over the ranks that have the same elements. Other ranks already have means, as
        with experts, to which tokens have been sent.
        """
        done, pieces = self._spread.averaged(), self._spread.pieces()
        found = self._own.of_parameters
        rest = {name: (each, pieces[name]) for name, each in found.items() if name not in done}
        means = self._place.averaged(rest, lambda name, piece: piece == pieces[name])
        return {**{name: each for name, each in found.items() if name in done}, **means}

    # ---- activations

    def _activations(
        self, kind: Kind, wholes: Mapping[Key, Parts], own: Mapping[Key, Any]
    ) -> Iterator[Pair]:
        largest = _largest({key: each[0] for key, each in wholes.items()})
        everyone = self._place.of_all({*own})
        for number, (key, parts) in enumerate(wholes.items()):
            if key not in self._parts:
                continue
            part, here, value = self._parts[key], own.get(key), parts[0]
            is_there = all(key in everyone[rank] for rank in self._place.stage())
            if part is not None and here is not None and is_there:
                here = self._of_all_data(here, part, kind == "activation")
            yield Pair(
                order=(_ORDER.index(kind), number),
                kind=kind,
                name=key.name or "the model",
                own=here,
                part=None if part is None else elements(value, part),
                whole_shape=value.shape,
                scale=scale_of(value, largest),
            )

    def _of_all_data(self, own: Any, part: Part, is_output: bool) -> Any:
        """Combine the values of all ranks along axes of the data into that of one process.

        Where ranks have copies, outputs are averaged and gradients are added up. Losses are
        averaged over all ranks, so gradients are too.
        """
        copied = [axis for axis in self._place.data_axes if axis not in part.axes]
        total = self._place.summed(own, copied) if self._place.size(copied) > 1 else own
        return total / (self._place.size(copied) if is_output else self._place.data_ranks)

    def _find_parts(self) -> None:
        """Find the places, in the whole outputs, of outputs that all ranks of a stage have.

        If several places fit, the first one is taken whose values are right on all of these ranks,
        or else the first one.
        """
        everyone = self._place.of_all({key: each.shape for key, each in self._outputs.items()})
        stage = self._place.stage()
        keys = [k for k in self._whole.outputs if all(k in everyone[rank] for rank in stage)]
        found = {
            key: parts_of(
                self._whole.outputs[key][0].shape,
                {rank: everyone[rank][key] for rank in stage},
                self._share,
                self._features(key.name),
            )
            for key in keys
        }
        fits = {
            key: [_fits(self._outputs[key], self._whole.outputs[key][0], p) for p in found[key]]
            for key in keys
            if len(found[key]) > 1
        }
        of_all = self._place.of_all(fits)
        for key in keys:
            rows = [of_all[rank].get(key, [True]) for rank in stage]
            right = [number for number, row in enumerate(zip(*rows, strict=False)) if all(row)]
            self._parts[key] = found[key][(right or [0])[0]] if found[key] else None

    def _features(self, name: str) -> tuple[str, TensorLayout] | None:
        """Return the axis and the layout by which a module's weight cuts its output's features."""
        told = getattr(self._spread.modules.get(name), "parameter_layouts", None) or {}
        layout = told.get("weight")
        axes = [] if layout is None else [*layout.sharded()]
        return (axes[0], layout) if layout is not None and len(axes) == 1 else None


def parts_of(
    whole: Sequence[int],
    shapes: Mapping[int, Sequence[int]],
    share: Share,
    features: tuple[str, TensorLayout] | None = None,
) -> list[Part]:
    """Return the possible places of this rank's tensor in a whole one.

    shapes: by rank, for the ranks that have such a tensor.
    """
    place = share.place
    along = {
        axis: [shapes[rank] for rank in ranks]
        for axis, ranks in place.along(place.group.rank).items()
        if axis not in place.data_axes and all(rank in shapes for rank in ranks)
    }
    own = shapes[place.group.rank]
    return places(whole, own, along, place.coordinate, share.cuts, features)


def elements(whole: Any, part: Part) -> Any:
    """Return a part of a whole array."""
    for dim, each in enumerate(part.spans):
        chosen = [at for start, end in each for at in range(start, end)]
        whole = np.take(whole, chosen, axis=dim)
    return whole


def _joins(parts: Parts, whole: Sequence[int], share: Share) -> bool:
    """Return whether the microbatches' outputs are different rows of the whole batch's output."""
    if not whole or not all(each.ndim for each in parts.values()):
        return False
    rows = sum(each.shape[0] for each in parts.values())
    return any(math.isclose(rows * scale, whole[0]) for scale in share.scales)


def _joined(
    values: Mapping[Key, Parts], joins: Mapping[Key, bool], is_output: bool
) -> dict[Key, Any]:
    """Combine the values of all microbatches.

    Rows are concatenated. Where each microbatch has its own, outputs are averaged, and gradients
    are added up.
    """
    found = {}
    for key, parts in values.items():
        arrays = [each for _, each in sorted(parts.items())]
        if len(arrays) == 1:
            found[key] = arrays[0]
        elif joins.get(key) or len({each.shape for each in arrays}) > 1:
            found[key] = np.concatenate(arrays)
        elif key in joins:
            found[key] = sum(arrays) / (len(arrays) if is_output else 1)
    return found


def _number(kind: Kind, own: float, whole: float) -> Pair:
    return Pair(
        order=(_ORDER.index(kind), 0),
        kind=kind,
        name="",
        own=np.float64(own),
        part=np.float64(whole),
        whole_shape=(),
        scale=abs(whole) or 1.0,
    )


def _fits(own: Any, whole: Any, part: Part) -> bool:
    return close(own, elements(whole, part), 1e-3 * scale_of(whole, 0.0))


def _largest(values: Mapping[Any, Any]) -> float:
    return max((float(np.abs(each).max(initial=0.0)) for each in values.values()), default=0.0)
