"""Shards one model, for FullyShardedDataParallel and fully_shard() alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from torsh_runtime.comm.agreement import Attempt, agree_in_turn
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, framework_of
from torsh_runtime.framework.models import cast_buffers, kind_of, replace_module
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.agreement import SAME_MODEL
from torsh_runtime.parallel.fsdp.accounting import MemoryAccounting, MemoryStats
from torsh_runtime.parallel.fsdp.awaiting import Awaiting
from torsh_runtime.parallel.fsdp.config import FsdpConfig
from torsh_runtime.parallel.fsdp.fsdp_init import (
    UnitMaker,
    change_forward,
    check_no_mesh,
    groups_of,
)
from torsh_runtime.parallel.fsdp.fsdp_param_group import FSDPParamGroup
from torsh_runtime.parallel.fsdp.fsdp_state import FSDPState
from torsh_runtime.parallel.fsdp.guard import NoCopies, guard
from torsh_runtime.parallel.fsdp.record import called_by_all
from torsh_runtime.parallel.fsdp.training_state import TrainingState
from torsh_runtime.parallel.fsdp.wrapping import is_within
from torsh_runtime.parallel.layouts import layouts_by_id, part_of
from torsh_runtime.parallel.norms import norm_of, power_sums, scale, together
from torsh_runtime.parallel.replicas import Replicas

_LIVE: WeakSet[Sharding] = WeakSet()


class Sharding:
    """Shards a model over ranks, and has what its wrapper or its own methods do with it.

    Attributes: model, config, group (the ranks that it is sharded over), units (its own, and those
    of modules in it that were sharded before), passes (of its own units).
    """

    def __init__(
        self,
        model: Module,
        config: FsdpConfig,
        process_group: Any,
        asked_by: str,
        ignored: Set[int] = frozenset(),
        reshards: bool | int | None = None,
    ) -> None:
        """Shard the model, and give all ranks rank 0's values.

        asked_by: the name of the class or function, for errors. ignored: id() of parameters that
        stay as they are. reshards: fully_shard()'s reshard_after_forward. Raises ConfigError on all
        ranks if they call it differently.
        """
        self.model, self.config, self._framework = model, config, framework_of(model)
        over, copies = groups_of(process_group, config.sharding_strategy)
        self._over = Replicas(model, over)
        self.group = self._over.group
        self._copies = None if copies is None else Replicas(model, copies)
        self._ledger = MemoryAccounting()
        inner: dict[str, Sharding] = {}
        with Attempt() as attempt:
            inner = _taken_out(model)
            _check_not_within_any(model, inner)
            reshards = reshards_of(reshards, self.group.world_size)
        there = [unit for each in inner.values() for unit in each.units]
        sharded = {id(parameter) for unit in there for parameter in unit.parameters}
        maker = UnitMaker(model, config, self._over, self._copies, self._ledger)
        options = {**config.agreed(), "reshard_after_forward": reshards}
        self._begin_alike(asked_by, options, inner, sharded, ignored, attempt, maker)
        units = maker.units(sharded | ignored)
        for unit in units if reshards is not None else ():
            unit.options.reshard_after_forward = reshards
        if config.mixed_precision.buffer_dtype is not None:
            cast_buffers(model, config.mixed_precision.buffer_dtype)
        self.passes: FSDPState = FSDPState(model, self.group, config, units, self._copies)
        self.own_units = units
        for path, each in inner.items():
            self._adopt(path, each)
        change_forward(self._framework, config, units)
        guard(model, self.passes, self._copies, asked_by)
        self._send = maker.send
        self._framework.let_go_of_freed()  # the whole model, which would stay otherwise
        _LIVE.add(self)

    @property
    def outermost(self) -> FSDPState:
        """Return the passes of the largest model that this one is in."""
        return self.passes.outermost()

    @property
    def copies(self) -> Replicas | None:
        """Return the ranks that have the same parts; None if no others have."""
        return self._copies

    @property
    def units(self) -> list[FSDPParamGroup]:
        """Return the units of the model, its own first."""
        return self.passes.units

    def await_values(self) -> None:
        """Let the program give values to what was on the meta device, after this."""
        self.passes.awaiting.add(Awaiting(self._framework, self.own_units, self._send))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep whole gradients of backward passes in this block on each rank."""
        passes = self.outermost
        before, passes.is_averaging = passes.is_averaging, False
        try:
            yield
        finally:
            passes.is_averaging = before

    def forget_kept(self) -> None:
        """Drop gradients that were to be averaged later, and free those that are gone."""
        for unit in self.units:
            unit.forget_kept()
            unit.drop_gradients()

    def memory_stats(self) -> MemoryStats:
        """Return the memory that the parameters take on this rank, in bytes."""
        laid = [each for unit in self.units for each in unit.laid]
        sizes = [(f, self._framework.dtype(f.precision.own).itemsize) for f, _ in laid]
        own = sum(flat.own_size * size for flat, size in sizes)
        whole = sum(sum(flat.sizes) * size for flat, size in sizes)
        book = self._ledger
        return MemoryStats(own, book.current, book.peak, whole - own, book.gathers, book.scatters)

    def local_sharding_ratio(self) -> float:
        """Return this rank's share of all parameters, from 0 to 1."""
        laid = [flat for unit in self.units for flat, _ in unit.laid]
        return sum(flat.own_size for flat in laid) / sum(flat.size for flat in laid)

    def clip_grad_norm_(self, max_norm: float, norm_type: float) -> float:
        """Scale all gradients so that their norm is at most `max_norm`, and return what it was."""
        check_no_mesh(self.model)
        units = self.units
        sharded = [each for unit in units if not unit.is_replicated for each in unit.gradients()]
        replicated = [each for unit in units if unit.is_replicated for each in unit.gradients()]
        own = power_sums([sharded, replicated], norm_type)
        total = norm_of([*together(self.group, own[:1], norm_type), own[1]], norm_type)
        if total > max_norm:
            scale([*sharded, *replicated], max_norm / (total + 1e-6))
        return total

    @contextmanager
    def summon_full_params(
        self, writeback: bool, what: str = "summon_full_params()"
    ) -> Iterator[None]:
        """Make all parameters whole in this block. Within another such block it does nothing.
        what: the call that needs them."""
        passes = self.outermost
        if passes.training_state is TrainingState.SUMMON_FULL_PARAMS:
            yield
            return
        if passes.training_state is TrainingState.HELD:
            raise ConfigError("parameters are whole since unshard(): call reshard() first")
        passes.awaiting.end()
        passes.rest()
        with called_by_all(self.group, what):
            passes.meet()
            for unit in passes.units:
                unit.summon()
            passes.meet()
        passes.training_state = TrainingState.SUMMON_FULL_PARAMS
        try:
            yield
        finally:
            passes.training_state = TrainingState.FORWARD_BACKWARD
            for unit in passes.units:
                unit.dismiss(writeback)
            passes.meet()

    def unshard(self, waits: bool) -> None:
        """Make the unit of this very model whole until a pass has used it, or reshard()."""
        passes, (unit, *_) = self.outermost, self.own_units
        if not (passes.is_in_pass or unit.is_whole):
            if waits and unit.gradients():
                raise ConfigError(
                    "unshard() would hide gradients from the optimizer, whose zero_grad() would "
                    "leave them to be added to the next ones: call zero_grad(), which must set "
                    "them to None, before unshard(), or unshard(async_op=True), without wait(), to "
                    "gather ahead"
                )
            passes.awaiting.end()
            unit.reshard()
            unit.publish()
            passes.meet()
        unit.unshard() if waits else unit.begin_unshard()

    def reshard(self) -> None:
        """Free what is not this rank's of the unit of this very model."""
        unit = self.own_units[0]
        if unit.is_whole:
            unit.keep()
        unit.reshard()
        self.outermost.meet()

    @contextmanager
    def loading(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Iterator[None]:
        """Make all parameters whole in this block, where load_state_dict() is called with these
        arguments after the state. Raises ConfigError for assign=True."""
        if named.get("assign") or (len(arguments) > 1 and arguments[1]):
            raise ConfigError(
                "load_state_dict(assign=True) would put whole parameters in the place of those "
                "that are sharded: leave it out, so that values are copied, or load before the "
                "model is wrapped"
            )
        self.outermost.awaiting.note_values()
        with self.summon_full_params(writeback=True, what="load_state_dict()"):
            yield

    def sharded_state_dict(self, mesh: DeviceMesh | None) -> dict[str, Any]:
        """Return all parameters as ShardedTensor, and buffers unchanged."""
        pieces, layouts = self.pieces(), layouts_by_id(self.model)

        def piece(name: str, key: int) -> Piece:
            whole = layouts.get(key)
            return pieces[key] if whole is None else part_of(name, whole, mesh, pieces[key])

        named = {
            name: ShardedTensor(parameter.data, piece(name, id(parameter)))
            for unit in self.units
            for flat, _ in unit.laid
            for name, parameter in zip(flat.names, flat.parameters, strict=True)
        }
        return {**named, **dict(self.model.named_buffers())}

    def pieces(self) -> dict[int, Piece]:
        """Return the piece that this rank has of each parameter, by the parameter's id()."""
        self.outermost.awaiting.end()
        return {
            id(parameter): flat.piece(number)
            for unit in self.units
            for flat, _ in unit.laid
            for number, parameter in enumerate(flat.parameters)
        }

    def sharded(self) -> dict[int, ProcessGroup]:
        """Return the ranks that have different parts of each parameter that is cut, by its id()."""
        units = [unit for unit in self.units if not unit.is_replicated]
        laid = [each for unit in units for each in unit.laid]
        return {id(each): memory.group for flat, memory in laid for each in flat.parameters}

    def kept(self, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the same change of tensors, as .to() makes it, without the model's sharded
        parameters. Raises ConfigError if it would change their dtype or device."""
        parameters = [each for unit in self.units for each in unit.parameters]
        for kind in {kind_of(each): each for each in parameters}.values():
            probe = self._framework.empty(0, kind_of(kind)[0], kind)
            after = kind_of(change(probe))
            if after != kind_of(probe):
                raise ConfigError(
                    f"the model is sharded, and its parameters are {' on '.join(kind_of(probe))}, "
                    f"and would become {' on '.join(after)}: move and cast a model, as by "
                    f".to(device, dtype), before it is sharded, give one from the meta device "
                    f"memory by device=, or let it compute in another dtype by mixed precision"
                )
        fixed = {id(each) for each in parameters}
        fixed |= {id(each.grad) for each in parameters if each.grad is not None}
        return lambda tensor: tensor if id(tensor) in fixed else change(tensor)

    def _begin_alike(
        self,
        asked_by: str,
        options: dict[str, object],
        inner: dict[str, Sharding],
        sharded: Set[int],
        ignored: Set[int],
        attempt: Attempt,
        maker: UnitMaker,
    ) -> None:
        options["sharded already"] = ", ".join(sorted(inner))
        if attempt.error is None:
            with attempt:
                others = {path: tuple(each.group.ranks) for path, each in inner.items()}
                maker.check(others, sharded)
        if self.group.is_unmet and attempt.error is None:
            return  # the others are past this: see elastic.join()
        options["devices of parameters"] = maker.told(without=sharded | ignored)
        told = {
            ranks.group: {**options, **ranks.told(with_all=True, without=sharded | ignored)}
            for ranks in (self._copies, self._over)
            if ranks is not None
        }
        agree_in_turn(told, asked_by, attempt.error, SAME_MODEL)

    def _adopt(self, path: str, inner: Sharding) -> None:
        """Take over the units of a module of this name that was sharded before."""
        self._ledger.absorb(inner._ledger)
        for unit in inner.units:
            unit.be_within(path, self._ledger)
        self.passes.adopt(inner.passes)
        inner._ledger = self._ledger


class ShardedModule(NoCopies):
    """Changes what modules of either framework do once they are sharded."""

    _sharding: Sharding

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Call the model's zero_grad(), and drop gradients that were to be averaged later.

        An optimizer's zero_grad() does not do the latter.

        Args:
            set_to_none: Whether to remove gradients instead of filling them with zeros.

        Example:
            ```python
            optimizer.step()
            model.zero_grad()
            ```
        """
        super().zero_grad(set_to_none)  # type: ignore[misc]
        self._sharding.forget_kept()

    def _apply(self, change: Callable[[Any], Any], *arguments: Any, **named: Any) -> Any:
        """Make a change as .to() does, of which torch's methods of that kind consist."""
        changed = self._sharding.kept(change)
        return super()._apply(changed, *arguments, **named)  # type: ignore[misc]


def sharding_of(module: object) -> Sharding | None:
    """Return how a module itself is sharded, or None."""
    found = getattr(module, "__dict__", {}).get("_sharding")
    return found if isinstance(found, Sharding) else None


def shardings_of(model: Any) -> list[Sharding]:
    """Return how a model's modules are sharded, and wrappers around some of its modules: a module
    such as a pipeline's, which is without wrappers, lists them in `parallel_wrappers`."""
    modules = [module for _, module in model.named_modules()]
    around = [each for module in modules for each in getattr(module, "parallel_wrappers", ())]
    return [found for each in (*modules, *around) if (found := sharding_of(each)) is not None]


def shardings_over(group: ProcessGroup) -> list[Sharding]:
    """Return how the models of this process are sharded over the group, wherever they are held."""
    return [each for each in _LIVE if each.group is group]


def reshards_of(given: bool | int | None, ranks: int) -> bool | int | None:
    """Return a reshard_after_forward as True, False, None, or a number between 1 and all ranks."""
    if given is None or isinstance(given, bool):
        return given
    if not isinstance(given, int) or given < 1 or ranks % given:
        raise ConfigError(
            f"reshard_after_forward={given!r} must be True, False, None, or a number that divides "
            f"the {ranks} ranks to shard over"
        )
    return given == ranks if given in (1, ranks) else given


def _taken_out(model: Module) -> dict[str, Sharding]:
    """Replace wrappers within the model by their modules. Return how parts of the model are
    sharded, by their paths, without those that are within others."""
    named: Iterator[tuple[str, Any]] = model.named_modules()
    found = {name: (module, sharding_of(module)) for name, module in named}
    wrappers = {name: (m, sharding) for name, (m, sharding) in found.items() if sharding}
    if "" in wrappers:
        is_wrapper = wrappers[""][1].model is not model
        raise ConfigError(
            "the model is a FullyShardedDataParallel already: wrap its .module"
            if is_wrapper
            else "the model was given to fully_shard() already: call it once for each module"
        )
    for module, sharding in wrappers.values():
        if sharding.model is not module:
            replace_module(model, module, sharding.model)
    return {
        name: sharding
        for name, (_, sharding) in wrappers.items()
        if not any(is_within(name, other) for other in wrappers if other != name)
    }


def _check_not_within_any(model: Module, inner: dict[str, Sharding]) -> None:
    """Raise ConfigError for a module in a model that is sharded already."""
    known = {id(each) for s in inner.values() for unit in s.units for each in unit.parameters}
    own = {id(each): name for name, each in model.named_parameters() if id(each) not in known}
    for sharding in _LIVE:
        for parameter in (each for unit in sharding.own_units for each in unit.parameters):
            if id(parameter) in own:
                raise ConfigError(
                    f"{own[id(parameter)]!r} is sharded already, with a larger module: shard inner "
                    f"modules first, and then the modules around them"
                )
