"""Prepares a model for sharding: checks it, finds the ranks, and makes its units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Framework, Module, framework_of
from torsh_runtime.framework.models import (
    all_parameters,
    around_forward,
    cast_inputs,
    is_meta,
    kind_of,
    own_initialiser,
)
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.fsdp.accounting import MemoryAccounting
from torsh_runtime.parallel.fsdp.config import FsdpConfig, ShardingStrategy, precision_of
from torsh_runtime.parallel.fsdp.device_storage import DeviceStorage
from torsh_runtime.parallel.fsdp.flat_parameter import FlatParameter
from torsh_runtime.parallel.fsdp.fsdp_param import StorageStrategy, Stored
from torsh_runtime.parallel.fsdp.fsdp_param_group import FSDPParamGroup
from torsh_runtime.parallel.fsdp.node_storage import Nodes, by_node, host_storage, nodes_of
from torsh_runtime.parallel.fsdp.offloaded_storage import OffloadedStorage
from torsh_runtime.parallel.fsdp.storage import ReplicatedStorage
from torsh_runtime.parallel.fsdp.unit_options import UnitOptions
from torsh_runtime.parallel.fsdp.wrapping import Parameters, is_within, units_of
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.layouts import layouts_of
from torsh_runtime.parallel.replicas import Replicas


def groups_of(given: Any, strategy: object) -> tuple[Any, Any]:
    """Return the ranks to shard over, and the replicas or None if the strategy has none: groups,
    or parts of a mesh. Raises ConfigError if `given` has no such groups."""
    if strategy is not ShardingStrategy.HYBRID_SHARD:
        return given, None
    if isinstance(given, DeviceMesh) and len(given.mesh_dim_names) == 2:
        replicas, shards = given.mesh_dim_names
        return given[shards], given[replicas]
    if isinstance(given, tuple | list) and len(given) == 2:
        return given[0], given[1]
    if given is None:
        return by_node(group_of(None))
    raise ConfigError(
        "sharding_strategy 'hybrid' takes process_group=(those to shard over, those with the same "
        "part), or a DeviceMesh of two axes, replicas first; None shards in each node"
    )


def check_parameters(model: Module, config: FsdpConfig) -> None:
    """Raise ConfigError for a model without parameters, or with some that cannot be sharded as
    the config says."""
    framework, named = framework_of(model), all_parameters(model)
    if not named:
        raise ConfigError("the model has no parameters: there is nothing to shard")
    for dtype in config.mixed_precision.dtypes():
        framework.dtype(dtype)
    is_on_gpu = not {kind_of(each)[1] for _, each in named} <= {"cpu", "meta"}
    if (config.offloads or config.activation_offload) and is_on_gpu and not framework.offloads:
        raise ConfigError(
            f"models of {framework.name} on GPUs are not offloaded to the memory of the CPU: leave "
            f"cpu_offload and activation_offload out, or take a model of torch"
        )
    sparse = [
        name for name, each in model.named_modules() if framework.gives_sparse_gradients(each)
    ]
    if sparse:
        raise ConfigError(
            f"{sparse[0]!r} gives sparse gradients, which are not sharded: make it with "
            f"sparse=False, or use DistributedDataParallel, which averages them"
        )


def check_inner(
    model: Module,
    ranks: Iterable[int],
    inner: dict[str, tuple[int, ...]],
    sharded: Set[int],
) -> None:
    """Raise ConfigError if parts are sharded already over other ranks, or share a parameter with
    a part that is. inner: the ranks of those parts by their paths. sharded: id() of their
    parameters."""
    for path, others in inner.items():
        if others != tuple(ranks):
            raise ConfigError(
                f"{path!r} in the model is sharded over other ranks: give all wrappers of a "
                f"model the same process_group"
            )
    for name, module in model.named_modules():
        own = {id(parameter) for _, parameter in module.named_parameters(recurse=False)}
        if own & sharded and not any(is_within(name, path) for path in inner):
            raise ConfigError(
                f"{name!r} has a parameter of a part that is sharded already: wrap what shares "
                f"parameters together, or the whole model only"
            )


def check_no_mesh(model: Module) -> None:
    """Raise ConfigError for a model that is sharded over a mesh as well."""
    found = layouts_of(model).items()
    name, axes = next(((n, each.sharded()) for n, each in found if each.sharded()), ("", ()))
    if axes:
        raise ConfigError(
            f"{name!r} is sharded over the axes {', '.join(axes)} of a mesh as well: call "
            f"tr.clip_grad_norm_(model, max_norm, mesh)"
        )


class Initialiser:
    """Gives modules memory and values when they are needed, each once."""

    def __init__(
        self, model: Module, initialise: Callable[[Any], object] | None, device: Any
    ) -> None:
        self._framework, self._initialise, self._device = framework_of(model), initialise, device
        self._left = [each for each in model.named_modules() if is_meta(each[1])]

    def check(self) -> None:
        """Raise ConfigError for modules on the meta device that nothing can initialise, and for a
        device that is none."""
        self._device = self._framework.device(self._device)
        if self._initialise is not None:
            return
        without = [repr(name) for name, m in self._left if own_initialiser(m) is None]
        if without:
            raise ConfigError(
                f"module(s) {', '.join(without[:5])} are on the meta device and have no "
                f"reset_parameters(): pass param_init_fn, which gives a module's tensors values"
            )

    def devices(self, parameters: Sequence[Any]) -> set[str]:
        """Return the types of the devices that these parameters are or will be on."""
        found = {kind_of(each)[1] for each in parameters}
        return {str(self._device if each == "meta" else each).split(":")[0] for each in found}

    def have(self, parameters: Sequence[Any]) -> bool:
        """Initialize the modules of these parameters, if that is still to do. Return whether it
        was for any."""
        wanted = {id(parameter) for parameter in parameters}
        found = [
            named
            for named in self._left
            if wanted & {id(own) for _, own in named[1].named_parameters(recurse=False)}
        ]
        for named in found:
            self._make(named)
        return bool(found)

    def have_all(self) -> None:
        """Initialize all modules that are left."""
        for named in [*self._left]:
            self._make(named)

    def _make(self, named: tuple[str, Any]) -> None:
        self._left.remove(named)
        module = named[1]
        call = self._initialise or own_initialiser(module)
        self._framework.materialise(
            module, lambda each: call(each) if call is not None else None, self._device
        )


def outermost(units: Sequence[FSDPParamGroup]) -> list[FSDPParamGroup]:
    """Return the units that are in no other one except the model's own, or the model's own if
    there are no others."""
    names = [unit.name for unit in units if unit.name]
    inside = [
        each
        for each in units
        if each.name and not any(is_within(each.name, name) and each.name != name for name in names)
    ]
    return inside or [*units]


class UnitMaker:
    """Makes the units of a model, whose values all ranks get from rank 0."""

    def __init__(
        self,
        model: Module,
        config: FsdpConfig,
        over: Replicas,
        copies: Replicas | None,
        ledger: MemoryAccounting,
    ) -> None:
        """Create the maker. over: the ranks to shard over. copies: those that replicate this
        rank's part."""
        self._model, self._framework, self._config = model, framework_of(model), config
        self._over, self._copies, self._group = over, copies, over.group
        self._ledger = ledger
        self._nodes: Nodes | None = None
        device = config.device
        if device is None:
            device = "cuda" if "nccl" in self._group.backend else "cpu"
        self._initialiser = Initialiser(model, config.param_init_fn, device)

    def check(self, inner: dict[str, tuple[int, ...]], sharded: Set[int]) -> None:
        """Raise ConfigError for a model that cannot be sharded. inner: the ranks of parts that are
        sharded already, by their paths. sharded: id() of their parameters."""
        check_parameters(self._model, self._config)
        copies = self._copies and self._copies.group.backend
        if self._config.offloads and copies == "nccl":
            raise ConfigError(
                "cpu_offload with sharding_strategy 'hybrid' averages gradients over replicas on "
                "the CPU, and their group has nccl only: use the backend 'cpu:native,cuda:nccl'"
            )
        check_inner(self._model, self._group.ranks, inner, sharded)
        self._initialiser.check()

    def told(self, without: Set[int]) -> str:
        """Return what has to be equal on all ranks besides the options and the model. without:
        id() of parameters that it is not about."""
        named = self._model.named_parameters()
        mine = [parameter for _, parameter in named if id(parameter) not in without]
        return ", ".join(sorted(self._initialiser.devices(mine)))

    def units(self, sharded: Set[int]) -> list[FSDPParamGroup]:
        """Make the units. sharded: id() of parameters that have units already. All ranks call
        it."""
        if self._config.sharding_strategy is not ShardingStrategy.NO_SHARD:
            self._nodes = nodes_of(self._group)
        found = units_of(self._model, self._config.auto_wrap_policy, self._over.size_of, sharded)
        units = [self._unit(*each) for each in found]
        self._initialiser.have_all()
        self.send([buffer for _, buffer in self._model.named_buffers()])
        return units

    def send(self, tensors: Sequence[Any]) -> None:
        """Give all ranks rank 0's values of these parameters or buffers. All ranks call it. A rank
        that has not met the others gets theirs when it joins them."""
        for ranks in filter(None, (self._copies, self._over)):
            if not ranks.group.is_unmet:
                ranks.send(0, tensors)

    def _unit(self, name: str, module: Any, parameters: Parameters) -> FSDPParamGroup:
        is_made = self._initialiser.have([parameter for _, parameter in parameters])
        self.send([parameter for _, parameter in parameters])
        kinds: dict[tuple[Any, ...], Parameters] = {}
        for each in parameters:
            kind = (*kind_of(each[1]), each[1].requires_grad)
            ranks = [ranks.of(each[1]) for ranks in (self._over, self._copies) if ranks]
            kinds.setdefault((*kind, *ranks), []).append(each)
        size = sum(self._over.size_of(parameter) for _, parameter in parameters)
        strategy = self._config.sharding_strategy
        options = UnitOptions(finds_unused=self._config.find_unused_parameters)
        if strategy is ShardingStrategy.SHARD_GRAD_OP:
            options.reshard_after_forward = False
        is_replicated = strategy is ShardingStrategy.NO_SHARD or size < self._config.min_num_params
        laid = [self._laid(named, is_replicated) for named in kinds.values()]
        unit = FSDPParamGroup(name, module, self._framework, laid, is_replicated, options)
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
            return flat, ReplicatedStorage(Stored(framework, flat, group, self._ledger))
        is_on_host = has_host_memory(named[0][1])
        flat = FlatParameter(
            named, precision, group.world_size, group.rank, wants_even=not is_on_host
        )
        stored = Stored(framework, flat, group, self._ledger)
        if not is_on_host:
            kind = OffloadedStorage if self._config.offloads else DeviceStorage
            return flat, kind(stored)
        return flat, host_storage(stored, self._group, self._nodes)


def has_host_memory(parameter: Any) -> bool:
    """Return whether a parameter is in the memory of the CPU."""
    return kind_of(parameter)[1] == "cpu"


def change_forward(framework: Framework, config: FsdpConfig, units: list[FSDPParamGroup]) -> None:
    """Make units cast their inputs, and compute again in backward or keep activations on the CPU,
    if the config says so."""
    mixed = config.mixed_precision
    dtype = mixed.param_dtype if mixed.cast_forward_inputs else None
    repeated = outermost(units) if config.activation_checkpointing else []
    offloaded = outermost(units) if config.activation_offload else []
    for unit in units:
        if unit in repeated:
            around_forward(unit.module, framework.checkpoint)
        if unit in offloaded:
            within = [each for each in units if is_within(each.name, unit.name)]
            around_forward(unit.module, partial(_offloading, framework, within))
        if dtype is not None:
            around_forward(unit.module, partial(_called_with, framework, dtype))


def _offloading(
    framework: Framework, units: list[FSDPParamGroup], call: Any, inputs: Any, named: Any
) -> Any:
    parameters = [memory.whole for unit in units for _, memory in unit.laid]
    return framework.offloading(call, inputs, named, parameters)


def _called_with(framework: Framework, dtype: str, call: Any, inputs: Any, named: Any) -> Any:
    inputs, named = cast_inputs(framework, (inputs, named), dtype)
    return call(*inputs, **named)
