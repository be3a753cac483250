"""Holds the parts of a training that recovers without restarts: what a commit changes, what a
step that is repeated must find as it was, and what cannot be recovered."""

from __future__ import annotations

import copy
import functools
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

from torsh_runtime.arrays.raw import copy_in, copy_out, dtype_name
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.elastic.batches import Batches
from torsh_runtime.elastic.sampler import ElasticSampler
from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.agreement import send_from
from torsh_runtime.parallel.ddp.wrapper import DistributedDataParallel, wrappers_of
from torsh_runtime.parallel.fsdp.sharding import shardings_of
from torsh_runtime.parallel.optimizer import DistributedOptimizer
from torsh_runtime.parallel.state import PerRank
from torsh_runtime.parallel.state.loaders import is_loader
from torsh_runtime.parallel.state.models import is_model
from torsh_runtime.parallel.state.optimizers import is_optimizer

_INSTEAD = "or use tr.elastic.State, which restarts all workers after a loss"

_ADDRESS = re.compile(" at 0x[0-9a-f]+")


class _Kept(NamedTuple):
    """Holds what a step may change before its commit."""

    states: dict[str, Any]
    """The states of parts that are neither models nor optimizers, by name."""
    buffers: list[np.ndarray[Any, Any]]
    """The bytes of the models' buffers."""
    options: list[dict[str, Any]]
    """The options of the optimizers' groups, such as the learning rate."""


class Parts:
    """Holds models, optimizers, and other objects with a state_dict(), by name."""

    def __init__(self, named: Mapping[str, Any], group: ProcessGroup | None) -> None:
        """Sort the parts. Raises ConfigError for one that cannot be recovered, by name."""
        self.named, self._group = dict(named), group
        for name, part in named.items():
            if problem := _problem(part, group):
                raise ConfigError(f"tr.elastic.join() cannot recover {name!r}: {problem}")
        self._models = [each for each in named.values() if is_model(each)]
        self._optimizers = [each for each in named.values() if is_optimizer(each)]
        if not self._optimizers:
            raise ConfigError("tr.elastic.join() needs an optimizer=, which step.commit() calls")
        others = (*self._models, *self._optimizers)
        self._others = {n: each for n, each in named.items() if not _is_in(each, others)}
        samplers = [each for each in self._others.values() if isinstance(each, ElasticSampler)]
        self.batches = Batches(samplers)
        self._kept: _Kept | None = None
        self._is_stepping = False

    def agree_on_buffers(self) -> None:
        """Give all ranks rank 0's buffers, as DistributedDataParallel does before a pass."""
        buffers = [*self._buffers()]
        if buffers and self._group is not None and self._group.world_size > 1:
            send_from(0, buffers, self._group)

    def step(self) -> None:
        """Call the optimizers, and drop the gradients."""
        self._is_stepping = True
        try:
            for optimizer in self._optimizers:
                optimizer.step()
        finally:
            self._is_stepping = False
        self.drop_gradients()

    def guard(self) -> None:
        """Have the optimizers refuse to change parameters in a step that may be repeated."""
        for optimizer in self._optimizers:
            _guard(optimizer, lambda: self._kept is not None and not self._is_stepping)

    def keep(self) -> None:
        """Remember what a step changes before its commit."""
        self._kept = _Kept(
            {name: copy.deepcopy(each.state_dict()) for name, each in self._others.items()},
            [_bytes_of(each) for each in self._buffers()],
            [copy.deepcopy(_options(group)) for group in self._groups()],
        )

    def states(self) -> Mapping[str, Any]:
        """Return the states of parts that are neither models nor optimizers, by name, as the
        present step has begun, or as they are between steps."""
        if self._kept is not None:
            return self._kept.states
        return {name: each.state_dict() for name, each in self._others.items()}

    def digest(self) -> int:
        """Return a checksum of the present step's states of what a commit does not change."""
        assert self._kept is not None
        told = described((self._kept.states, self._kept.options))
        return xxh3_64_intdigest(told.encode()) >> 1

    def forget(self) -> None:
        """Forget what was remembered: the state is to stay as it is."""
        self._kept = None

    def go_back(self) -> None:
        """Restore what was remembered, for a step that is to be repeated."""
        if self._kept is None:
            return
        for name, state in self._kept.states.items():
            self._others[name].load_state_dict(copy.deepcopy(state))
        for buffer, kept in zip(self._buffers(), self._kept.buffers, strict=True):
            copy_in(buffer, kept)
        for group, options in zip(self._groups(), self._kept.options, strict=True):
            group.update(copy.deepcopy(options))

    def drop_progress(self) -> None:
        """Drop the gradients and the batches of a step that is to be repeated."""
        self.batches.go_back()
        self.drop_gradients()

    def begin_anew(self) -> None:
        """Average gradients anew, over a group that was configured anew."""
        for model in () if self._group is None else wrappers_of(self._group):
            model.begin_anew()

    def drop_gradients(self) -> None:
        """Drop all gradients."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def _groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self._optimizers:
            yield from optimizer.param_groups

    def _buffers(self) -> Iterator[Any]:
        for model in self._models:
            yield from (buffer for _, buffer in model.named_buffers())


def described(state: object) -> str:
    """Return a description of a state that copies and other processes give, too."""
    return _ADDRESS.sub("", repr(state))


def _guard(optimizer: Any, is_refused: Callable[[], bool]) -> None:
    own = optimizer.step

    @functools.wraps(own)
    def step(_: Any, *arguments: Any, **named: Any) -> Any:
        if is_refused():
            raise ConfigError(
                f"{type(optimizer).__name__}.step() was called within a step, and step.commit() "
                f"calls it, once all ranks have come so far: leave it out. A GradScaler is not "
                f"supported: use bfloat16, {_INSTEAD}"
            )
        return own(*arguments, **named)

    # Bound, since torch's learning rate schedules look for the function in it.
    optimizer.step = types.MethodType(step, optimizer)


def _problem(part: Any, group: ProcessGroup | None) -> str:
    """Return why a part cannot be recovered, and what to do; "" if it can."""
    kind = type(part).__name__
    if isinstance(part, PerRank):
        return "what only one rank has is lost with it: leave it out, or derive it from the step"
    if is_loader(part):
        return f"{kind} has a state of each rank: give join() an ElasticSampler"
    if not is_model(part) and not is_optimizer(part):
        return _problem_of_other(part, kind)
    if is_optimizer(part):
        if isinstance(part, DistributedOptimizer):
            return f"each rank has a part of its state: pass an ordinary optimizer, {_INSTEAD}"
        return ""
    if shardings_of(part):
        return f"it is sharded over ranks (FSDP): wrap it in DistributedDataParallel, {_INSTEAD}"
    if _is_torchs(part):
        return f"it is torch's own {kind}: wrap it in tr.DistributedDataParallel, {_INSTEAD}"
    if isinstance(part, DistributedDataParallel):
        return _problem_of_ddp(part, group)
    return ""


def _problem_of_other(part: Any, kind: str) -> str:
    if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
        return f"{kind} has no state_dict(): the number of the step is step.number"
    if kind == "GradScaler" and part.is_enabled():
        return f"commit() does not call the optimizers by a {kind}: use bfloat16, {_INSTEAD}"
    return ""


def _problem_of_ddp(model: DistributedDataParallel, group: ProcessGroup | None) -> str:
    if model.process_group is not group:
        return f"its group is not the default one: leave process_group out, {_INSTEAD}"
    if model.has_hook:
        return f"its gradients are compressed, or averaged by a hook: leave that out, {_INSTEAD}"
    return ""


def _is_torchs(model: Any) -> bool:
    torchs = sys.modules.get("torch.nn.parallel")
    return torchs is not None and isinstance(model, torchs.DistributedDataParallel)


def _is_in(part: object, others: tuple[object, ...]) -> bool:
    return any(part is each for each in others)


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _bytes_of(buffer: Any) -> np.ndarray[Any, Any]:
    size = int(np.prod(tuple(buffer.shape), dtype=np.int64)) * ITEMSIZES[dtype_name(buffer)]
    kept = np.empty(size, np.uint8)
    copy_out(buffer, kept)
    return kept
