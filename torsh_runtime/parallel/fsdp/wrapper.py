"""The wrapper FullyShardedDataParallel for sharded training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

from torsh_runtime.comm.agreement import Attempt, agree_in_turn
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Framework, Module, framework_of, framework_of_model
from torsh_runtime.framework.models import (
    around_forward,
    cast_buffers,
    cast_inputs,
    common_memory,
    kind_of,
    replace_module,
)
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.agreement import SAME_MODEL
from torsh_runtime.parallel.fsdp.checks import check_inner, check_parameters
from torsh_runtime.parallel.fsdp.config import FsdpConfig, ShardingStrategy
from torsh_runtime.parallel.fsdp.flat import FlatParameter
from torsh_runtime.parallel.fsdp.fsdp_param_group import FSDPParamGroup
from torsh_runtime.parallel.fsdp.fsdp_state import FSDPState
from torsh_runtime.parallel.fsdp.groups import groups_of, nodes_of
from torsh_runtime.parallel.fsdp.guards import NoCopies, guard
from torsh_runtime.parallel.fsdp.initial import Initialiser
from torsh_runtime.parallel.fsdp.node_storage import Nodes, NodeStorage
from torsh_runtime.parallel.fsdp.precision import precision_of
from torsh_runtime.parallel.fsdp.stats import MemoryAccounting, MemoryStats
from torsh_runtime.parallel.fsdp.storage import (
    CommonStorage,
    GatheredStorage,
    ReplicatedStorage,
    StorageStrategy,
)
from torsh_runtime.parallel.fsdp.wrapping import Parameters, outermost, units_of
from torsh_runtime.parallel.layouts import OF_ONE_MODULE, layouts_by_id, layouts_of, part_of
from torsh_runtime.parallel.norms import norm_of, power_sum, together
from torsh_runtime.parallel.replicas import Replicas


class FullyShardedDataParallel(NoCopies):
    """Wraps a model so that each rank keeps a part of it, after torch's class of this name.

    See Zhao et al., PyTorch FSDP, VLDB 2023. It is a module of the model's framework itself.

    Outside of forward and backward passes each parameter holds this rank's elements of it, maybe
    none, and so does its gradient, the average over ranks: in as many dimensions as the whole has,
    of which all but the first have size 1. So optimizers have to compute elementwise. All ranks
    make the same calls in the same order.

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
        self._config = replace(config or FsdpConfig(), **_fields(fields))
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
        self._initialiser = Initialiser(module, self._config.param_init_fn)
        self._begin_alike(inner, sharded, attempt)
        self._nodes = self._find_nodes()
        found = units_of(module, self._config.auto_wrap_policy, self._over.size_of, sharded)
        units = [self._unit(*each) for each in found]
        self._initialiser.have_all()
        self._send([buffer for _, buffer in module.named_buffers()])
        if self._config.mixed_precision.buffer_dtype is not None:
            cast_buffers(module, self._config.mixed_precision.buffer_dtype)
        self._passes = FSDPState(module, self._group, self._config, units, self._copies)
        for path, wrapper in inner.items():
            self._adopt(path, wrapper)
        self._change_forward(units)
        guard(module, self._passes)
        self._framework.let_go_of_freed()  # the whole model, which would stay otherwise

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the model that the wrapper lacks, such as `config` and
        `generate()`."""
        try:
            return super().__getattr__(name)  # type: ignore[misc]
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
        self._check_no_mesh()
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

    def _check_no_mesh(self) -> None:
        found = layouts_of(self.module).items()
        name, axes = next(((n, each.sharded()) for n, each in found if each.sharded()), ("", ()))
        if axes:
            raise ConfigError(
                f"{name!r} is sharded over the axes {', '.join(axes)} of a mesh as well: call "
                f"tr.clip_grad_norm_(model, max_norm, mesh)"
            )

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
        if passes.is_summoned:
            yield
            return
        if passes.is_held:
            raise ConfigError("parameters are whole since unshard(): call reshard() first")
        passes.rest()
        passes.meet()
        for unit in units:
            unit.summon()
        passes.meet()
        passes.is_summoned = True
        try:
            yield
        finally:
            passes.is_summoned = False
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
        self, inner: dict[str, FullyShardedDataParallel], sharded: set[int], attempt: Attempt
    ) -> None:
        options = {**self._config.agreed(), "sharded already": ", ".join(sorted(inner))}
        if attempt.error is None:
            with attempt:
                check_parameters(self.module, self._config)
                others = {path: tuple(wrapper._group.ranks) for path, wrapper in inner.items()}
                check_inner(self.module, self._group.ranks, others, sharded)
                self._initialiser.check()
        told = {
            ranks.group: {**options, **ranks.told(with_all=True, without=sharded)}
            for ranks in (self._copies, self._over)
            if ranks is not None
        }
        agree_in_turn(told, "FullyShardedDataParallel", attempt.error, SAME_MODEL)

    def _find_nodes(self) -> Nodes | None:
        strategy = self._config.sharding_strategy
        return None if strategy is ShardingStrategy.NO_SHARD else nodes_of(self._group)

    def _adopt(self, path: str, wrapper: FullyShardedDataParallel) -> None:
        """Take over the units of a wrapper that was around the module of this name."""
        self._ledger.absorb(wrapper._ledger)
        for unit in wrapper._passes.units:
            unit.be_within(path, self._ledger)
        self._passes.adopt(wrapper._passes)
        wrapper._passes, wrapper._ledger = self._passes, self._ledger

    def _send(self, tensors: list[Any]) -> None:
        for ranks in filter(None, (self._copies, self._over)):
            ranks.send(0, tensors)

    def _unit(self, name: str, module: Any, parameters: Parameters) -> FSDPParamGroup:
        is_made = self._initialiser.have([parameter for _, parameter in parameters])
        self._send([parameter for _, parameter in parameters])
        kinds: dict[tuple[Any, ...], Parameters] = {}
        for each in parameters:
            kind = (*kind_of(each[1]), each[1].requires_grad)
            ranks = [ranks.of(each[1]) for ranks in (self._over, self._copies) if ranks]
            kinds.setdefault((*kind, *ranks), []).append(each)
        size = sum(self._over.size_of(parameter) for _, parameter in parameters)
        strategy = self._config.sharding_strategy
        is_replicated = strategy is ShardingStrategy.NO_SHARD or size < self._config.min_num_params
        laid = [self._laid(named, is_replicated) for named in kinds.values()]
        keeps_whole = strategy is ShardingStrategy.SHARD_GRAD_OP
        unit = FSDPParamGroup(name, module, self._framework, laid, is_replicated, keeps_whole)
        if is_made:  # the next one may not fit where this one was
            self._framework.let_go_of_freed()
        return unit

    def _laid(
        self, named: Parameters, is_replicated: bool
    ) -> tuple[FlatParameter, StorageStrategy]:
        framework, group = self._framework, self._over.of(named[0][1])
        dtype = kind_of(named[0][1])[0]
        precision = precision_of(dtype, self._config.mixed_precision)
        if is_replicated:
            flat = FlatParameter(named, precision, 1, 0)
            return flat, ReplicatedStorage(framework, flat, group, self._ledger)
        flat = FlatParameter(named, precision, group.world_size, group.rank)
        whole = None
        if group is self._group or self._group.is_in_node:  # for all meet, or none
            whole = common_memory(flat.parameters[0], flat.size, group, precision.computed)
        if whole is not None:
            return flat, CommonStorage(framework, flat, group, self._ledger, whole)
        is_on_host = kind_of(flat.parameters[0])[1] == "cpu"
        if self._nodes is not None and group is self._group and is_on_host:
            return flat, NodeStorage(framework, flat, group, self._ledger, self._nodes)
        return flat, GatheredStorage(framework, flat, group, self._ledger)

    def _change_forward(self, units: list[FSDPParamGroup]) -> None:
        """Make units cast their inputs, and compute again in backward, if the config says so."""
        framework, mixed = self._framework, self._config.mixed_precision
        dtype = mixed.param_dtype if mixed.cast_forward_inputs else None
        repeated = outermost(units) if self._config.activation_checkpointing else []
        for unit in units:
            if unit in repeated:
                around_forward(unit.module, framework.checkpoint)
            if dtype is not None:
                around_forward(unit.module, partial(_called_with, framework, dtype))


def _called_with(framework: Framework, dtype: str, call: Any, inputs: Any, named: Any) -> Any:
    inputs, named = cast_inputs(framework, (inputs, named), dtype)
    return call(*inputs, **named)


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


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(given.keys() - set(FsdpConfig.__dataclass_fields__))
    if unknown:
        raise ConfigError(
            f"FullyShardedDataParallel has no option {', '.join(unknown)}; it has those of "
            f"FsdpConfig: {', '.join(FsdpConfig.__dataclass_fields__)}"
        )
    return given


def wrappers_of(model: Any) -> list[FullyShardedDataParallel]:
    """Return the wrappers among a model's modules, and those around some of its modules: a
    module such as a pipeline's, which is without wrappers, lists them in `parallel_wrappers`."""
    modules = [module for _, module in model.named_modules()]
    around = [each for module in modules for each in getattr(module, "parallel_wrappers", ())]
    return [each for each in (*modules, *around) if isinstance(each, FullyShardedDataParallel)]
