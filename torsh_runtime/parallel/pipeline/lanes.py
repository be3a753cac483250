"""Makes groups for messages between stages whose arrays are on GPUs.

NCCL has no tags, and an operation that a rank begins in a group waits for those begun there before.
So each pair of ranks has two groups, one for each direction: in these, messages arrive in the order
in which they are sent, and wait for nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence, Set
from itertools import pairwise
from typing import Any

from torsh_runtime.backends.base import BackendType
from torsh_runtime.backends.nccl.device import is_on_gpu
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.choosing import backend_type, by_device
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module
from torsh_runtime.framework.models import all_parameters
from torsh_runtime.parallel.regions.arrays import empty

_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
_FEWEST = 8
"""Number of CUDA's queues by default."""


class Lanes:
    """Holds the lanes of one rank. Ranks are those of the pipeline's group."""

    def __init__(
        self, group: ProcessGroup, pairs: Set[tuple[int, int]], like: Any, kind: BackendType
    ) -> None:
        """Make the lanes, and send a message along each. All ranks call it.

        NCCL connects two ranks at their first message, and blocks its sender until then.

        pairs: all pairs of ranks that send each other messages, the lower rank first. like: values
        on this rank's GPU.
        """
        self._group, self.like = group, like
        self._lanes: dict[tuple[int, int], ProcessGroup] = {}
        for low, high in sorted(pairs):
            if group.rank not in (low, high):
                continue
            for way in ((low, high), (high, low)):
                ranks = [group.ranks[low], group.ranks[high]]
                name = f"{group.name}/lane"
                self._lanes[way] = group.session.group(name, ranks, kind, group.timeout)
                first = empty(like, (1,))
                if way[0] == group.rank:
                    self.send(first, way[1])
                else:
                    self.recv(first, way[0])

    @property
    def rank(self) -> int:
        """Return this rank's number in the pipeline's group."""
        return self._group.rank

    def send(self, tensor: object, dst: int, tag: int = 0, async_op: bool = False) -> Work:
        """Send like ProcessGroup.send(); a tag makes no difference."""
        return self._lanes[self.rank, dst].send(tensor, int(dst > self.rank), 0, async_op)

    def recv(self, tensor: object, src: int, tag: int = 0, async_op: bool = False) -> Work:
        """Receive like ProcessGroup.recv(); a tag makes no difference."""
        return self._lanes[src, self.rank].recv(tensor, int(src > self.rank), 0, async_op)

    def abort(self) -> None:
        """End what is under way, here and on the ranks that wait for it."""
        for lane in self._lanes.values():
            lane.abort()


def lanes_of(
    group: ProcessGroup,
    modules: Sequence[Module],
    tied: Iterable[Sequence[int]],
    placement: Sequence[int],
) -> Lanes | None:
    """Make lanes for a model whose parameters are on GPUs, as on all ranks or on none.

    Returns None for other models, and where ranks send each other nothing. All ranks call it. tied:
    ranks that have the same parameter. Raises ConfigError, on all ranks alike, for a backend that
    cannot send from both devices.
    """
    ends = [*pairwise(placement), *((ranks[0], rank) for ranks in tied for rank in ranks[1:])]
    pairs = {(min(pair), max(pair)) for pair in ends if pair[0] != pair[1]}
    if not pairs:
        return None
    like = _on_gpu(modules)
    if like is None:
        return None
    kinds = by_device(backend_type(group.backend))
    if not kinds.keys() >= {"cpu", "cuda"}:
        raise ConfigError(
            f"stages are on GPUs, and the group's backend is {group.backend!r}: make the default "
            f"group with 'cpu:native,cuda:nccl'"
        )
    return Lanes(group, pairs, like, kinds["cuda"])


def device_of(modules: Sequence[Module]) -> str:
    """Return where the parameters of stages are, "GPU" or "CPU".

    Raises ConfigError where messages between stages on GPUs would block what comes after them.
    """
    if _on_gpu(modules) is None:
        return "CPU"
    if not _has_queues():
        raise ConfigError(
            f"{_QUEUES} is less than {_FEWEST}: messages between stages would hold up what they "
            f"wait for; leave it out, or set it to 32"
        )
    return "GPU"


def _has_queues() -> bool:
    """Return whether streams of this process can run independently."""
    text = os.environ.get(_QUEUES, "")
    return not text.isdecimal() or int(text) >= _FEWEST


def _on_gpu(modules: Sequence[Module]) -> Any | None:
    """Return the values of a parameter that is on a GPU; None if none is."""
    for module in modules:
        for _, parameter in all_parameters(module):
            values = parameter.data
            if is_on_gpu(values):
                return values
    return None
