"""Replaces gloo by torsh for scripts that ask for gloo: TORSH_TORCH_BACKEND=torsh.

Groups that would use gloo on CPUs become torsh groups and keep their names, "gloo" or
"cpu:gloo,cuda:nccl", as libraries compare them. Tensors on accelerators go to the group's backend
for them, and without one to gloo. Such operations are counted and reported when the process ends.
"""

from __future__ import annotations

import atexit
import functools
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torsh_runtime.errors import CommTimeout
from torsh_runtime.integrations.torch.compiling import not_compiled
from torsh_runtime.integrations.torch.configuring import Connect
from torsh_runtime.integrations.torch.creation import create
from torsh_runtime.integrations.torch.group import TorshProcessGroup

c10d: Any = dist.distributed_c10d
_elsewhere: Counter[str] = Counter()
"""Number of operations that went to gloo, by type of device."""


def make(given: Any, options: object) -> StandIn:
    """Create a group like creation.create(). gloo's options are ignored, as torch itself does."""
    if given.group_rank == 0 and not given.global_ranks_in_group:  # the default group's
        _say_at_the_start()
    return create(given, None, StandIn)


@not_compiled
class StandIn(TorshProcessGroup):
    """Represents a torsh group, with other groups for tensors that are not on the CPU."""

    create_device = staticmethod(c10d.ProcessGroupGloo.create_device)
    """gloo's function, for scripts that call it. torsh finds its network interface by itself."""
    accelerated: Any = None
    """torch's own group of the same ranks for accelerators, if the script asked for one."""
    _staged: Any = None

    def _for(self, given: Sequence[Any]) -> Any:
        """Return the group that carries out the operation; None if that is torsh."""
        device = _device(given)
        if device == "cpu":
            return None
        if self.accelerated is not None and device in _types(self.accelerated):
            return self.accelerated
        return self._gloo(device) if device == "cuda" else None

    def _gloo(self, device: str) -> Any:
        """Return gloo over the same store, which stages tensors of GPUs. Made at first use."""
        if self._staged is None:
            store = c10d.PrefixStore("staged/", self.get_group_store())
            limit = self.options._timeout
            gloo = c10d.ProcessGroupGloo(store, self.rank(), self.size(), timeout=limit)
            kind = c10d.ProcessGroup.BackendType.GLOO
            self._staged = c10d.ProcessGroup(store, self.rank(), self.size())
            self._staged._set_default_backend(kind)
            self._staged._register_backend(torch.device("cuda"), kind, gloo)
        if not _elsewhere:
            atexit.register(_say_at_the_end, self.rank())
        _elsewhere[device] += 1
        return self._staged

    def split_group(self, *given: Any, **named: Any) -> TorshProcessGroup | None:
        """Split the torsh group and, if there is one, the group for accelerators."""
        ours = super().split_group(*given, **named)
        if self.accelerated is not None:
            named.pop("device_types", None)  # this group is for its own types only
            theirs = self.accelerated.split_group(*given[:5], **named)
            if isinstance(ours, StandIn):
                ours.accelerated = theirs
        return ours

    @property
    def supports_reconfigure(self) -> bool:  # type: ignore[override]
        """Return whether torch has made no part for accelerators."""
        return self.accelerated is None

    def _check_configurable(self) -> None:
        if self.accelerated is not None:
            raise NotImplementedError(
                "configure() and reconfigure() are for groups of CPU tensors, and this one has a "
                "part for accelerators: make a group of backend 'torsh' for the tensors on CPUs"
            )

    def _change(self, connect: Connect, limit: float, call: str) -> None:
        """Configure the torsh group; gloo's part for accelerators is made again at its next use."""
        super()._change(connect, limit, call)
        staged, self._staged = self._staged, None
        if staged is not None:
            staged.shutdown()

    def abort(self) -> None:
        """End all ranks' operations, on all devices."""
        super().abort()
        for group in self._others():
            group.abort()

    def shutdown(self) -> None:
        """Leave the group, on all devices."""
        super().shutdown()
        for group in self._others():
            group.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of operations that start from now on, on all devices."""
        super().set_timeout(timeout)
        for group in self._others():
            group.set_timeout(timeout)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Do the torsh group's barrier. Its error has gloo's words too, which scripts look for."""
        try:
            super().monitored_barrier(timeout, wait_all_ranks)
        except CommTimeout as error:
            words = _words_of_gloo(self.rank(), error, wait_all_ranks)
            facts = error.op, error.sequence, error.seconds, error.missing
            raise CommTimeout(*facts, f"{error.detail} ({words})") from None

    def _others(self) -> list[Any]:
        return [group for group in (self.accelerated, self._staged) if group is not None]

    @property
    def _device_types(self) -> list[torch.device]:
        own = [torch.device("cpu")]
        return own if self.accelerated is None else [*own, *self.accelerated._device_types]

    def _get_backend(self, device: torch.device) -> Any:
        if self.accelerated is None or torch.device(device).type == "cpu":
            return self
        return self.accelerated._get_backend(device)

    def _start_coalescing(self, device: torch.device) -> None:
        self.accelerated._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        return self.accelerated._end_coalescing(device)


def _by_device(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return torsh's operation, carried out by the group for the tensors' device."""

    @functools.wraps(ours)
    def call(self: StandIn, *given: Any, **named: Any) -> Any:
        other = self._for(given)
        if other is None:
            return ours(self, *given, **named)
        return getattr(other, name)(*given, **named)

    return call


for _name, _method in vars(TorshProcessGroup).items():
    if getattr(_method, "is_operation", False):
        setattr(StandIn, _name, _by_device(_name, _method))
not_compiled(StandIn)


def _device(given: Sequence[Any]) -> str:
    """Return the type of the first tensor's device, or of that which a barrier is for."""
    for argument in given:
        first = argument
        while isinstance(first, list | tuple) and first:
            first = first[0]
        if isinstance(first, torch.Tensor):
            return "cpu" if first.is_cpu else first.device.type
        if isinstance(first, c10d.BarrierOptions) and first.device is not None:
            return str(first.device.type)
    return "cpu"


def _words_of_gloo(rank: int, error: CommTimeout, all_ranks: bool) -> str:
    """Return the text of gloo's monitored barrier.

    Rank 0 names the ranks that did not come, or the first of them.
    """
    if rank:
        return (
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting "
            "for send/recv from rank 0"
        )
    if error.seconds <= 0:
        return "Rank 0 timed out in monitoredBarrier"
    ranks = ", ".join(map(str, error.missing if all_ranks else error.missing[:1]))
    return f"Rank{'s' if all_ranks else ''} {ranks} failed to pass monitoredBarrier"


def _types(group: Any) -> set[str]:
    return {device.type for device in group._device_types}


@functools.cache
def _say_at_the_start() -> None:
    sys.stderr.write(
        "torsh: groups that ask for gloo are torsh's on CPUs (--torch-backend torsh)\n"
    )


def _say_at_the_end(rank: int) -> None:
    if rank == 0:
        said = " and ".join(f"{count} on {device}" for device, count in _elsewhere.items())
        sys.stderr.write(f"torsh: gloo itself did these operations, which torsh can't: {said}\n")
