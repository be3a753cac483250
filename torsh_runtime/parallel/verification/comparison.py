"""Both runs of a model, and what of one belongs to what of the other."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import TensorLayout
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.modules import adapter_class
from torsh_runtime.parallel.clipping import clip_grad_norm_
from torsh_runtime.parallel.ddp import DistributedDataParallel
from torsh_runtime.parallel.layouts import cut, layouts_of, piece_of
from torsh_runtime.parallel.streams import random_stream
from torsh_runtime.parallel.verification.comparing import Pair, close, scale_of
from torsh_runtime.parallel.verification.difference import Difference
from torsh_runtime.parallel.verification.masks import masks_that_differ, without_dropout
from torsh_runtime.parallel.verification.place import Place
from torsh_runtime.parallel.verification.placing import Part, places
from torsh_runtime.parallel.verification.recording import Key, Recording, record, tensors_in

Norm = Callable[[Any], float]


class Comparison:
    """Both runs."""

    def __init__(
        self, mesh: DeviceMesh, model: Any, spread: Any, data_axes: Sequence[str], batch: Any
    ) -> None:
        self.place = Place(mesh, data_axes)
        self.whole = copy.deepcopy(model)
        self.spread = spread
        self.inputs = batch if isinstance(batch, tuple) else (batch,)
        self.rows = tuple(self._own_rows(each) for each in self.inputs)
        self._adapter = adapter_class(spread)(spread)
        wrapped = isinstance(spread, DistributedDataParallel)
        self._prefix = "module." if wrapped else ""
        self._model = spread.module if wrapped else spread
        self._averaged = self.place.data_ranks if wrapped else 1
        self._places: dict[Key, Part | None] = {}
        self._whole_shapes: dict[Key, tuple[int, ...]] = {}

    def tolerance(self) -> float:
        """From the coarsest dtype among the parameters."""
        kinds = [self._adapter.kind(each)[0] for _, each in self._adapter.parameters()]
        return float(max(map(_precision, kinds), default=1e-16) ** 0.6)

    # ---- both runs

    def pairs(self, norm: Norm | None) -> Iterator[Pair]:
        """All that can be compared, in the order of the computation."""
        adapter = adapter_class(self.whole)(self.whole)
        with _alike(self.whole, self.place.data_ranks):
            whole = record(adapter, "", self.inputs, self._weighed)
        with _alike(self.spread, self.place.data_ranks):
            own = record(self._adapter, self._prefix, self.rows, self._weighed_part)
        yield from self._parameters(0, whole.parameters, own.parameters)
        yield from self._activations(whole, own)
        yield from self._parameters(3, whole.of_parameters, self._gradients(own))
        yield self._norms(whole, own, norm)

    def _weighed(self, outputs: Any) -> Any:
        """A number that depends on all of what one process returned."""
        self._weights = [_random(tuple(each.shape), at) for at, each in _numbered(outputs)]
        self._returned = [tuple(each.shape) for _, each in _numbered(outputs)]
        return _sum_of(outputs, self._weights)

    def _weighed_part(self, outputs: Any) -> Any:
        """The same of what this rank returned."""
        shapes = self.place.of_all([tuple(each.shape) for _, each in _numbered(outputs)])
        weights = []
        for at, _ in _numbered(outputs):
            found = self._spans(self._returned[at], [each[at] for each in shapes], None)
            if not found:
                raise ConfigError(
                    f"the spread model returns a tensor of shape "
                    f"{shapes[self.place.group.rank][at]} where the whole one returns one of "
                    f"{self._returned[at]}"
                )
            weight = _taken(self._weights[at], found[0])
            # What is not cut into rows counts on all ranks of the data: each has its share of it.
            weights.append(weight if found[0].has_rows else weight / self.place.data_ranks)
        return _sum_of(outputs, weights)

    def masks(self) -> list[Difference]:
        """What is wrong with the masks of dropout, if the model is of torch."""
        return masks_that_differ(self._adapter, self.rows, self.place, self._is_cut)

    # ---- what is compared with what

    def _parameters(
        self, order: int, whole: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Iterator[Pair]:
        layouts = layouts_of(self._model)
        largest = _largest(whole)
        for number, (name, value) in enumerate(whole.items()):
            if order and name not in own and name not in dict(self._model.named_parameters()):
                continue
            layout = layouts.get(name)
            part = value if layout is None else cut(value, piece_of(name, layout, self.place.mesh))
            here = own.get(name)
            yield Pair(
                order=(order, number),
                kind="gradient" if order else "parameter",
                name=name,
                own=here,
                part=part if here is None or here.shape == part.shape else None,
                whole_shape=value.shape,
                scale=scale_of(value, largest),
            )

    def _gradients(self, own: Recording) -> dict[str, Any]:
        """Added up over the data, as one process has them. What some rank lacks is left out."""
        everyone = self.place.of_all({*own.of_parameters})
        found = {}
        for name, each in own.of_parameters.items():
            if self._averaged > 1:
                found[name] = each * self._averaged
            elif all(name in names for names in everyone):
                found[name] = self.place.summed_over_data(each)
        return found

    def _activations(self, whole: Recording, own: Recording) -> Iterator[Pair]:
        self._find_places(whole, own)
        with_gradient = self.place.of_all({*own.gradients})
        for order, mine, wholes in (
            (1, own.outputs, whole.outputs),
            (2, own.gradients, whole.gradients),
        ):
            largest = _largest(wholes)
            for number, (key, value) in enumerate(wholes.items()):
                if key not in self._places:
                    continue
                everywhere = order == 1 or all(key in each for each in with_gradient)
                part, here = self._places[key], mine.get(key)
                if here is not None and part is not None and everywhere:
                    here = self._of_all_data(here, part, order == 1)
                yield Pair(
                    order=(order, number),
                    kind="activation" if order == 1 else "output's gradient",
                    name=key.name or type(self.whole).__name__,
                    own=here,
                    part=None if part is None else _taken(value, part),
                    whole_shape=value.shape,
                    scale=scale_of(value, largest),
                )

    def _of_all_data(self, own: Any, part: Part, is_output: bool) -> Any:
        """As one process has it: of what is not of this rank's rows alone the gradients add up."""
        if part.has_rows or self.place.data_ranks == 1:
            return own
        return self.place.summed_over_data(own) / (self.place.data_ranks if is_output else 1)

    def _find_places(self, whole: Recording, own: Recording) -> None:
        """Where outputs that all ranks have lie in the whole ones. Where several places fit it is
        the first that is right on all ranks, if one is."""
        everyone = self.place.of_all({key: each.shape for key, each in own.outputs.items()})
        keys = [key for key in whole.outputs if all(key in each for each in everyone)]
        found = {
            key: self._spans(whole.outputs[key].shape, [each[key] for each in everyone], key.name)
            for key in keys
        }
        fits = {
            key: [_fits(own.outputs[key], whole.outputs[key], part) for part in found[key]]
            for key in keys
            if len(found[key]) > 1
        }
        of_all = self.place.of_all(fits)
        for key in keys:
            rows = [each.get(key, [True]) for each in of_all]
            right = [number for number in range(len(rows[0])) if all(row[number] for row in rows)]
            self._places[key] = found[key][(right or [0])[0]] if found[key] else None
        self._whole_shapes = {key: whole.outputs[key].shape for key in keys}

    def _spans(
        self, whole: Sequence[int], shapes: Sequence[Sequence[int]], name: str | None
    ) -> list[Part]:
        along = self.place.along(self.place.group.rank)
        by_axis = {axis: [shapes[rank] for rank in ranks] for axis, ranks in along.items()}
        features = None if name is None else self._features(name)
        return places(whole, by_axis, self.place.coordinate, self.place.data_axes, features)

    def _is_cut(self, name: str) -> bool:
        """Whether ranks have parts of what a module returns, beside their rows."""
        for key, part in self._places.items():
            if key.name == name.removeprefix(self._prefix) and part is not None:
                rows = self.place.data_ranks if part.has_rows else 1
                own = math.prod(sum(end - start for start, end in each) for each in part.spans)
                return math.prod(self._whole_shapes[key]) > rows * own
        return False

    def _features(self, name: str) -> tuple[str, TensorLayout] | None:
        """How the features of a module's output are cut, by its weight."""
        modules = dict(self._model.named_modules())
        told = getattr(modules.get(name), "parameter_layouts", None) or {}
        layout = told.get("weight")
        axes = [] if layout is None else [*layout.sharded()]
        return (axes[0], layout) if layout is not None and len(axes) == 1 else None

    def _norms(self, whole: Recording, own: Recording, norm: Norm | None) -> Pair:
        if self._averaged == 1:
            everyone = self.place.of_all({*own.of_parameters})
            for name, parameter in self._adapter.parameters():
                if all(name in names for names in everyone):
                    self._add_up(self._adapter.gradient(parameter))
        found = norm or (lambda model: clip_grad_norm_(model, math.inf, self.place.mesh))
        size = found(self.spread) * self._averaged
        total = math.sqrt(sum(float((each * each).sum()) for each in whole.of_parameters.values()))
        return Pair(
            order=(4, 0),
            kind="norm",
            name="",
            own=np.float64(size),
            part=np.float64(total),
            whole_shape=(),
            scale=total or 1.0,
        )

    def _add_up(self, gradient: Any) -> None:
        for axis in self.place.data_axes:
            self.place.mesh.get_group(axis).all_reduce(self._adapter.values(gradient))

    def _own_rows(self, tensor: Any) -> Any:
        ranks, index = self.place.data_ranks, 0
        for axis in self.place.data_axes:
            index = index * self.place.mesh.size(axis) + self.place.coordinate[axis]
        if ranks == 1 or not getattr(tensor, "shape", ()):
            return tensor
        rows, rest = divmod(int(tensor.shape[0]), ranks)
        if rest:
            raise ConfigError(
                f"a batch of {tensor.shape[0]} rows cannot be cut into {ranks} equal parts for the "
                f"axes {', '.join(self.place.data_axes)}"
            )
        return tensor[index * rows : (index + 1) * rows]


def _alike(model: Any, data_ranks: int) -> AbstractContextManager[None]:
    """A block in which both models draw the same random numbers: those of nn, of the whole batch;
    or none, for torch has other masks for parts, and rows are drawn by who has them."""
    has_masks = adapter_class(model)(model).framework == "nn" and data_ranks == 1
    return random_stream("verify") if has_masks else without_dropout(model)


def _numbered(outputs: Any) -> list[tuple[int, Any]]:
    return [*enumerate(tensors_in(outputs))]


def _random(shape: tuple[int, ...], number: int) -> Any:
    return np.random.default_rng(number).standard_normal(shape)


def _sum_of(outputs: Any, weights: Sequence[Any]) -> Any:
    terms = [
        (each * _like(each, weight)).sum()
        for (_, each), weight in zip(_numbered(outputs), weights, strict=True)
    ]
    return sum(terms[1:], terms[0])


def _like(tensor: Any, array: Any) -> Any:
    if hasattr(tensor, "new_tensor"):
        return tensor.new_tensor(array)
    return type(tensor)(np.asarray(array, tensor.dtype))


def _taken(whole: Any, part: Part) -> Any:
    for dim, each in enumerate(part.spans):
        chosen = [at for start, end in each for at in range(start, end)]
        whole = np.take(whole, chosen, axis=dim)
    return whole


def _fits(own: Any, whole: Any, part: Part) -> bool:
    return close(own, _taken(whole, part), 1e-3 * scale_of(whole, 0.0))


def _largest(values: Mapping[Any, Any]) -> float:
    return max((float(np.abs(each).max(initial=0.0)) for each in values.values()), default=0.0)


def _precision(dtype: str) -> float:
    """How far numbers of this dtype are apart at 1."""
    known = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    return next((size for name, size in known.items() if dtype.endswith(name)), 2.0**-23)
