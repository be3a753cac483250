"""Computes attention over sequences of which the ranks of an axis have parts.

All ranks agree on a Plan first. By the methods "ring" and "all_gather" keys and values come to a
rank block by block; by "all_to_all" each rank gets some heads of the whole sequence (Jacobs et al.,
DeepSpeed Ulysses, 2023).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from torsh_runtime.comm.agreement import agree
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.context.blockwise import Alone, Blockwise, Direct, Gathering, Ring
from torsh_runtime.parallel.context.kernels import Columns, Kernel, Products
from torsh_runtime.parallel.context.sequence import (
    Documents,
    Runs,
    Sight,
    Task,
    banded_tasks,
    by_rank,
    in_order,
    lengths,
    needed,
    of_what_came,
    seen,
    tasks,
)
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.operations import applied, is_recorded, is_tensor
from torsh_runtime.parallel.regions import is_traced

Method = Literal["ring", "all_gather", "all_to_all"]


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
    window: int | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    attention_mask: Any = None,
) -> Any:
    """Return the attention of this rank's tokens to those of all ranks.

    The result has the numbers of one process that calls scaled_dot_product_attention with whole
    sequences. Tensors are torch's or those of torsh_runtime.nn. All ranks call it alike, and so do
    their backward passes. "Own tokens" are this rank's, as context_shard() returns them: of n
    ranks, rank r has chunk r and chunk 2n - 1 - r of 2n.

    There are three methods. "ring": keys and values travel from rank to rank, the next ones while
    the current ones are computed with; with a window or padding each rank gets what it looks at
    from the ranks that have it. "all_gather": they are gathered at once, which takes the memory for
    all of them. "all_to_all": each rank gets some heads of the whole sequence; the number of heads
    must be divisible by that of ranks, and kv_heads and the number of ranks must be divisible one
    by the other.

    Args:
        query: The queries (batch, heads, own tokens, E).
        key: The keys (batch, kv_heads, own tokens, E), where kv_heads divides heads.
        value: The values (batch, kv_heads, own tokens, F).
        axis: The ranks, a process group or a DeviceMesh, as mesh["cp"].
        causal: Whether a token looks only at itself and those before it.
        method: "ring", "all_gather" or "all_to_all".
        documents: Cumulative lengths (0, ..., length) of the documents packed into a sequence, or a
            list of these for each row of the batch; tokens look at their own document only.
        length: The length of the whole sequence; None if all ranks have as many tokens as this one.
        scale: The factor of scores; None is 1/√E.
        window: Tokens look at tokens less than this many places away, themselves included; None is
            no limit.
        softcap: Scores s become softcap · tanh(s / softcap); None leaves them.
        sinks: A tensor (heads,) with one score for each head, whose weight falls on no value; each
            rank's gradient of it is that of its own queries.
        attention_mask: The mask of whole sequences, (batch, length), 1 for tokens and 0 for
            padding, which no token looks at; a token that may look at none gets zeros.

    Returns:
        The result (batch, heads, own tokens, F).

    Raises:
        ConfigError: On all ranks, for arguments that do not fit or that differ between ranks.
        CommError: If an exchange among the ranks fails.

    Example:
        ```python
        q, k, v = (tr.context_shard(each, mesh["cp"], dim=2) for each in (query, key, value))
        output = tr.context_attention(q, k, v, mesh["cp"])
        ```
    """
    group = group_of(axis)
    tensors = query, key, value, *(() if sinks is None else (sinks,))
    if is_traced():
        from torsh_runtime.parallel.context import traced

        looks: dict[str, Any] = {"causal": causal, "documents": documents, "window": window}
        scores: dict[str, Any] = {"length": length, "scale": scale, "softcap": softcap}
        return traced.attention(tensors, group, attention_mask, method=method, **looks, **scores)
    sight = causal, documents, window, attention_mask
    plan = agreed(group, tensors, method, sight, length, scale, softcap)
    return _attended(tensors, group, method, plan)


def _attended(tensors: tuple[Any, ...], group: ProcessGroup, method: Method, plan: Plan) -> Any:
    """Compute what the ranks have agreed on."""
    query, key, value, *sinks = tensors
    operation = partial(
        Blockwise,
        kernel=_kernel(query, value, plan.softcap),
        scale=plan.scale,
        is_banded=plan.sight.is_banded,
        has_sinks=bool(sinks),
    )
    if group.world_size > 1 and method != "all_to_all":
        route, tasks = _route(method, group, plan)
        return applied(operation(route, tasks), *tensors)
    alone = partial(applied, operation(Alone, plan.tasks()))
    if group.world_size == 1:
        return alone(*tensors)
    attention = partial(_with, alone, [own_heads(each, group) for each in sinks])
    return attention_by_heads(attention, query, key, value, group, plan.length)


def _with(alone: Callable[..., Any], more: Sequence[Any], *tensors: Any) -> Any:
    return alone(*tensors, *more)


def _kernel(query: Any, value: Any, softcap: float | None) -> Kernel[Any]:
    if is_tensor(query) and softcap is None:
        from torsh_runtime.parallel.context.flash import kernel_for

        if found := kernel_for(query, value):
            return found
    return Columns(Products(softcap), Products.in_columns)


def _route(method: str, group: ProcessGroup, plan: Plan) -> tuple[Any, Any]:
    """Return the factory of routes, and for each source rank the tasks about its block."""
    if method == "ring" and plan.sight.is_banded:
        return partial(Direct, group, plan.needed(group)), plan.tasks_of_parts(group)
    route = Ring if method == "ring" else Gathering
    whole = seen(plan.length, group.world_size, plan.sight.is_causal)
    return partial(route, group, whole), plan.tasks(group)


class Plan(NamedTuple):
    """Holds the arguments on which all ranks have agreed."""

    length: int
    sight: Sight
    scale: float
    softcap: float | None

    def tasks(self, group: ProcessGroup | None = None) -> list[tuple[Task, ...]]:
        """Return tasks by the rank whose keys they are about; those of whole sequences without a
        group.
        """
        rank, ranks = (group.rank, group.world_size) if group else (0, 1)
        places = [(self.length, ranks, rank, source) for source in range(ranks)]
        if self.sight.is_banded:
            return [banded_tasks(*each, self.sight) for each in places]
        return [tasks(*each, self.sight.documents, self.sight.is_causal) for each in places]

    def needed(self, group: ProcessGroup) -> Callable[[int, int], tuple[slice, ...]]:
        """Return a function of a rank and a source: which of the source's tokens the rank needs."""
        return partial(_needed, self.length, group.world_size, self.sight)

    def tasks_of_parts(self, group: ProcessGroup) -> list[tuple[Task, ...]]:
        """Return tasks() for blocks of which other ranks send only what is needed."""
        came = self.needed(group)
        return [
            every if source == group.rank else of_what_came(every, came(group.rank, source))
            for source, every in enumerate(self.tasks(group))
        ]


def _needed(length: int, ranks: int, sight: Sight, rank: int, source: int) -> tuple[slice, ...]:
    return needed(length, ranks, rank, source, sight)


def agreed(
    group: ProcessGroup,
    tensors: Sequence[Any],
    method: str,
    sight: tuple[bool, Any, Any, Any],
    length: int | None,
    scale: float | None,
    softcap: float | None,
) -> Plan:
    """Return the plan that all ranks have in common. ConfigError, on all ranks, if they differ.

    tensors: query, key, value, and sinks if there are any. sight: `causal`, `documents`, `window`
    and `attention_mask`.
    """
    text, made, problem = "", None, None
    try:
        made = _made(group, tensors, sight, length, scale, softcap)
        if wrong := _problem(group, tensors, method, made):
            raise ConfigError(wrong)
        shapes = [(*each.shape[:2], *each.shape[3:]) for each in tensors]
        text = (
            f"{method}, {made}, shapes without tokens {shapes}, {tensors[0].dtype}, "
            f"{'with' if is_recorded(*tensors) else 'without'} a backward pass"
        )
    except ConfigError as error:
        problem = ConfigError(f"context_attention: {error}")
    agree(group, "context_attention", text, problem)
    assert made is not None, "else there is a problem"
    return made


def _made(
    group: ProcessGroup,
    tensors: Sequence[Any],
    sight: tuple[bool, Any, Any, Any],
    length: int | None,
    scale: float | None,
    softcap: float | None,
) -> Plan:
    """Return this rank's plan. ConfigError for arguments that cannot be understood."""
    shapes = [tuple(getattr(each, "shape", ())) for each in tensors[:3]]
    if any(len(shape) != 4 or not shape[-1] for shape in shapes):
        raise ConfigError(_misfit(*shapes))
    kinds = {str(getattr(each, "dtype", None)) for each in tensors[:3]}
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
        cap = None if softcap is None else float(softcap)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{length=}, {scale=}, {softcap=}: {error}") from None
    return Plan(whole, _sight(whole, *sight), factor, cap)


def _sight(whole: int, causal: bool, documents: Any, window: Any, mask: Any) -> Sight:
    try:
        cuts = _cuts(documents)
    except (TypeError, ValueError, IndexError):
        raise ConfigError(
            f"documents={documents!r}: give cumulative lengths from 0 to {whole}, whole numbers, "
            f"or such for each row"
        ) from None
    try:
        far = None if window is None else operator.index(window)
    except TypeError:
        raise ConfigError(f"window={window!r} is no number of tokens") from None
    if far is not None and far < 1:
        raise ConfigError(f"window={far}: a token looks at itself at least, so give 1 or more")
    runs = () if mask is None else runs_of(mask, whole)
    return Sight(cuts, bool(causal), None if far is None or far >= whole else far, runs)


def _cuts(documents: Any) -> Documents:
    if documents is None:
        return ()
    rows = documents if np.ndim(documents[0]) else [documents]
    return tuple(tuple(operator.index(cut) for cut in row) for row in rows)


def runs_of(mask: Any, whole: int) -> Runs:
    """Return where tokens begin and end in each row of a mask; () if there is no padding.

    The mask is that of whole sequences, (batch, `whole`). Other shapes raise ConfigError.
    """
    rows = np.asarray(mask.cpu() if hasattr(mask, "cpu") else mask)
    if rows.ndim != 2 or rows.shape[1] != whole:
        raise ConfigError(
            f"attention_mask has shape {rows.shape}: it is that of whole sequences, (batch, "
            f"{whole}), 1 for tokens and 0 for padding"
        )
    rows = rows != 0
    if rows.all():
        return ()
    edges = np.diff(np.pad(rows.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    pairs = [(np.flatnonzero(row == 1), np.flatnonzero(row == -1)) for row in edges]
    return tuple(
        tuple(zip(starts.tolist(), stops.tolist(), strict=True)) for starts, stops in pairs
    )


def _misfit(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> str:
    return (
        f"query {query}, key {key} and value {value} do not fit: they are (batch, heads, tokens, "
        f"size), of which keys and values may have fewer heads, in a number that divides the "
        f"query's"
    )


def _problem(group: ProcessGroup, tensors: Sequence[Any], method: str, plan: Plan) -> str:
    """Return what is wrong with this rank's call; "" if nothing is."""
    q, k, v = (tuple(each.shape) for each in tensors[:3])
    if not (q[0] == k[0] and q[2:] == k[2:] and k[:3] == v[:3] and k[1] and q[1] % k[1] == 0):
        return _misfit(q, k, v)
    if method not in ("ring", "all_gather", "all_to_all"):
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
    return (
        _problem_of_rows(q[0], plan)
        or _problem_of_scores(q[1], tensors[3:], plan)
        or (refusal(q[1], k[1], ranks) if method == "all_to_all" else "")
    )


def _problem_of_rows(batch: int, plan: Plan) -> str:
    """Return what is wrong with the arguments for rows of a batch; "" if nothing is."""
    for cuts in plan.sight.documents:
        if not cuts or cuts[0] or cuts[-1] != plan.length or any(a > b for a, b in pairwise(cuts)):
            return f"documents {cuts} are not cumulative lengths from 0 to {plan.length}"
    for what, rows in (("documents", plan.sight.documents), ("attention_mask", plan.sight.runs)):
        if len(rows) not in (0, 1, batch):
            return f"{what} of {len(rows)} rows are given for a batch of {batch}"
    return ""


def _problem_of_scores(heads: int, sinks: Sequence[Any], plan: Plan) -> str:
    if plan.softcap is not None and not 0 < plan.softcap < math.inf:
        return f"softcap={plan.softcap}: give a number above 0, or None"
    for each in sinks:
        if tuple(getattr(each, "shape", ())) != (heads,):
            return f"sinks give {heads} heads one score each, shape ({heads},)"
    return ""


def refusal(heads: int, kv_heads: int, ranks: int) -> str:
    """Return why these heads cannot be divided between the ranks; "" if they can."""
    if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        return (
            f"{heads} heads and {kv_heads} of keys cannot be divided between {ranks} ranks: use "
            f"method='ring' or 'all_gather'"
        )
    return ""


def own_heads(tensor: Any, group: ProcessGroup) -> Any:
    """Return the part of a tensor (heads, ...) for this rank's heads."""
    share = tensor.shape[0] // group.world_size
    return tensor[group.rank * share : (group.rank + 1) * share]


def attention_by_heads(
    attention: Callable[[Any, Any, Any], Any],
    query: Any,
    key: Any,
    value: Any,
    group: ProcessGroup,
    length: int,
) -> Any:
    """Apply `attention` to this rank's heads of the whole sequence and return all heads of its
    tokens.

    If there are fewer heads of keys than ranks, several ranks get each.
    """
    ranks = group.world_size
    sizes = lengths(length, ranks)

    def whole(tensor: Any) -> Any:
        heads = tensor.shape[1]
        if heads < ranks:
            tensor = tensor[:, np.repeat(np.arange(heads), ranks // heads)]
        shares = [tensor.shape[1] // ranks] * ranks
        return in_order(regions.all_to_all(tensor, group, shares, sizes, 1, 2), 2, length, ranks)

    found = attention(whole(query), whole(key), whole(value))
    shares = [query.shape[1] // ranks] * ranks
    return regions.all_to_all(by_rank(found, 2, length, ranks), group, sizes, shares, 2, 1)
