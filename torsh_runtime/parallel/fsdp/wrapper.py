"""Wraps a model: FullyShardedDataParallel, and what users call of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework import framework_of_model
from torsh_runtime.layout import Piece
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.fsdp.accounting import MemoryStats
from torsh_runtime.parallel.fsdp.config import AutoWrapPolicy, FsdpConfig, known_fields
from torsh_runtime.parallel.fsdp.fsdp_module import register_generation
from torsh_runtime.parallel.fsdp.guard import WRAPPER
from torsh_runtime.parallel.fsdp.sharding import ShardedModule, Sharding
from torsh_runtime.parallel.layouts import OF_ONE_MODULE


class FullyShardedDataParallel(ShardedModule):
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
        options = replace(config or FsdpConfig(), **known_fields(fields))
        self._sharding = Sharding(module, options, process_group, WRAPPER)
        register_generation(self)

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
        return self._sharding.group

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
        with self._sharding.no_sync():
            yield

    def unshard(self) -> None:
        """Make all parameters whole until reshard() or reduce_gradients().

        Backward passes accumulate whole gradients in them, also those of weights that a pipeline's
        schedule computes later. All ranks call it. Gradients that parameters have stay this rank's
        parts until a pass brings others, to which they are added unless zero_grad() drops them.

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
        self._sharding.outermost.hold(shows_gradients=True)

    def _hold(self) -> None:
        """Make all parameters whole for a schedule, which adds gradients by itself."""
        self._sharding.outermost.hold()

    def reshard(self) -> None:
        """Reduce each rank to its part again, and keep the new gradients as no_sync() does.

        All ranks call it.
        """
        self._sharding.outermost.let_go()

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
        self._sharding.outermost.reduce()

    def memory_stats(self) -> MemoryStats:
        """Return the memory that the parameters take on this rank, in bytes.

        Example:
            ```python
            print(f"{model.memory_stats().peak / 2**20:.0f} MiB at most")
            ```
        """
        return self._sharding.memory_stats()

    def local_sharding_ratio(self) -> float:
        """Return this rank's share of all parameters, from 0 to 1.

        Example:
            ```python
            model.local_sharding_ratio()  # about 0.25 with four ranks
            ```
        """
        return self._sharding.local_sharding_ratio()

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
        return self._sharding.clip_grad_norm_(max_norm, norm_type)

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
        with self._sharding.summon_full_params(writeback):
            yield

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
        with self._sharding.summon_full_params(False, "state_dict()"):
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
        with self._sharding.loading(arguments, named):
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
        return self._sharding.sharded_state_dict(mesh)

    def pieces(self) -> dict[int, Piece]:
        """Return the piece that this rank has of each parameter, by the parameter's id()."""
        return self._sharding.pieces()

    def sharded(self) -> dict[int, ProcessGroup]:
        """Return the ranks that have different parts of each parameter that is cut, by its id()."""
        return self._sharding.sharded()


@cache
def _class_around(module_class: type) -> type[FullyShardedDataParallel]:
    return type(WRAPPER, (FullyShardedDataParallel, module_class), {"__module__": __name__})


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
