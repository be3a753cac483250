"""The suite's cases that a group over NCCL fulfils, on fake GPUs and on real ones."""

from __future__ import annotations

from support.suite import CASES
from support.suite.references import reductions

from torsh_runtime.backends.base import Reduce, ReduceOp

_IN_TURN = "a message is over when it was received, and what comes after it waits: see coalescing"
_NO_TAGS = "NCCL has no tags"
_HOST = "arrays in the processor's memory"
NOT_FOR_NCCL = {
    "a_ring_of_messages": _NO_TAGS,
    "large_messages_both_ways": _IN_TURN,
    "tags_keep_messages_apart": _NO_TAGS,
    "messages_with_one_tag_arrive_in_order": _NO_TAGS,
    "messages_from_anyone_say_who_sent_them": "NCCL cannot receive from anyone",
    "unmatched_messages_of_64_kib_do_not_block": _NO_TAGS,
    "a_sent_array_may_be_changed_at_once": _IN_TURN,
    "strided_messages": _IN_TURN,
    "messages_pass_collectives": _NO_TAGS,
    "the_future_of_what_fails_fails": "it receives with a tag",
    "a_wait_that_ends_early_leaves_the_operation_alone": _IN_TURN,
    "an_operation_under_way_ends_with_the_group": _IN_TURN,
    "narrow_floats_are_summed_in_float32": "they are rounded at every addition",
    "nan_wins_in_min_and_max": "NCCL may lose NaN",
    "other_buffers": _HOST,
    "torch_tensors": _HOST,
    "any_dtype_is_moved": "what NCCL has no name for is refused",
    "what_is_only_moved_is_not_reduced": "what NCCL has no name for is refused",
    "what_cannot_be_sent_is_refused_before_it_starts": "no array of a GPU is read-only",
}
"""Cases that an NCCL group does not fulfil, by the beginnings of their names, and why; besides
those about objects, which it does not carry."""
REFUSED = [
    name
    for name, case in CASES.items()
    if NOT_FOR_NCCL.get(name) == _NO_TAGS or "object" in name or "from_anyone" in name
]


def cases_for_nccl(ranks: int) -> list[str]:
    """The names of those for so many ranks that need not be processes."""
    unfit = tuple(NOT_FOR_NCCL)
    return [
        name
        for name, case in CASES.items()
        if ranks >= case.ranks and not case.processes
        if not name.startswith(unfit) and "object" not in name
    ]


def reductions_of_nccl(dtype: str) -> list[Reduce]:
    """The suite's, without those that NCCL has not; that these raise TypeError is a case, too."""
    refused = {ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR} if "int" in dtype else set()
    if dtype.startswith("complex"):
        refused = {ReduceOp.PRODUCT}
    return [op for op in reductions(dtype) if op not in refused]
