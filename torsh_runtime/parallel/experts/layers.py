"""Experts and their router, as modules of any framework."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, ClassVar, Self, cast
from zlib import crc32

import numpy as np

from torsh_runtime.arrays.raw import dtype_name
from torsh_runtime.comm.agreement import Attempt, Value, agree, agree_in_turn
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Framework, Module, Tensor, framework_named, framework_of
from torsh_runtime.framework.models import trained_parameters
from torsh_runtime.framework.parts import Part
from torsh_runtime.layout import Shard, TensorLayout
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.agreement import SAME_VALUES, values_told
from torsh_runtime.parallel.dispatch.products import GroupedLinear
from torsh_runtime.parallel.dispatch.ranks import Ranks, are_same
from torsh_runtime.parallel.dispatch.ranks import shared as shared_by
from torsh_runtime.parallel.dispatch.routing import Groups, Remark
from torsh_runtime.parallel.dispatch.rows import Scaled
from torsh_runtime.parallel.dispatch.sending import is_routed_there, mixed
from torsh_runtime.parallel.experts.routes import Routes, routes_for
from torsh_runtime.parallel.operations import applied, is_recorded, joined

_NAME = "MixtureOfExperts"
_ACTIVATIONS = ("gelu", "relu", "silu")
_LOOKED_AT = 4
"""Number of rows at either end that are compared to tell whether ranks have the same tokens."""


class MixtureOfExperts:
    """Applies experts, feed-forward layers of which each token goes to those with the best scores.

    A router scores them (Shazeer et al., "Outrageously Large Neural Networks", 2017; Fedus et al.,
    "Switch Transformers", 2021). Each rank of an axis has some experts; tokens go to where their
    experts are and come back. It is a module of torch or of torsh_runtime.nn.

    The ranks' losses are averaged, so gradients of `up` and `down` are averages over the ranks of
    the axis when a backward pass ends, and those of `router` are this rank's own. What remains is
    to average the former over the ranks with the same experts, and the latter over all, as wrappers
    for data parallelism over a mesh's axes do. Those of ranks with parts of one sequence are
    summed.

    Attributes:
        router: The scores' weight (num_experts, embed_dim), or the user's module or function.
        up: The weight (own experts, hidden_dim, embed_dim), twice as high if gated.
        down: The weight (own experts, embed_dim, hidden_dim).
        parameter_layouts: The layouts of `up` and `down` on the mesh.

    Example:
        ```python
        layer = tr.MixtureOfExperts(512, 2048, num_experts=8, mesh=mesh["ep"])
        outputs, balance = layer(tokens)  # tokens: (batch, length, 512)
        loss = task_loss(outputs) + 0.01 * balance
        ```
    """

    port: ClassVar[Framework]
    """The framework whose module it is."""
    communicates_in_backward = True
    """True, which DistributedDataParallel reads: the backward pass calls collectives."""
    parameter_layouts: dict[str, TensorLayout]
    up: Any
    down: Any

    def __new__(cls, *arguments: Any, framework: str | None = None, **named: Any) -> Self:
        """Create a layer of one framework. Raises ConfigError for names other than "torch" and
        "nn"."""
        kind: Any = cls if hasattr(cls, "port") else _class_of(framework_named(framework).name)
        made: Self = object.__new__(kind)
        return made

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        num_experts: int,
        top_k: int = 2,
        *,
        activation: str = "gelu",
        gated: bool = False,
        capacity_factor: float | None = None,
        mesh: Any = None,
        data: Any = None,
        sequence: Any = None,
        router: Callable[[Any], tuple[Any, ...]] | None = None,
        shared: Callable[[Any], Any] | None = None,
        dtype: Any = None,
        framework: str | None = None,
    ) -> None:
        """Create the layer.

        The ranks' generators are seeded alike, and draw for all experts one after the other, so
        they have the values of one process.

        Args:
            embed_dim: The width of tokens.
            hidden_dim: The width within an expert.
            num_experts: The number of experts on all ranks of the axis together.
            top_k: The experts of a token, whose weights are made to add up to 1 if there are
                several.
            activation: "gelu", "relu" or "silu".
            gated: Whether to apply the activation to one half of what `up` gives, and multiply by
                the other half.
            capacity_factor: How many times its equal share an expert takes at most, of all ranks'
                tokens in the order of the ranks; it gives zeros for what comes later. None: it
                takes all.
            mesh: The axis that has the experts, a DeviceMesh of one axis or a process group; None
                is the default group.
            data: A mesh or group of the ranks that have tokens of their own, over which the
                auxiliary loss and the capacity are counted; None is the ranks of `mesh`.
            sequence: The mesh's axis along which ranks have parts of one batch's tokens and the
                same loss, as mesh["tp"] with sequence parallelism; they are among those of `data`.
                None: there is none.
            router: A module or function that returns for tokens (tokens, embed_dim) the numbers of
                the experts of each and their weights, both (tokens, any top_k), and maybe thirdly
                scores of all experts (tokens, num_experts), from which the auxiliary loss is
                computed; it is 0 without. None: as `top_k` says.
            shared: A module or function, whose result for each token is added.
            dtype: The dtype of the weights; None is float32.
            framework: "torch" or "nn"; None is torch if it is loaded.

        Raises:
            ConfigError: On all ranks for arguments that do not fit or that differ between ranks.
        """
        super().__init__()
        self.embed_dim, self.num_experts, self.top_k = embed_dim, num_experts, top_k
        self.activation, self.gated, self.capacity_factor = activation, gated, capacity_factor
        self.ranks = Ranks.of(mesh, data, sequence)
        self._routes, self.shared = router is not None, shared
        self._has_compared = self._has_agreed = False
        options = f"{embed_dim} to {hidden_dim}, {num_experts} experts, {self.extra_repr()}"
        options += f", router {_kind(router)}, shared {_kind(shared)}"
        parts = 1 if self.ranks.parts is None else self.ranks.parts.world_size
        with Attempt() as attempt:
            self._check_options()
            self._cuts = _cuts(num_experts, self.ranks.experts.world_size)
            drawn = self.port.parameter(self._drawn((num_experts, embed_dim), embed_dim, dtype))
            self.router = drawn if router is None else router
            self.parameter_layouts = {}
            self._add("up", (hidden_dim * (2 if gated else 1), embed_dim), dtype)
            self._add("down", (embed_dim, hidden_dim), dtype)
        told = f"{options}, {self.port.name}, tokens in {parts} part(s)"
        self._agree(told, attempt.error)

    def _agree(self, options: str, problem: Exception | None) -> None:
        """Raise ConfigError on all ranks of both groups, unless options and the parameters drawn
        for all of them are valid and equal."""
        tokens, told = self.ranks.tokens, {"options": [options]}
        drawn = [] if problem else values_told(self._drawn_by_all())
        every: dict[ProcessGroup, Value] = {self.ranks.experts: {**told, "drawn": drawn}}
        every.setdefault(tokens, told)
        agree_in_turn(every, _NAME, problem, SAME_VALUES)

    def _drawn_by_all(self) -> list[tuple[str, Any]]:
        """Return parameters that are equal on all ranks, if these are seeded alike."""
        layer: Any = self  # a module of a framework
        named = trained_parameters(layer)
        return [(name, each) for name, each in named if name not in ("up", "down")]

    def _check_options(self) -> None:
        if said := self._problem():
            raise ConfigError(f"{_NAME}: {said}")

    def _problem(self) -> str:
        """Return what is wrong with the options, or "" if nothing is."""
        if not 1 <= self.top_k <= self.num_experts:
            return f"top_k is from 1 to {self.num_experts}, the number of experts, not {self.top_k}"
        if self.activation not in _ACTIVATIONS:
            return f"activation is one of {', '.join(_ACTIVATIONS)}, not {self.activation!r}"
        if self.capacity_factor is not None and not 0 < self.capacity_factor < math.inf:
            return f"capacity_factor is above 0 and finite, or None, not {self.capacity_factor}"
        return self.ranks.problem() or self._problem_with_parts()

    def _problem_with_parts(self) -> str:
        """Return what is wrong with ranks that have parts of one sequence, or "" if nothing is."""
        if self.ranks.parts is None or self.port.has_functional_call:
            return ""
        is_plain = not self._routes and self.shared is None
        return "" if is_plain else "router= and shared= beside sequence= are for models of torch"

    def _add(self, name: str, shape: tuple[int, int], dtype: Any) -> None:
        """Add a weight of each expert, of which this rank keeps some."""
        group, every = self.ranks.experts, (self.num_experts, *shape)
        layout = TensorLayout(every, ((self.ranks.name, group.world_size, Shard(0)),))
        kept = []
        for expert in range(self.num_experts):
            drawn = self._drawn((1, *shape), shape[1], dtype)
            if self._cuts[group.rank] <= expert < self._cuts[group.rank + 1]:
                kept.append(drawn)
        values = joined(kept, 0) if kept else self._drawn((0, *shape), shape[1], dtype)
        setattr(self, name, self.port.parameter(values))
        self.parameter_layouts[name] = layout
        if group.world_size > 1:
            clipping = "tr.clip_grad_norm_(model, max_norm, mesh)"
            framework_of(self).mark(getattr(self, name), Part(name, group, 0, clipping))

    @property
    def mesh_coordinate(self) -> dict[str, int]:
        """Return this rank's position along the axis."""
        return {self.ranks.name: self.ranks.experts.rank}

    def forward(self, input: Tensor) -> tuple[Any, Any]:
        """Return the mixed outputs, and the auxiliary loss.

        The auxiliary loss is one number that is equal on all ranks: 1 if all experts get the same
        number of tokens, more otherwise. Add it, times 0.01 or so, to the loss on all ranks, or on
        none.

        Args:
            input: This rank's tokens (…, embed_dim), maybe none.

        Returns:
            The outputs, of the input's shape, and the loss.

        Raises:
            ConfigError: On all ranks for inputs that do not fit or differ in dtype or in whether
                they need gradients, and if the router returns wrong shapes.
            CommError: If an exchange among the ranks fails.

        Example:
            ```python
            outputs, balance = layer(tokens)  # tokens: (batch, length, embed_dim)
            (task_loss(outputs) + 0.01 * balance).backward()
            ```
        """
        routes = routes_for(self.port, input, self.num_experts)
        tokens, remark = self._compared(input)
        asked = self._asked if self._routes else self._scored
        chosen, weights, scores = asked(tokens, routes)
        everyone = routes.everyone(chosen, self.ranks.tokens)
        limit = None
        if self.capacity_factor is not None:
            limit = routes.limit(everyone, self.capacity_factor, self.ranks.tokens.rank)
        found = mixed(
            self.ranks, self._cuts, tokens, chosen, weights, self._feed_forward, limit, remark
        )
        if self.shared is not None:
            found = found + self._called(self.shared, tokens)
        balance = self._balance(scores, weights, partial(routes.parts, everyone, chosen.shape[1]))
        return found.reshape(input.shape), balance

    def _scored(self, tokens: Tensor, routes: Routes) -> tuple[Any, Any, Any]:
        """Return the experts of each token, their weights, and scores of all experts."""
        router = shared_by(self.router, self.ranks.parts)
        scores = self.port.functional.softmax(self.port.functional.linear(tokens, router), -1)
        chosen, weights = routes.chosen(scores, self.top_k)
        if self.top_k > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        return chosen, weights, scores

    def _asked(self, tokens: Tensor, routes: Routes) -> tuple[Any, Any, Any]:
        """Return experts, weights and scores of the user's router; scores may be None. Raises
        ConfigError for wrong shapes."""
        router: Any = self.router
        chosen, weights, *scores = self._called(router, tokens)
        shape, every = (*chosen.shape,), [(*each.shape,) for each in scores]
        rows = tokens.shape[0]
        is_right = len(shape) == 2 and shape[0] == rows and (*weights.shape,) == shape
        if not is_right or every not in ([], [(rows, self.num_experts)]):
            told = " and ".join(map(str, (shape, (*weights.shape,), *every)))
            raise ConfigError(
                f"MixtureOfExperts: the router gave {told} for {rows} tokens: experts and weights "
                f"are both (tokens, top_k), and scores (tokens, {self.num_experts})"
            )
        return routes.numbers(chosen, tokens), weights, scores[0] if scores else None

    def _feed_forward(self, rows: Any, groups: Groups) -> Any:
        """Return the outputs of this rank's experts for rows that are sorted by expert."""
        grouped = GroupedLinear(groups)
        hidden = applied(grouped, rows, self.ranks.averaged(self.up))
        activate = getattr(self.port.functional, self.activation)
        if self.gated:
            gate, hidden = hidden.chunk(2, -1)
            hidden = activate(gate) * hidden
        else:
            hidden = activate(hidden)
        return applied(grouped, hidden, self.ranks.averaged(self.down))

    def _balance(self, scores: Tensor | None, weights: Any, parts: Callable[[Any], Any]) -> Any:
        """Return experts · Σ (its part of all assignments · the mean of its scores over all
        tokens), after Fedus et al.; 0 without scores. parts: those of all assignments."""
        if scores is None:
            return self.port.tensor(self.port.zeros((), dtype_name(weights), weights))
        group, own = self.ranks.tokens, scores.sum(0)
        if self.ranks.parts is not None:  # who have one loss, which copy() counts for each
            own = regions.applied(own, Scaled(1 / self.ranks.parts.world_size))
        return (regions.copy(regions.reduce(own, group), group) * parts(scores)).sum()

    def _compared(self, input: Tensor) -> tuple[Tensor, Remark | None]:
        """Return the tokens (tokens, embed_dim). Raise ConfigError on all ranks unless the inputs
        fit on all; or return a remark, with which mixed() finds that out for tokens that are
        routed on their device."""
        is_fit = bool(len(input.shape)) and input.shape[-1] == self.embed_dim
        text = f"{input.dtype}, {'with' if is_recorded(input, self.up) else 'without'} gradients"
        if not is_fit:
            text = f"an input of shape {tuple(input.shape)} is not (…, {self.embed_dim})"
        problem = None if is_fit else ConfigError(f"{_NAME}: {text}")
        group, remark = self.ranks.experts, None
        differ = partial(agree, group, "the input of MixtureOfExperts", text, problem)
        if is_routed_there(input) and self._has_agreed:
            remark = Remark(crc32(text.encode()) if is_fit else 0, differ)
        else:
            differ()
        self._has_agreed = True
        given: Any = input  # none go on in place of a wrong one until all ranks know
        tokens: Tensor = (given if is_fit else given.new_zeros(0)).reshape(-1, self.embed_dim)
        self._compare_first(tokens)
        return tokens, remark

    def note_parts(self, group: ProcessGroup) -> None:
        """Note for parallelize() that the ranks of `group` have parts of other layers.

        They have the same tokens here, or `sequence` says that each has a part. The first tokens
        are compared to check that.
        """
        if self.ranks.parts is None:
            others = [each for each in self.ranks.beside if each is not group]
            self.ranks, self._has_compared = replace(self.ranks, beside=(*others, group)), False

    def _compare_first(self, tokens: Tensor) -> None:
        """Raise ConfigError on all ranks if ranks that should have the same tokens differ, or
        the other way round."""
        if self._has_compared:
            return
        groups = [group for group in self.ranks.beside if group.world_size > 1]
        found = [self._are_same(tokens, group) for group in groups]
        self._has_compared = None not in found
        for group, is_same in zip(groups, found, strict=True):
            said = self.ranks.contradiction(group, is_same)
            if said:
                raise ConfigError(f"MixtureOfExperts: {said}")

    def _are_same(self, tokens: Tensor, group: ProcessGroup) -> bool | None:
        """Return whether the ranks of a group have the same tokens, or None if the tokens do not
        tell."""
        own = np.zeros((2 * _LOOKED_AT, self.embed_dim))
        for place, some in (0, tokens[:_LOOKED_AT]), (_LOOKED_AT, tokens[-_LOOKED_AT:]):
            own[place : place + len(some)] = self.port.numpy(some)
        said = np.array([len(tokens)]), own.reshape(-1).view(np.int64)
        told = group.all_gather_numbers(np.concatenate(said))
        rows = told[:, 1:].view(np.float64).reshape(group.world_size, -1, self.embed_dim)
        return are_same(told[:, 0], rows)

    def extra_repr(self) -> str:
        """Return the options as text."""
        top_k = "" if self._routes else f"top_k={self.top_k}, "
        return (
            f"{top_k}activation={self.activation!r}, gated={self.gated}, "
            f"capacity_factor={self.capacity_factor}"
        )

    def _drawn(self, shape: tuple[int, ...], fan_in: int, dtype: Any) -> Tensor:
        """Draw from the uniform distribution in ±1/√fan_in, by the framework's generator."""
        return self.port.uniform(shape, fan_in**-0.5, dtype)

    def _called(self, module: Callable[[Any], Any], tokens: Tensor) -> Any:
        """Call a module or a function. Ranks with parts of one batch sum its parameters'
        gradients."""
        parts, given = self.ranks.parts, cast(Module, module)
        if parts is None or not isinstance(module, self.port.module_type):
            return module(tokens)
        own = {name: regions.copy(each, parts) for name, each in given.named_parameters()}
        return self.port.functional_call(given, own, (tokens,))


@cache
def _class_of(framework: str) -> type[MixtureOfExperts]:
    """Return the class whose instances are modules of a framework."""
    port, kind = framework_named(framework), MixtureOfExperts
    named = {"port": port, "__module__": __name__, "__doc__": kind.__doc__}
    named["__qualname__"] = f"{kind.__qualname__}[{framework}]"
    made: type[MixtureOfExperts] = type(kind.__name__, (kind, port.module_type), named)
    return made


def __getattr__(name: str) -> Any:
    """Return a framework's class by its qualified name, by which pickle finds it."""
    kind, _, framework = name.removesuffix("]").partition("[")
    if kind == MixtureOfExperts.__qualname__ and framework in ("torch", "nn"):
        return _class_of(framework)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _cuts(num_experts: int, ranks: int) -> list[int]:
    """Return the first expert of each rank, and the end."""
    return [*(Shard(0).spans(num_experts, ranks, rank)[0][0] for rank in range(ranks)), num_experts]


def _kind(given: Any) -> str:
    return str(getattr(given, "__name__", type(given).__name__))
