"""Gives modules that fully_shard() has sharded their methods, under torch's names."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import wraps
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.fsdp.fsdp_param_group import FSDPParamGroup
from torsh_runtime.parallel.fsdp.fsdp_settings import CommunicationSettings
from torsh_runtime.parallel.fsdp.sharding import Sharding, reshards_of, sharding_of
from torsh_runtime.parallel.fsdp.unit_options import UnitOptions
from torsh_runtime.parallel.parts_of_state import are_meant


class UnshardHandle:
    """Waits for what FSDPModule.unshard(async_op=True) has begun.

    Example:
        ```python
        handle = model.unshard(async_op=True)
        handle.wait()
        ```
    """

    def __init__(self, sharding: Sharding) -> None:
        """Create the handle of a module that is being gathered."""
        self._sharding = sharding

    def wait(self) -> None:
        """Wait until the parameters are whole.

        Raises:
            ConfigError: As FSDPModule.unshard() without async_op.
            CommError: If they are gathered and that fails.
        """
        self._sharding.unshard(waits=True)


class FSDPModule(CommunicationSettings):
    """Has the methods that a module gets by fully_shard(), which sets its class.

    Each changes the module's own unit, and with recurse those of modules in it. All ranks make the
    same calls in the same order.

    Example:
        ```python
        tr.fully_shard(model)
        assert isinstance(model, tr.FSDPModule)
        ```
    """

    _original_class: type

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        """Create a module of the class that was sharded, as slices of a torch.nn.Sequential do."""
        return cls._original_class(*arguments, **named)

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Make the module's parameters whole until a pass has used it, or reshard().

        Values that are changed meanwhile are lost.

        Args:
            async_op: Whether to return a handle at once, instead of waiting.

        Raises:
            ConfigError: If it would wait outside of a pass while parameters have gradients, which
                zero_grad() could not reach then.
            CommError: If parameters are gathered and that fails.

        Example:
            ```python
            model.unshard()
            print(model.head.weight.norm())
            model.reshard()
            ```
        """
        self._sharding.unshard(waits=not async_op)
        return UnshardHandle(self._sharding) if async_op else None

    def reshard(self) -> None:
        """Reduce the module's parameters to this rank's parts again.

        Raises:
            CommError: If the ranks have memory in common and do not meet.
        """
        self._sharding.reshard()

    def set_requires_gradient_sync(
        self, requires_gradient_sync: bool, *, recurse: bool = True
    ) -> None:
        """Set whether backward passes average gradients, or each rank keeps its own for later.

        The next backward pass that averages includes what was kept.

        Args:
            requires_gradient_sync: Whether they do.
            recurse: Whether to set it for all sharded modules in this one, too.

        Example:
            ```python
            for number, batch in enumerate(batches):
                model.set_requires_gradient_sync(number == len(batches) - 1)
                loss(model(batch)).backward()
            optimizer.step()
            ```
        """
        for each in self._options(recurse):
            each.is_averaging = each.averages_replicas = requires_gradient_sync

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Set whether a mesh of two dimensions averages gradients over its replicas, too.

        Args:
            requires_all_reduce: Whether it does. What accumulates meanwhile is averaged later.
            recurse: Whether to set it for all sharded modules in this one, too.
        """
        for each in self._options(recurse):
            each.averages_replicas = requires_all_reduce

    def set_reshard_after_forward(
        self, reshard_after_forward: bool | int | None, recurse: bool = True
    ) -> None:
        """Set whether parameters are freed between the forward and the backward pass.

        Args:
            reshard_after_forward: As fully_shard() takes it.
            recurse: Whether to set it for all sharded modules in this one, too.

        Raises:
            ConfigError: For a number that does not divide the number of ranks.
        """
        chosen = reshards_of(reshard_after_forward, self._sharding.group.world_size)
        for each in self._options(recurse):
            each.reshard_after_forward = chosen

    def set_reduce_scatter_unused_params(
        self, reduce_scatter_unused_params: bool, *, recurse: bool = True
    ) -> None:
        """Set whether ranks may use different parameters of a unit, as experts.

        A parameter that this rank has not used then counts as one with zero gradients if another
        rank has used it. Gradients are averaged at the end of backward passes, until when each rank
        keeps whole ones. All ranks have to call each unit anyway.

        Args:
            reduce_scatter_unused_params: Whether they may.
            recurse: Whether to set it for all sharded modules in this one, too.

        Example:
            ```python
            tr.fully_shard(model)
            model.set_reduce_scatter_unused_params(True)
            ```
        """
        for each in self._options(recurse):
            each.finds_unused = reduce_scatter_unused_params

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Set whether the module's parameters are gathered in memory that is registered with NCCL.

        All modules for which it is set share that memory, which serves nothing else. NCCL then
        needs fewer copies on some networks. All ranks set the same. On CPUs it does nothing.

        Args:
            enable: Whether they are.

        Example:
            ```python
            for module in model.modules():
                if isinstance(module, tr.FSDPModule):
                    module.set_allocate_memory_from_process_group_for_comm(True)
            ```
        """
        for unit in self._sharding.own_units:
            unit.allocate_from_group(enable)

    def set_modules_to_forward_prefetch(self, modules: Sequence[Any]) -> None:
        """Set which modules are gathered ahead when this one is called.

        Args:
            modules: Sharded modules that are called later; none of them: the next one.

        Raises:
            ConfigError: If one is not sharded.

        Example:
            ```python
            for block, following in itertools.pairwise(model.blocks):
                block.set_modules_to_forward_prefetch([following])
            ```
        """
        self._own().options.forward_prefetch = _units(modules)

    def set_modules_to_backward_prefetch(self, modules: Sequence[Any]) -> None:
        """Set which modules are gathered ahead when this one's backward pass begins.

        Args:
            modules: Sharded modules that are called before this one; none of them: the last one.

        Raises:
            ConfigError: If one is not sharded.
        """
        self._own().options.backward_prefetch = _units(modules)

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Return the module's state_dict(), with copies of whole parameters. All ranks call it.

        torch's modules of this kind have DTensors there.

        Args:
            *arguments: As the module's own state_dict().
            **named: As the module's own state_dict().

        Raises:
            CommError: If parameters are gathered and that fails.

        Example:
            ```python
            state = model.state_dict()
            if tr.get_rank() == 0:
                torch.save(state, "model.pt")
            ```
        """
        module: Any = super()
        if are_meant():
            return module.state_dict(*arguments, **named)
        with self._sharding.summon_full_params(False, "state_dict()"):
            return module.state_dict(*arguments, **named)

    def load_state_dict(self, state_dict: Any, *arguments: Any, **named: Any) -> Any:
        """Load what state_dict() returned, here or before the module was sharded.

        All ranks call it.

        Args:
            state_dict: The state, of whole parameters.
            *arguments: As the module's own load_state_dict().
            **named: As the module's own load_state_dict().

        Raises:
            ConfigError: For assign=True, which would leave nothing that is sharded.
            CommError: If parameters are gathered and that fails.

        Example:
            ```python
            model.load_state_dict(torch.load("model.pt", weights_only=True))
            ```
        """
        module: Any = super()
        with self._sharding.loading(arguments, named):
            return module.load_state_dict(state_dict, *arguments, **named)

    def _load_from_state_dict(self, *arguments: Any, **named: Any) -> None:
        """Load the module's own tensors, which a module around it is asked to load, too."""
        if not self._sharding.outermost.is_outermost_summoned():
            raise ConfigError(
                "load_state_dict() of a module that is not sharded would load into parts of those "
                "in it that are: call fully_shard() on it as well, or load into these one by one"
            )
        module: Any = super()
        module._load_from_state_dict(*arguments, **named)

    def to_empty(self, *, device: Any, recurse: bool = True) -> Any:
        """Let what was on the meta device get values, after this.

        Args:
            device: Where the parameters are.
            recurse: As torch's to_empty().

        Returns:
            The module.

        Raises:
            ConfigError: If the parameters are on another device.

        Example:
            ```python
            model.to_empty(device="cpu")
            model.reset_parameters()
            ```
        """
        awaiting = self._sharding.outermost.awaiting
        awaiting.note_values()
        module: Any = super()
        with awaiting.paused():
            return module.to_empty(device=device, recurse=recurse)

    def _own(self) -> FSDPParamGroup:
        return self._sharding.own_units[0]

    def _options(self, recurse: bool) -> list[UnitOptions]:
        module: Any = self
        found = map(sharding_of, module.modules() if recurse else [self])
        return [unit.options for each in found if each for unit in each.own_units]


def _units(modules: Sequence[Any]) -> list[FSDPParamGroup]:
    shardings = [(each, sharding_of(each)) for each in modules]
    for module, sharding in shardings:
        if sharding is None:
            raise ConfigError(
                f"a {type(module).__name__} is not sharded: call fully_shard() on it before, and "
                f"pass modules that were given to it"
            )
    return [sharding.own_units[0] for _, sharding in shardings if sharding is not None]


def share_comm_ctx(modules: Sequence[Any]) -> None:
    """Accept torch's request that sharded models use the same streams, as stages of a pipeline.

    It makes no difference.

    Args:
        modules: Modules that fully_shard() was given.

    Raises:
        ConfigError: If one is not sharded.

    Example:
        ```python
        tr.share_comm_ctx([first_stage, second_stage])
        ```
    """
    _units(modules)


def register_fsdp_forward_method(model: Any, method_name: str) -> None:
    """Let a method of a sharded model compute with whole parameters, as its forward() does.

    It is like torch's function of this name. All ranks call the method alike. A method that calls
    the module itself, or modules of it that are units, needs it only where it uses other parameters
    as well. generate(), as models of transformers have it, is registered already.

    Args:
        model: The FullyShardedDataParallel, or a module that fully_shard() was given.
        method_name: The method's name.

    Raises:
        ConfigError: If `model` is not sharded, or has no such method.

    Example:
        ```python
        tr.register_fsdp_forward_method(model, "encode")
        loss(model.encode(batch)).backward()
        ```
    """
    sharding = sharding_of(model)
    if sharding is None:
        raise ConfigError(
            f"a {type(model).__name__} is no FullyShardedDataParallel, and fully_shard() was not "
            f"called on it: register methods of the model after it is sharded"
        )
    module: Any = sharding.model
    method = getattr(module, method_name, None)
    if not callable(method):
        raise ConfigError(f"a {type(module).__name__} has no method {method_name!r}")
    here = weakref.ref(sharding)  # which its own module would keep alive, as a method would that
    given = weakref.WeakMethod(method) if hasattr(method, "__func__") else lambda: method

    @wraps(method)
    def call(*inputs: Any, **named: Any) -> Any:
        """Call the method as a forward pass of the sharded model, if that still exists."""
        found, method = here(), given()
        assert method is not None  # whose module is being called
        if found is None:
            return method(*inputs, **named)
        with found.outermost.within_method(found.own_units[0]) as end:
            outputs = method(*inputs, **named)
            end(outputs)
        return outputs

    setattr(module, method_name, call)


def register_generation(model: Any) -> None:
    """Register a model's generate(), if it has one: those of transformers call encoders without
    the model."""
    sharding = sharding_of(model)
    if sharding is not None and callable(getattr(sharding.model, "generate", None)):
        register_fsdp_forward_method(model, "generate")
