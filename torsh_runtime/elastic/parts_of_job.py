"""Holds the parts of a training that recovers without restarts: what a commit changes, what a
step that is repeated must find as it was, and what cannot be recovered."""

from __future__ import annotations

import copy
import functools
import gc
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

from torsh_runtime.arrays.raw import copy_in
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.elastic.batches import Batches
from torsh_runtime.elastic.healing import whole_contents
from torsh_runtime.elastic.options import (
    Buffers,
    Options,
    bytes_of,
    give_options,
    options_of,
)
from torsh_runtime.elastic.sampler import ElasticSampler
from torsh_runtime.elastic.scalers import Stepping, problem_of_scaler
from torsh_runtime.elastic.sharded_models import (
    check_one_kind,
    forgotten,
    is_sharded,
    problem_of_sharded,
    problem_of_stepping,
    sharded_in,
)
from torsh_runtime.elastic.shards import Shards
from torsh_runtime.elastic.torchs import dropping_kept, forgotten_of_torchs, problem_of_torchs
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.models import all_parameters
from torsh_runtime.parallel.agreement import send_from
from torsh_runtime.parallel.ddp.wrapper import DistributedDataParallel
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
    options: list[list[dict[str, Any]]]
    """The options of each optimizer's groups, such as the learning rate."""


class Parts:
    """Holds models, optimizers, and other objects with a state_dict(), by name."""

    def __init__(self, named: Mapping[str, Any], group: ProcessGroup | None) -> None:
        """Sort the parts. Raises ConfigError for one that cannot be recovered, by name."""
        self.named, self._group = dict(named), group
        self.is_sharded = any(is_model(each) and is_sharded(each) for each in named.values())
        for name, part in named.items():
            if problem := _problem(part, group, self.is_sharded):
                raise ConfigError(f"tr.elastic.join() cannot recover {name!r}: {problem}")
        self._models = [each for each in named.values() if is_model(each)]
        self._optimizers = [each for each in named.values() if is_optimizer(each)]
        check_one_kind(self._models)
        left = forgotten(self._models, group)
        if (model := forgotten_of_torchs(self._models) if left is None else left) is not None:
            raise ConfigError(
                f"tr.elastic.join() was not given a {type(model).__name__} that is sharded, and a "
                f"replacement would have no part of it: pass it, too, under a name of its own"
            )
        if not self._optimizers:
            raise ConfigError("tr.elastic.join() needs an optimizer=, which step.commit() calls")
        if len({*map(id, self._optimizers)}) < len(self._optimizers):
            raise ConfigError(
                "tr.elastic.join() was given an optimizer under two names, and step.commit() would "
                "call it twice: pass it once"
            )
        others = (*self._models, *self._optimizers)
        self._others = {n: each for n, each in named.items() if not _is_in(each, others)}
        samplers = [each for each in self._others.values() if isinstance(each, ElasticSampler)]
        self.batches, self._samplers = Batches(samplers), samplers
        self.shards: Shards | None = None
        """What protects parts of which each rank has a share alone; None if there are none."""
        self._sharded = sharded_in(named) if self.is_sharded else {}
        """Models that are sharded, and the optimizers of those, by name."""
        self.alike: Mapping[str, Any] = self.named
        """What all ranks have alike and one gives to another, by name."""
        if self.is_sharded:
            self.alike = {
                **{name: each for name, each in named.items() if name not in self._sharded},
                "the options of the optimizers": Options(self._optimizers),
                "the buffers of the models": Buffers(self._buffers),
            }
        self._drops = [
            *(each.forget_kept for model in self._models for each in shardings_of(model)),
            *(drop for model in self._models for drop in dropping_kept(model)),
        ]
        self._stepping = Stepping(self._optimizers, self._others.values())
        self._kept: _Kept | None = None
        self._modes: list[tuple[Any, bool]] = []
        """The modules of the models, and whether each was in training at the last commit."""
        self._is_stepping = False

    def check_replicas(self, replicas: Callable[[], Iterable[Any]]) -> None:
        """Raise ConfigError if one of them has parameters that a replacement would not get."""
        known = {id(each) for model in self._models for _, each in all_parameters(model)}

        def missing() -> str:
            return next((_kind_of(each) for each in replicas() if not _is_known(each, known)), "")

        if missing():
            gc.collect()  # it may be gone, and only its cycles be left
        if kind := missing():
            raise ConfigError(
                f"tr.elastic.join() was not given the DistributedDataParallel of a {kind}, and a "
                f"replacement would not have its values: pass it, too, under a name of its own"
            )

    def protect(self) -> None:
        """Protect the parts that are sharded, if any are, from the loss of a worker."""
        if self.is_sharded and self._group is not None and self._group.world_size > 1:
            models = {name: each for name, each in self._sharded.items() if is_model(each)}
            optimizers = {n: each for n, each in self._sharded.items() if is_optimizer(each)}
            self.shards = Shards(models, optimizers, self._group)

    def begin(self) -> int:
        """Protect the state with which all ranks begin, and return the number of the next step.
        All ranks call it. Sharded parts, and all others with them, take the newest state in the
        nodes' memories, if all workers were started again."""
        return 0 if self.shards is None else self.shards.begin(self.alike, self.step)

    def protect_alike(self, number: int) -> None:
        """Protect what all ranks have alike before step `number`, beside sharded parts."""
        if self.shards is not None:
            ranks = Ranks(self._group)
            self.shards.keep_alike(number, lambda: whole_contents(self.alike, ranks))

    def begin_to_protect(self, number: int) -> None:
        """Begin to protect the state before step `number`, which is the present one."""
        if self.shards is not None:
            self.shards.begin_to_keep(number)

    def prepare_commit(self, number: int) -> None:
        """Have everything protected that this step needs to be committed."""
        self._stepping.check()
        if self.shards is not None:
            self.shards.prepare_commit(number)

    @property
    def is_fixed(self) -> bool:
        """Return whether the state is divided among as many ranks as there are."""
        return self.shards is not None and not self.shards.can_be_cut_anew

    def restore_shards(self, number: int, is_whole: bool) -> None:
        """Let ranks that lack the state of sharded parts before step `number` have it. All ranks
        call it. is_whole: whether this one has had it."""
        if self.shards is None:
            return
        buffers = [bytes_of(each) for each in self._buffers()]
        options = [options_of(each) for each in self._optimizers]
        self.shards.restore(number, is_whole, self.step)
        if is_whole:  # memory has those of within a pass, and of before schedules changed them
            self._give_back(buffers, options)

    def agree_on_buffers(self) -> None:
        """Give all ranks rank 0's buffers, as DistributedDataParallel does before a pass."""
        buffers = [*self._buffers()]
        if buffers and self._group is not None and self._group.world_size > 1:
            send_from(0, buffers, self._group)

    def step(self) -> None:
        """Call the optimizers, and drop the gradients."""
        self._modes = _modes_of(self._models)
        self._is_stepping = True
        try:
            self._stepping.step()
        finally:
            self._is_stepping = False
        self.drop_gradients()

    def guard(self) -> None:
        """Have the optimizers refuse to change parameters in a step that may be repeated."""
        for optimizer in self._optimizers:
            _guard(optimizer, lambda: self._kept is not None and not self._is_stepping)

    def keep(self) -> None:
        """Remember what a step changes before its commit."""
        self._modes = _modes_of(self._models)
        self._kept = _Kept(
            {name: copy.deepcopy(each.state_dict()) for name, each in self._others.items()},
            [bytes_of(each) for each in self._buffers()],
            [options_of(each) for each in self._optimizers],
        )

    def states(self) -> Mapping[str, Any]:
        """Return the states of parts that are neither models nor optimizers, by name, as the
        present step has begun, or as they are between steps."""
        if self._kept is not None:
            return self._kept.states
        return {name: each.state_dict() for name, each in self._others.items()}

    def digest(self, *, with_states: bool) -> int:
        """Return a checksum of the options that the optimizers are about to use.

        with_states: whether the states with which the present step's other parts have begun count.
        """
        assert self._kept is not None
        states = self._kept.states if with_states else {}
        told = described((states, [options_of(each) for each in self._optimizers]))
        return xxh3_64_intdigest(told.encode()) >> 1

    def forget(self) -> None:
        """Forget what was remembered: the state is to stay as it is."""
        self._kept = None

    def go_back(self) -> None:
        """Restore what was remembered, for a step that is to be repeated, and the models' modes
        in any case, as an evaluation behind a commit may have been lost."""
        for module, mode in self._modes:
            if module.training is not mode:
                module.training = mode
        if self._kept is None:
            return
        for name, state in self._kept.states.items():
            self._others[name].load_state_dict(copy.deepcopy(state))
        self._give_back(self._kept.buffers, self._kept.options)

    def _give_back(self, buffers: Sequence[Any], options: Sequence[Any]) -> None:
        for buffer, kept in zip(self._buffers(), buffers, strict=True):
            copy_in(buffer, kept)
        for optimizer, given in zip(self._optimizers, options, strict=True):
            give_options(optimizer, given)

    def drop_progress(self) -> None:
        """Drop the gradients and the batches of a step that is to be repeated."""
        self.batches.go_back()
        self._stepping.begin_anew()
        self.drop_gradients()

    def begin_anew(self) -> None:
        """Drop a step that is to be repeated, of a group that is being configured anew."""
        self.drop_progress()
        for model in () if self._group is None else [*self._group.wrappers]:
            model.begin_anew()

    def divide_anew(self, former: tuple[int, int]) -> None:
        """Divide batches by the group's present rank and number of ranks, instead of these."""
        group = self._group
        assert group is not None
        for sampler in self._samplers:
            if (sampler.rank, sampler.num_replicas) == former:
                sampler.rank, sampler.num_replicas = group.rank, group.world_size

    def share_anew(self) -> None:
        """Share memory of sharded models with the other ranks, whose group is configured anew."""
        if self.shards is not None:
            self.shards.begin_anew()

    def drop_gradients(self) -> None:
        """Drop all gradients, also those that were to be averaged in a later pass, which no
        replacement would have."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        for drop in self._drops:
            drop()

    def _buffers(self) -> Iterator[Any]:
        for model in self._models:
            yield from (buffer for _, buffer in model.named_buffers())


def _is_known(replica: Any, known: Set[int]) -> bool:
    return all(id(each) in known for _, each in all_parameters(replica))


def _kind_of(replica: Any) -> str:
    return type(replica.module).__name__


def _modes_of(models: Iterable[Any]) -> list[tuple[Any, bool]]:
    return [(each, each.training) for model in models for each in model.modules()]


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
                f"calls it, once all ranks have come so far: leave it out, and give join() the "
                f"GradScaler, by which commit() calls it then, if there is one"
            )
        return own(*arguments, **named)

    # Bound, since torch's learning rate schedules look for the function in it.
    optimizer.step = types.MethodType(step, optimizer)


def _problem(part: Any, group: ProcessGroup | None, is_sharded: bool) -> str:
    """Return why a part cannot be recovered, and what to do; "" if it can."""
    kind = type(part).__name__
    if isinstance(part, PerRank):
        return "what only one rank has is lost with it: leave it out, or derive it from the step"
    if is_loader(part):
        return f"{kind} has a state of each rank: give join() an ElasticSampler"
    if not is_model(part) and not is_optimizer(part):
        return _problem_of_other(part, kind, is_sharded)
    if problem := problem_of_torchs(part, group):
        return f"{problem}, {_INSTEAD}"
    if is_optimizer(part):
        if isinstance(part, DistributedOptimizer):
            return f"each rank has a part of its state: pass an ordinary optimizer, {_INSTEAD}"
        problem = problem_of_stepping(part) if is_sharded else ""
        return f"{problem}: use such a one, {_INSTEAD}" if problem else ""
    if shardings_of(part):
        problem = problem_of_sharded(part, group)
        return f"{problem}, {_INSTEAD}" if problem else ""
    if isinstance(part, DistributedDataParallel):
        return _problem_of_ddp(part, group)
    return ""


def _problem_of_other(part: Any, kind: str, is_sharded: bool) -> str:
    if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
        return f"{kind} has no state_dict(): the number of the step is step.number"
    problem = problem_of_scaler(part, is_sharded)
    return f"{problem}, {_INSTEAD}" if problem else ""


def _problem_of_ddp(model: DistributedDataParallel, group: ProcessGroup | None) -> str:
    if model.process_group is not group:
        return f"its group is not the default one: leave process_group out, {_INSTEAD}"
    if model.has_hook:
        return f"its gradients are compressed, or averaged by a hook: leave that out, {_INSTEAD}"
    return ""


def _is_in(part: object, others: tuple[object, ...]) -> bool:
    return any(part is each for each in others)
