"""Gives modules of fully_shard() those of torch's settings that choose how ranks communicate."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.fsdp.fsdp_param import FSDPParam
from torsh_runtime.parallel.fsdp.sharding import ShardedModule
from torsh_runtime.parallel.replicas import Replicas


class CommunicationSettings(ShardedModule):
    """Has torch's settings of communication.

    Those that only choose when or where torch communicates are accepted, and make no difference.
    Those that would replace what ranks compute are refused.
    """

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Set by what the sum of the ranks' gradients is divided, instead of by their number.

        It is for the module's own parameters, and holds for backward passes from now on. All ranks
        set the same.

        Args:
            factor: What it is divided by, as 1.0 for sums.

        Raises:
            ConfigError: If the factor is not positive.

        Example:
            ```python
            for block in model.blocks:
                block.experts.set_gradient_divide_factor(data_parallel_ranks)
            ```
        """
        if not 0 < factor < float("inf"):
            raise ConfigError(f"gradient divide factor {factor!r} must be a positive number")
        for unit in self._sharding.own_units:
            unit.options.gradient_scale = partial(_scale, float(factor), self._sharding.copies)

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """Call set_gradient_divide_factor(), whose former name in torch this is.

        Args:
            factor: What the sum of gradients is divided by.

        Raises:
            ConfigError: If the factor is not positive.
        """
        self.set_gradient_divide_factor(factor)

    def reset_iter_state(self) -> None:
        """Drop what a pass has left that an exception has broken off, and the gradients in it.

        It is not needed: the next forward pass of the model does the same, except that it leaves
        gradients which were to be averaged later.

        Raises:
            ConfigError: For a module within a sharded one.
        """
        if self._sharding.passes is not self._sharding.outermost:
            raise ConfigError(
                "reset_iter_state() was called for a module within a larger one that fully_shard() "
                "was given: call it for that one"
            )
        self._sharding.passes.drop()

    def set_post_optim_event(self, event: Any) -> None:
        """Let the current stream wait for an event, as an optimizer's step on another stream.

        What is gathered later waits for the current stream.

        Args:
            event: The event.
        """
        event.wait()

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Accept torch's hint about the last backward pass before a step.

        It makes no difference: each backward pass waits for its gradients before it ends.

        Args:
            is_last_backward: Whether the next one is the last.
        """

    def set_reshard_after_backward(
        self, reshard_after_backward: bool, *, recurse: bool = True
    ) -> None:
        """Accept torch's choice about memory after backward passes.

        It makes no difference: parameters are always freed there, because the next pass could not
        know whether an optimizer has changed them.

        Args:
            reshard_after_backward: What torch would do.
            recurse: Whether it is about all sharded modules in this one, too.
        """

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Accept torch's hint that a backward pass does not need the parameters' values.

        It makes no difference: backward passes gather them.

        Args:
            unshard_in_backward: What torch would do.
        """

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Accept torch's choice to divide sums in an operation of its own.

        It makes no difference.

        Args:
            enable: What torch would do.
        """

    def set_reduce_scatter_max_input_buffers(
        self, max_input_buffers: int, *, recurse: bool = True
    ) -> None:
        """Accept torch's limit of units whose gradients are being reduced.

        It makes no difference: it is one unit.

        Args:
            max_input_buffers: What torch would do.
            recurse: Whether it is about all sharded modules in this one, too.
        """

    def set_separate_reduce_scatter_group(
        self, enable: bool = True, *, recurse: bool = True
    ) -> None:
        """Accept torch's choice to reduce gradients in a process group of their own.

        It makes no difference.

        Args:
            enable: What torch would do.
            recurse: Whether it is about all sharded modules in this one, too.
        """

    def set_custom_all_gather(self, comm: Any) -> None:
        """Refuse another implementation of gathering.

        Args:
            comm: torch's object for it.

        Raises:
            ConfigError: In any case.
        """
        _refuse("set_custom_all_gather", "parameters are gathered by their ProcessGroup")

    def set_custom_reduce_scatter(self, comm: Any) -> None:
        """Refuse another implementation of reducing.

        Args:
            comm: torch's object for it.

        Raises:
            ConfigError: In any case.
        """
        _refuse("set_custom_reduce_scatter", "gradients are reduced by their ProcessGroup")

    def set_all_reduce_hook(self, hook: Any, *, stream: Any = None) -> None:
        """Refuse a function that would change gradients while they are reduced.

        Args:
            hook: The function.
            stream: Its stream.

        Raises:
            ConfigError: In any case.
        """
        _refuse(
            "set_all_reduce_hook",
            "gradients are reduced in other parts than torch's: pass a mesh of two dimensions to "
            "average them over replicas, or change each parameter's .grad after the backward pass",
        )

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> None:
        """Refuse symmetric memory.

        Args:
            backend: torch's backend for it.

        Raises:
            ConfigError: In any case.
        """
        _refuse(
            "set_symm_mem_for_comm",
            "there is no such memory: set_allocate_memory_from_process_group_for_comm() gathers in "
            "memory that is registered with NCCL",
        )


def _refuse(name: str, why: str) -> NoReturn:
    raise ConfigError(f"{name}() is torch's, and not supported by tr.fully_shard: {why}")


def _scale(factor: float, copies: Replicas | None, slot: FSDPParam) -> float:
    """Return what an average is multiplied by so that it is the sum divided by the factor."""
    ranks = slot.memory.group.world_size
    if copies is not None:
        ranks *= copies.of(slot.parameter).world_size
    return ranks / factor
