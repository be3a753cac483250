"""Cuts models whose stages run their own forward()."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.pipeline.batches import Call
from torsh_runtime.parallel.pipeline.cutting import parts_of
from torsh_runtime.parallel.pipeline.giving import loss_of
from torsh_runtime.parallel.pipeline.whole.counting import counted_by
from torsh_runtime.parallel.pipeline.whole.examples import examples_of, takes
from torsh_runtime.parallel.pipeline.whole.preparing import prepared, reached
from torsh_runtime.parallel.pipeline.whole.stages import Part, WholeStage
from torsh_runtime.parallel.pipeline.whole.structures import is_within
from torsh_runtime.parallel.pipeline.whole.watching import row_of

Module = torch.nn.Module
_NEAR = {torch.float64: 1e-9, torch.float32: 1e-5}
_NEAR_OTHERWISE = 1e-3


class Study:
    """Studies a model, and cuts it into stages."""

    def __init__(self, model: Module, example: Call | None) -> None:
        """Call the model with an example to find its layers.

        example: a microbatch; None: one is made, for a model of transformers. Raises ConfigError
        for a model that cannot be called with it, or has no layers to cut between.
        """
        self._model = model
        self.is_made = example is None
        """True if the example was made here, not by the user."""
        _check_layers_are_called(model)
        with prepared(model):
            self._defaults = _defaults(model)
            self._example = self._made() if example is None else self._with_defaults(example)
            self._row = row_of(model, lambda: _called(model, self._example))

    def _with_defaults(self, call: Call) -> Call:
        return call._replace(named={**self._defaults, **call.named})

    def _made(self) -> Call:
        """Make an example that the model takes, with a loss, if there is one."""
        model: Any = self._model
        problem: Exception | None = None
        for each in map(self._with_defaults, examples_of(model)):
            try:
                output = model(*each.arguments, **each.named)
            except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
                problem = problem or error
                continue
            if "labels" not in each.named or loss_of(output) is not None:
                return each
        raise ConfigError(
            f"no example could be made for {type(model).__qualname__}, by which it could be cut "
            f"({problem}): pass example=, a microbatch as a dict"
        ) from problem

    @property
    def layers(self) -> tuple[str, ...]:
        """Return the names of the layers, with which stages can begin."""
        return self._row.layers

    def costs(self) -> list[float]:
        """Return each layer's cost: seconds for a user's example, else numbers of parameters."""
        return self._parameters() if self.is_made else self._seconds()

    def stages(self, cuts: Sequence[str]) -> list[WholeStage]:
        """Return the stages; all but the first begin with the layer of a name in `cuts`.

        Raises ConfigError for names of no layers, and if the stages do not give what the model
        gives.
        """
        parts = self._cut(cuts)
        with prepared(self._model):
            wanted = _called(self._model, self._example)
            parts = self._completed(parts)
            stages = [WholeStage(self._model, part) for part in parts]
            _check_same(self._model, wanted, _chained(stages, self._example))
            counted = counted_by(self._model, self._example)
        made = [WholeStage(self._model, part) for part in parts]
        for stage in made:
            stage.defaults = self._defaults
        made[-1].counted = counted
        return made

    def _cut(self, cuts: Sequence[str]) -> list[Part]:
        parts = parts_of(self._model, self.layers, cuts)
        ends = [0, *accumulate(map(len, parts))]
        return [self._part(*each) for each in pairwise(ends)]

    def _part(self, start: int, end: int) -> Part:
        """Return a part with all parameters outside of layers, whose inputs and outputs are unknown
        yet.
        """
        names, carried = self.layers, self._row.carried
        entering = carried[names[start]] if start else ()
        following = names[end] if end < len(names) else ""
        instead = {}
        for name in names[:start]:
            beside = [each for each in entering if _home(each) == _home(name)]
            instead[name] = beside[-1] if beside else name
        return Part(
            layers=names[start:end],
            absent=frozenset([*names[:start], *names[end:], *entering]),
            parameters=frozenset(self._outside()),
            entering=dict.fromkeys(entering),  # type: ignore[arg-type]
            leaving=dict.fromkeys(carried[following] if following else ()),
            instead=instead,
            following=following,
        )

    def _outside(self) -> list[str]:
        named = self._model.named_parameters(remove_duplicate=False)
        return [name for name, _ in named if not any(is_within(name, own) for own in self.layers)]

    def _completed(self, parts: Sequence[Part]) -> list[Part]:
        """Complete parts by the example: what crosses cuts, and which parameters each needs."""
        named = dict(self._model.named_parameters(remove_duplicate=False))
        unused = {*self._outside()}
        found: list[Part] = []
        received: tuple[Any, ...] = ()
        entering: Any = {}
        for part in parts:
            stage = WholeStage(self._model, part._replace(entering=entering))
            leaves = [_leaf(each) for each in received]
            output = _called(stage, Call(tuple(leaves), {"microbatch": self._example}))
            received = tuple(_tensors(output))
            used = reached([*received])
            own = frozenset(name for name in part.parameters if id(named[name]) in used)
            unused -= own
            dtype = next((each.dtype for each in leaves if each.is_floating_point()), None)
            leaving = stage.structures
            found.append(
                part._replace(entering=entering, leaving=leaving, parameters=own, dtype=dtype)
            )
            entering = leaving
        last = found[-1]
        found[-1] = last._replace(parameters=last.parameters | unused)
        return found

    def _parameters(self) -> list[float]:
        modules = dict(self._model.named_modules())
        costs = [float(sum(p.numel() for p in modules[n].parameters())) for n in self.layers]
        heads = [p for n in self._row.after for p in modules[n].parameters(recurse=False)]
        costs[-1] += sum(each.numel() for each in heads if each.ndim > 1)
        return costs

    def _seconds(self) -> list[float]:
        modules = dict(self._model.named_modules())
        best = [float("inf")] * len(self.layers)
        with prepared(self._model), torch.no_grad():
            for _ in range(2):
                begun: list[float] = []
                handles = [
                    modules[name].register_forward_pre_hook(_noting_time(begun))
                    for name in self.layers
                ]
                start = time.perf_counter()
                try:
                    _called(self._model, self._example)
                finally:
                    for handle in handles:
                        handle.remove()
                times = [start, *begun[1:], time.perf_counter()]
                best = [min(b, y - x) for b, (x, y) in zip(best, pairwise(times), strict=True)]
        return best


def _noting_time(times: list[float]) -> Any:
    def note(*_: Any) -> None:
        times.append(time.perf_counter())

    return note


def _defaults(model: Any) -> dict[str, Any]:
    """Return arguments that switch off caches of keys and values, which are for generation."""
    has_cache = getattr(getattr(model, "config", None), "use_cache", False)
    return {"use_cache": False} if has_cache and takes(model, "use_cache") else {}


def _called(module: Any, call: Call) -> Any:
    try:
        return module(*call.arguments, **call.named)
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        raise ConfigError(
            f"{type(module).__qualname__} cannot be called with the example, or be cut so: "
            f"{type(error).__name__}: {error}"
        ) from error


def _check_layers_are_called(model: Module) -> None:
    """Raise ConfigError for models that leave out layers at random, differently on each rank."""
    for name, module in model.named_modules():
        if getattr(module, "layerdrop", 0):
            raise ConfigError(
                f"{name or type(model).__qualname__} leaves layers out by chance (layerdrop): set "
                f"layerdrop to 0, as on different ranks there are different stages"
            )


def _chained(stages: Sequence[WholeStage], example: Call) -> Any:
    output: Any = ()
    for stage in stages:
        received = tuple(map(_leaf, _tensors(output)))
        output = _called(stage, Call(received, {"microbatch": example}))
    return output


def _check_same(model: Module, wanted: Any, found: Any) -> None:
    (these, spec), (those, other) = map(pytree.tree_flatten, (wanted, found))
    wrong = "the structure of its output" if spec != other else ""
    for number, (this, that) in enumerate(zip(these, those, strict=False)):
        if isinstance(this, torch.Tensor) and not (wrong or _is_near(this, that)):
            wrong = _path(wanted, number)
    if wrong:
        raise ConfigError(
            f"stages of {type(model).__qualname__} do not give what the model gives: {wrong} "
            f"differs. A stage has its own layers' outputs only: put what is computed of several "
            f"layers, as adding up, into layers, and let the model return no attention weights, "
            f"hidden states or losses of all layers (output_attentions, output_hidden_states, "
            f"output_router_logits = False), or pass a list of stages"
        )


def _path(output: Any, number: int) -> str:
    """Return the path of one of an output's leaves, or its number with older transformers."""
    try:
        leaves, _ = pytree.tree_flatten_with_path(output)
    except ValueError:
        return f"output {number}"
    return pytree.keystr(leaves[number][0])


def _is_near(this: Any, that: Any) -> bool:
    if not isinstance(that, torch.Tensor) or this.shape != that.shape or this.dtype != that.dtype:
        return False
    if not this.numel():
        return True
    this, that = this.detach(), that.detach()
    apart = (this - that).abs().max() if this.is_floating_point() else (this != that).any()
    largest = this.abs().max() if this.is_floating_point() else 0
    return bool(apart <= _NEAR.get(this.dtype, _NEAR_OTHERWISE) * largest)


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.is_floating_point())


def _tensors(output: Any) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(output) if isinstance(each, torch.Tensor)]


def _home(name: str) -> str:
    return name.rpartition(".")[0]
