"""Attention over sequences that the ranks of an axis have parts of."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from torsh_runtime.comm.agreement import check_same
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.context.blockwise import Blockwise
from torsh_runtime.parallel.context.chunks import lengths, seen
from torsh_runtime.parallel.context.columns import Columns
from torsh_runtime.parallel.context.heads import attention_by_heads, refusal
from torsh_runtime.parallel.context.kernels import Kernel, Products
from torsh_runtime.parallel.context.routes import Alone, Gathering, Ring
from torsh_runtime.parallel.context.tasks import Documents, Task, tasks
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.operations import applied, is_recorded, is_torch

Method = Literal["ring", "all_gather", "all_to_all"]
_ROUTES = {"ring": Ring, "all_gather": Gathering}


def context_attention(
    query: Any,
    key: Any,
    value: Any,
    axis: Any,
    causal: bool = True,
    method: Method = "ring",
    documents: Sequence[int] | Sequence[Sequence[int]] | None = None,
    length: int | None = None,
    scale: float | None = None,
) -> Any:
    """Attention of this rank's tokens to those of all ranks: the numbers of one process that calls
    scaled_dot_product_attention with whole sequences. Tensors of torch or of torsh_runtime.nn.

    query: (batch, heads, tokens, E), key: (batch, kv_heads, tokens, E), value: (batch, kv_heads,
    tokens, F), where kv_heads divides heads and tokens are this rank's, as context_shard() gives
    them: of n ranks, rank r has chunk r and chunk 2n - 1 - r of 2n. Returns (batch, heads, tokens,
    F). All ranks call it alike, and so do their backward passes.

    axis: the ranks, a process group or a DeviceMesh, as mesh["cp"]. causal: a token looks at itself
    and those before it. documents: cumulative lengths (0, ..., length) of those that are packed
    into a sequence, or such for each row of the batch; tokens look at their own document.
    length: of the whole sequence; None if all ranks have as many tokens as this one. scale: None is
    1/√E. method:
    - "ring": keys and values go from rank to rank, the next ones while these are computed with;
    - "all_gather": they are gathered at once, which takes the memory for all of them;
    - "all_to_all": each rank gets some heads of the whole sequence; their number is divisible by
      that of the ranks, and so is kv_heads, or else that of the ranks by kv_heads.

    Raises ConfigError, on all ranks, for what does not fit and for what differs between ranks, and
    what the group's collectives raise.
    """
    group = group_of(axis)
    plan = _agreed(group, (query, key, value), causal, method, documents, length, scale)
    operation = partial(Blockwise, kernel=_kernel(query, value), scale=plan.scale)
    if group.world_size > 1 and method != "all_to_all":
        route = partial(_ROUTES[method], group, seen(plan.length, group.world_size, causal))
        return applied(operation(route, plan.tasks(group)), query, key, value)
    alone = partial(applied, operation(Alone, plan.tasks()))
    if group.world_size == 1:
        return alone(query, key, value)
    return attention_by_heads(alone, query, key, value, group, plan.length)


def _kernel(query: Any, value: Any) -> Kernel:
    if is_torch(query):
        from torsh_runtime.parallel.context.flash import Flash, is_for

        if is_for(query, value):
            return Columns(Flash(), Flash.in_columns)
    return Columns(Products(), Products.in_columns)


class _Plan(NamedTuple):
    """What all ranks do."""

    length: int
    documents: Documents
    causal: bool
    scale: float

    def tasks(self, group: ProcessGroup | None = None) -> list[tuple[Task, ...]]:
        """By the rank whose keys they are about; without a group those of whole sequences."""
        rank, ranks = (group.rank, group.world_size) if group else (0, 1)
        who_sees = self.documents, self.causal
        return [tasks(self.length, ranks, rank, source, *who_sees) for source in range(ranks)]


def _agreed(
    group: ProcessGroup,
    tensors: tuple[Any, Any, Any],
    causal: bool,
    method: str,
    documents: Any,
    length: int | None,
    scale: float | None,
) -> _Plan:
    """The same on all ranks. ConfigError on all of them otherwise."""
    problem, text, made = "", "", None
    try:
        made = _made(group, tensors, causal, documents, length, scale)
        problem = _problem(group, tensors, method, made)
        shapes = [(*each.shape[:2], *each.shape[3:]) for each in tensors]
        text = (
            f"{method}, {made}, shapes without tokens {shapes}, {tensors[0].dtype}, "
            f"{'with' if is_recorded(*tensors) else 'without'} a backward pass"
        )
    except ConfigError as error:
        problem = str(error)
    check_same(group, "calls of context_attention", problem or text)
    if problem or made is None:
        raise ConfigError(f"context_attention: {problem}")
    return made


def _made(
    group: ProcessGroup,
    tensors: tuple[Any, Any, Any],
    causal: bool,
    documents: Any,
    length: int | None,
    scale: float | None,
) -> _Plan:
    """What this rank means. ConfigError for what cannot be understood."""
    shapes = [tuple(getattr(each, "shape", ())) for each in tensors]
    if any(len(shape) != 4 or not shape[-1] for shape in shapes):
        raise ConfigError(_misfit(*shapes))
    kinds = {str(getattr(each, "dtype", None)) for each in tensors}
    if len(kinds) > 1:
        raise ConfigError(f"query, key and value are of several dtypes, {', '.join(sorted(kinds))}")
    if getattr(scale, "requires_grad", False):
        raise ConfigError(
            "scale is a number, through which no gradient flows: multiply the query by what is "
            "trained, and pass scale=1"
        )
    try:
        whole = operator.index(length or shapes[0][2] * group.world_size)
        factor = 1 / math.sqrt(shapes[0][-1]) if scale is None else float(scale)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"length={length!r}, scale={scale!r}: {error}") from None
    try:
        return _Plan(whole, _cuts(documents), bool(causal), factor)
    except (TypeError, ValueError, IndexError):
        raise ConfigError(
            f"documents={documents!r}: give cumulative lengths from 0 to {whole}, whole numbers, "
            f"or such for each row"
        ) from None


def _cuts(documents: Any) -> Documents:
    if documents is None:
        return ()
    rows = documents if np.ndim(documents[0]) else [documents]
    return tuple(tuple(operator.index(cut) for cut in row) for row in rows)


def _misfit(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> str:
    return (
        f"query {query}, key {key} and value {value} do not fit: they are (batch, heads, tokens, "
        f"size), of which keys and values may have fewer heads, in a number that divides the "
        f"query's"
    )


def _problem(group: ProcessGroup, tensors: tuple[Any, Any, Any], method: str, plan: _Plan) -> str:
    """What is wrong with this rank's call; "" if nothing is."""
    q, k, v = (tuple(each.shape) for each in tensors)
    if not (q[0] == k[0] and q[2:] == k[2:] and k[:3] == v[:3] and k[1] and q[1] % k[1] == 0):
        return _misfit(q, k, v)
    if method not in (*_ROUTES, "all_to_all"):
        return f"there is no method {method!r}: use 'ring', 'all_gather' or 'all_to_all'"
    ranks = group.world_size
    if not plan.length:
        return "sequences without tokens have nothing to attend to: leave such batches out"
    if 1 < ranks > plan.length // 2:
        return f"{plan.length} tokens give {ranks} ranks no early and late chunk each"
    own = lengths(plan.length, ranks)[group.rank]
    if q[2] != own:
        return (
            f"rank {group.rank} has {q[2]} tokens, and of {plan.length} it has to have {own}, as "
            f"context_shard() gives; pass `length` where sequences do not divide evenly"
        )
    for cuts in plan.documents:
        if not cuts or cuts[0] or cuts[-1] != plan.length or any(a > b for a, b in pairwise(cuts)):
            return f"documents {cuts} are not cumulative lengths from 0 to {plan.length}"
    if len(plan.documents) not in (0, 1, q[0]):
        return f"documents of {len(plan.documents)} rows are given for a batch of {q[0]}"
    return refusal(q[1], k[1], ranks) if method == "all_to_all" else ""
