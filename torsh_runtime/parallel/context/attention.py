"""Computes attention over sequences of which the ranks of an axis have parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.parallel.context.blockwise import Blockwise
from torsh_runtime.parallel.context.chunks import seen
from torsh_runtime.parallel.context.columns import Columns
from torsh_runtime.parallel.context.heads import attention_by_heads, own_heads
from torsh_runtime.parallel.context.kernels import Kernel, Products
from torsh_runtime.parallel.context.plan import Plan, agreed
from torsh_runtime.parallel.context.routes import Alone, Direct, Gathering, Ring
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.operations import applied, is_torch
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


def _kernel(query: Any, value: Any, softcap: float | None) -> Kernel:
    if is_torch(query) and softcap is None:
        from torsh_runtime.parallel.context.flash import Flash, is_for

        if is_for(query, value):
            return Columns(Flash(), Flash.in_columns)
    return Columns(Products(softcap), Products.in_columns)


def _route(method: str, group: ProcessGroup, plan: Plan) -> tuple[Any, Any]:
    """Return the factory of routes, and for each source rank the tasks about its block."""
    if method == "ring" and plan.sight.is_banded:
        return partial(Direct, group, plan.needed(group)), plan.tasks_of_parts(group)
    route = Ring if method == "ring" else Gathering
    whole = seen(plan.length, group.world_size, plan.sight.is_causal)
    return partial(route, group, whole), plan.tasks(group)
