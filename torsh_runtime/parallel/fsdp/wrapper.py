"""Wraps a model: FullyShardedDataParallel, and what users call of it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

from torsh_runtime.comm.agreement import Attempt, agree_in_turn
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, framework_of, framework_of_model
from torsh_runtime.framework.models import cast_buffers, replace_module
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.agreement import SAME_MODEL
from torsh_runtime.parallel.fsdp.accounting import MemoryAccounting, MemoryStats
from torsh_runtime.parallel.fsdp.config import AutoWrapPolicy, FsdpConfig, known_fields
from torsh_runtime.parallel.fsdp.fsdp_init import (
    NoCopies,
    UnitMaker,
    change_forward,
    check_no_mesh,
    groups_of,
    guard,
)
from torsh_runtime.parallel.fsdp.fsdp_state import FSDPState, TrainingState
from torsh_runtime.parallel.layouts import OF_ONE_MODULE, layouts_by_id, part_of
from torsh_runtime.parallel.norms import norm_of, power_sum, together
from torsh_runtime.parallel.replicas import Replicas


class FullyShardedDataParallel(NoCopies):
    """Wraps a model so that each rank keeps a part of it, after torch's class of this name.

    See Zhao et al., PyTorch FSDP, VLDB 2023. It is a module of the model's framework itself.

    Outside of forward and backward passes each parameter holds this rank's rows of it along the
    first dimension, maybe none, and so does its gradient, the average over ranks. If an optimizer
    of torch does not compute elementwise, its first step gives each of its parameters to one rank
    as a whole. All ranks make the same calls in the same order.

    Example:
        ```python
        model = tr.FullyShardedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters())  # after the model is wrapped
        loss(model(batch)).backward()
        optimizer.step()
        ```
    """

    module: Any
    """The model itself."""
    _passes: FSDPState
    _ledger: MemoryAccounting

    def __new__(cls, module: Any, *arguments: Any, **named: Any) -> FullyShardedDataParallel:
        if cls is FullyShardedDataParallel:
            cls = _class_around(framework_of_model(module).module_type)
        return super().__new__(cls)

    def __init__(
        self,
        module: Any,
        *,
        config: FsdpConfig | None = None,
        process_group: Any = None,
        **fields: Any,
    ) -> None:
        """Wrap the model, and give all ranks rank 0's values.

        All ranks of the group call it with the same model at the same time. A module in it that is
        a FullyShardedDataParallel already, of the same ranks, is replaced by the module in that,
        whose units stay as they are.

        Args:
            module: The model, of torch or torsh_runtime.nn.
            config: How it is sharded.
            process_group: The ranks; None is the default group, or torch's if only torch has one.
                Of a model with layouts (parallel/layouts.py) the mesh's axes along which batches
                differ, as mesh["dp", "cp"]: what is sharded along others, as experts are, is
                sharded further over those of these ranks that have the same. For the strategy
                "hybrid" two groups: the ranks over which it is sharded, and the ranks that
                replicate this rank's part; or a DeviceMesh of two axes, replicas first; None shards
                in each node.
            **fields: Further fields of FsdpConfig.

        Raises:
            ConfigError: On all ranks if models or options differ, for a model without parameters or
                one on the meta device that cannot be initialised, or of which they have different
                parts, and for wrong fields.
            CommError: As ProcessGroup. Forward and backward passes raise it, too.
        """
        super().__init__()
        self.module = module
        self._framework = framework_of(module)
        self._config = replace(config or FsdpConfig(), **known_fields(fields))
        over, copies = groups_of(process_group, self._config.sharding_strategy)
        self._over = Replicas(module, over)
        self._group = self._over.group
        self._copies = None if copies is None else Replicas(module, copies)
        self._ledger = MemoryAccounting()
        inner: dict[str, FullyShardedDataParallel] = {}
        with Attempt() as attempt:
            inner = _taken_out(module)
        there = [unit for each in inner.values() for unit in each._passes.units]
        sharded = {id(parameter) for unit in there for parameter in unit.parameters}
        maker = UnitMaker(module, self._config, self._over, self._copies, self._ledger)
        self._begin_alike(inner, sharded, attempt, maker)
        units = maker.units(sharded)
        if self._config.mixed_precision.buffer_dtype is not None:
            cast_buffers(module, self._config.mixed_precision.buffer_dtype)
        self._passes = FSDPState(module, self._group, self._config, units, self._copies)
        for path, wrapper in inner.items():
            self._adopt(path, wrapper)
        change_forward(self._framework, self._config, units)
        guard(module, self._passes)
        self._framework.let_go_of_freed()  # the whole model, which would stay otherwise

    if not TYPE_CHECKING:  # a checker would take any name

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of the model that the wrapper lacks, such as `config` and
            `generate()`."""
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name == "module" or name in OF_ONE_MODULE or name.startswith("__"):
                    raise
                return getattr(self.module, name)

    @property
    def process_group(self) -> ProcessGroup:
        """Return the group that the model is sharded over.

        Parameters that fewer ranks have are sharded over those.
        """
        return self._group

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the model, and return its outputs.

        Args:
            *inputs: The model's arguments.
            **named: The model's arguments by name.

        Raises:
            CommError: If parameters are gathered and that fails.
        """
        return self.module(*inputs, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate whole gradients of backward passes in this block on each rank.

        They are averaged in the first backward pass outside of the block.

        Example:
            ```python
            with model.no_sync():
                loss(model(first)).backward()
            loss(model(second)).backward()
            ```
        """
        before, self._passes.is_averaging = self._passes.is_averaging, False
        try:
            yield
        finally:
            self._passes.is_averaging = before

    def unshard(self) -> None:
        """Make all parameters whole until reshard() or reduce_gradients().

        Backward passes accumulate whole gradients in them, also those of weights that a pipeline's
        schedule computes later. All ranks call it.

        Raises:
            CommError: If parameters are gathered and that fails.

        Example:
            ```python
            model.unshard()
            for batch in batches:
                loss(model(batch)).backward()
            model.reduce_gradients()
            ```
        """
        self._passes.hold()

    def reshard(self) -> None:
        """Reduce each rank to its part again, and keep the new gradients as no_sync() does.

        All ranks call it.
        """
        self._passes.let_go()

    def reduce_gradients(self) -> None:
        """Average the gradients accumulated under no_sync() or since unshard(), and keep this
        rank's part.

        All ranks call it. Within no_sync() it leaves them for later.

        Raises:
            CommError: If the exchange among the ranks fails.

        Example:
            ```python
            with model.no_sync():
                for batch in batches:
                    loss(model(batch)).backward()
            model.reduce_gradients()
            optimizer.step()
            ```
        """
        self._passes.reduce()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Call the model's zero_grad(), and drop what no_sync() has kept.

        An optimizer's zero_grad() does not do the latter.

        Args:
            set_to_none: Whether to remove gradients instead of filling them with zeros.

        Example:
            ```python
            optimizer.step()
            model.zero_grad()
            ```
        """
        for unit in self._passes.units:
            unit.forget_kept()
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def memory_stats(self) -> MemoryStats:
        """Return the memory that the parameters take on this rank, in bytes.

        Example:
            ```python
            print(f"{model.memory_stats().peak / 2**20:.0f} MiB at most")
            ```
        """
        laid = [each for unit in self._passes.units for each in unit.laid]
        sizes = [(f, self._framework.dtype(f.precision.own).itemsize) for f, _ in laid]
        own = sum(flat.own_size * size for flat, size in sizes)
        whole = sum(flat.size * size for flat, size in sizes)
        book = self._ledger
        return MemoryStats(own, book.current, book.peak, whole - own, book.gathers, book.scatters)

    def local_sharding_ratio(self) -> float:
        """Return this rank's share of all parameters, from 0 to 1.

        Example:
            ```python
            model.local_sharding_ratio()  # about 0.25 with four ranks
            ```
        """
        laid = [flat for unit in self._passes.units for flat, _ in unit.laid]
        return sum(flat.own_size for flat in laid) / sum(flat.size for flat in laid)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scale all gradients so that their norm is at most `max_norm`, and return what it was.

        The norm is that of the gradients as one vector over all ranks. All ranks call it.

        Args:
            max_norm: The largest norm that gradients keep.
            norm_type: The exponent p of the norm; inf is the largest absolute value.

        Raises:
            ConfigError: For a model that is sharded over a mesh as well, of which
                tr.clip_grad_norm_(model, max_norm, mesh) knows the norm.
            CommError: If the exchange among the ranks fails.

        Example:
            ```python
            loss(model(batch)).backward()
            norm = model.clip_grad_norm_(1.0)
            optimizer.step()
            ```
        """
        check_no_mesh(self.module)
        units = self._passes.units
        sharded = [each for unit in units if not unit.is_replicated for each in unit.gradients()]
        replicated = [each for unit in units if unit.is_replicated for each in unit.gradients()]
        own = [power_sum(each, norm_type) for each in (sharded, replicated)]
        total = norm_of([*together(self._group, own[:1], norm_type), own[1]], norm_type)
        if total > max_norm:
            for gradient in [*sharded, *replicated]:
                values = gradient.data
                values *= max_norm / (total + 1e-6)
        return total

    @contextmanager
    def summon_full_params(self, writeback: bool = True) -> Iterator[None]:
        """Make all parameters whole in this block, which all ranks enter.

        The model must not be called there. A block within a different one changes nothing.

        Args:
            writeback: Whether changes made there are kept, those of each rank's own part by that
                rank.

        Raises:
            ConfigError: After unshard().

        Example:
            ```python
            with model.summon_full_params(writeback=False):
                whole = model.module.weight.shape
            ```
        """
        passes, units = self._passes, self._passes.units
        if passes.training_state is TrainingState.SUMMON_FULL_PARAMS:
            yield
            return
        if passes.training_state is TrainingState.HELD:
            raise ConfigError("parameters are whole since unshard(): call reshard() first")
        passes.rest()
        passes.meet()
        for unit in units:
            unit.summon()
        passes.meet()
        passes.training_state = TrainingState.SUMMON_FULL_PARAMS
        try:
            yield
        finally:
            passes.training_state = TrainingState.FORWARD_BACKWARD
            for unit in units:
                unit.dismiss(writeback)
            passes.meet()

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Return the model's state_dict(), with copies of whole parameters. All ranks call it.

        Args:
            *arguments: As the model's state_dict().
            **named: As the model's state_dict().

        Raises:
            ConfigError: After unshard().
            CommError: If parameters are gathered and that fails.

        Example:
            ```python
            state = model.state_dict()
            if tr.get_rank() == 0:
                torch.save(state, "model.pt")
            ```
        """
        with self.summon_full_params(writeback=False):
            return self.module.state_dict(*arguments, **named)

    def load_state_dict(self, state_dict: Any, *arguments: Any, **named: Any) -> Any:
        """Load what state_dict() returned, or what that of the unwrapped model did.

        All ranks call it.

        Args:
            state_dict: The state.
            *arguments: As the model's load_state_dict().
            **named: As the model's load_state_dict().

        Raises:
            ConfigError: For assign=True, which would leave nothing that is sharded, and after
                unshard().
            CommError: If parameters are gathered and that fails.

        Example:
            ```python
            model.load_state_dict(torch.load("model.pt", weights_only=True))
            ```
        """
        if named.get("assign") or (len(arguments) > 1 and arguments[1]):
            raise ConfigError(
                "load_state_dict(assign=True) would put whole parameters in the place of those "
                "that are sharded: leave it out, so that values are copied, or load before the "
                "model is wrapped"
            )
        with self.summon_full_params():
            return self.module.load_state_dict(state_dict, *arguments, **named)

    def sharded_state_dict(self, mesh: DeviceMesh | None = None) -> dict[str, Any]:
        """Return all parameters as ShardedTensor, without copies of the values, and buffers
        unchanged.

        They have the model's names.

        Args:
            mesh: The mesh of the model's layouts, if it has any.

        Raises:
            ConfigError: If the layouts do not fit the mesh.
        """
        pieces, layouts = self.pieces(), layouts_by_id(self.module)

        def piece(name: str, key: int) -> Piece:
            whole = layouts.get(key)
            return pieces[key] if whole is None else part_of(name, whole, mesh, pieces[key])

        named = {
            name: ShardedTensor(parameter.data, piece(name, id(parameter)))
            for unit in self._passes.units
            for flat, _ in unit.laid
            for name, parameter in zip(flat.names, flat.parameters, strict=True)
        }
        return {**named, **dict(self.module.named_buffers())}

    def pieces(self) -> dict[int, Piece]:
        """Return the piece that this rank has of each parameter, by the parameter's id()."""
        return {
            id(parameter): flat.piece(number)
            for unit in self._passes.units
            for flat, _ in unit.laid
            for number, parameter in enumerate(flat.parameters)
        }

    def sharded(self) -> dict[int, ProcessGroup]:
        """Return the ranks that have different parts of each parameter that is cut, by its id()."""
        units = [unit for unit in self._passes.units if not unit.is_replicated]
        laid = [each for unit in units for each in unit.laid]
        return {id(each): memory.group for flat, memory in laid for each in flat.parameters}

    def _begin_alike(
        self,
        inner: dict[str, FullyShardedDataParallel],
        sharded: set[int],
        attempt: Attempt,
        maker: UnitMaker,
    ) -> None:
        options = {**self._config.agreed(), "sharded already": ", ".join(sorted(inner))}
        if attempt.error is None:
            with attempt:
                others = {path: tuple(wrapper._group.ranks) for path, wrapper in inner.items()}
                maker.check(others, sharded)
        told = {
            ranks.group: {**options, **ranks.told(with_all=True, without=sharded)}
            for ranks in (self._copies, self._over)
            if ranks is not None
        }
        agree_in_turn(told, "FullyShardedDataParallel", attempt.error, SAME_MODEL)

    def _adopt(self, path: str, wrapper: FullyShardedDataParallel) -> None:
        """Take over the units of a wrapper that was around the module of this name."""
        self._ledger.absorb(wrapper._ledger)
        for unit in wrapper._passes.units:
            unit.be_within(path, self._ledger)
        self._passes.adopt(wrapper._passes)
        wrapper._passes, wrapper._ledger = self._passes, self._ledger


def _taken_out(model: Module) -> dict[str, FullyShardedDataParallel]:
    """Replace wrappers within the model by their modules. Return the wrappers by their paths."""
    named: Iterator[tuple[str, Any]] = model.named_modules()
    found = {n: m for n, m in named if isinstance(m, FullyShardedDataParallel)}
    if "" in found:
        raise ConfigError("the model is a FullyShardedDataParallel already: wrap its .module")
    for wrapper in found.values():
        replace_module(model, wrapper, wrapper.module)
    return found


@cache
def _class_around(module_class: type) -> type[FullyShardedDataParallel]:
    name = FullyShardedDataParallel.__name__
    return type(name, (FullyShardedDataParallel, module_class), {"__module__": __name__})


def wrappers_of(model: Any) -> list[FullyShardedDataParallel]:
    """Return the wrappers among a model's modules, and those around some of its modules: a
    module such as a pipeline's, which is without wrappers, lists them in `parallel_wrappers`."""
    modules = [module for _, module in model.named_modules()]
    around = [each for module in modules for each in getattr(module, "parallel_wrappers", ())]
    return [each for each in (*modules, *around) if isinstance(each, FullyShardedDataParallel)]


def fsdp_wrap(module: Any, process_group: Any = None, config: FsdpConfig | None = None) -> Any:
    """Return FullyShardedDataParallel(module, config=config, process_group=process_group).

    Args:
        module: The model.
        process_group: The ranks, as FullyShardedDataParallel takes them.
        config: How it is sharded.

    Raises:
        ConfigError: As FullyShardedDataParallel.
        CommError: As FullyShardedDataParallel.

    Example:
        ```python
        model = tr.fsdp_wrap(model, config=tr.FsdpConfig(cpu_offload=True))
        ```
    """
    return FullyShardedDataParallel(module, config=config, process_group=process_group)


def auto_wrap_modules(
    module: Any, process_group: Any = None, auto_wrap_policy: AutoWrapPolicy | None = None
) -> Any:
    """Wrap the model in FullyShardedDataParallel, with units by a policy.

    Args:
        module: The model.
        process_group: The ranks, as FullyShardedDataParallel takes them.
        auto_wrap_policy: The policy; None is by size.

    Returns:
        The wrapped model.

    Raises:
        ConfigError: As FullyShardedDataParallel.
        CommError: As FullyShardedDataParallel.

    Example:
        ```python
        model = tr.auto_wrap_modules(model, auto_wrap_policy=tr.NoAutoWrap())
        ```
    """
    config = FsdpConfig()
    if auto_wrap_policy is not None:
        config = replace(config, auto_wrap_policy=auto_wrap_policy)
    return fsdp_wrap(module, process_group, config)


def register_fsdp_forward_method(model: FullyShardedDataParallel, method_name: str) -> None:
    """Let a method of the model's module compute with whole parameters, as its forward() does.

    It is like torch's function of this name. All ranks call the method alike. A method that calls
    the module itself, as generate() of transformers, or modules of it that are units, needs it only
    where it uses other parameters as well.

    Args:
        model: The sharded model.
        method_name: The method's name.

    Raises:
        ConfigError: If `model` is no FullyShardedDataParallel, or has no such method.

    Example:
        ```python
        tr.register_fsdp_forward_method(model, "encode")
        loss(model.encode(batch)).backward()
        ```
    """
    if not isinstance(model, FullyShardedDataParallel):
        raise ConfigError(
            f"a {type(model).__name__} is no FullyShardedDataParallel: register methods of the "
            f"wrapper's model, after it is wrapped"
        )
    method = getattr(model.module, method_name, None)
    if not callable(method):
        raise ConfigError(f"a {type(model.module).__name__} has no method {method_name!r}")
    here = weakref.ref(model)  # which its own module would keep alive

    @wraps(method)
    def call(*inputs: Any, **named: Any) -> Any:
        """Call the method as a forward pass of the wrapper's model, if the wrapper still exists."""
        wrapper = here()
        if wrapper is None:
            return method(*inputs, **named)
        with wrapper._passes.within_method() as end:
            outputs = method(*inputs, **named)
            end(outputs)
        return outputs

    setattr(model.module, method_name, call)
