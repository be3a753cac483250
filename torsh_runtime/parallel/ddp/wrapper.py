"""The wrapper DistributedDataParallel for data parallelism."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

from torsh_runtime.comm.agreement import Attempt, agree
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, framework_of, framework_of_model
from torsh_runtime.framework.models import all_parameters, kind_of, trained_parameters
from torsh_runtime.parallel.agreement import SAME_MODEL, send_from
from torsh_runtime.parallel.ddp.bucket import Hook
from torsh_runtime.parallel.ddp.config import BucketConfig, fields_of, name_of
from torsh_runtime.parallel.ddp.join import Joining
from torsh_runtime.parallel.ddp.reducer import Reducer
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.replicas import Replicas

_NAME = "DistributedDataParallel"


class DistributedDataParallel:
    """Wraps a model so that each backward pass averages its gradients over ranks.

    It is like torch's class of this name (Li et al., PyTorch Distributed, VLDB 2020), and is a
    module of the model's framework itself: a torch.nn.Module around one of torch's, a tr.nn.Module
    around one of tr.nn's. Every rank trains on batches of its own share of the data. Gradients are
    divided by the number of ranks, not by the sizes of batches.

    Example:
        ```python
        model = tr.DistributedDataParallel(model)
        loss(model(batch)).backward()  # afterwards all ranks have the same gradients
        optimizer.step()
        ```
    """

    module: Module
    """The model itself."""

    def __new__(cls, module: Module, *arguments: Any, **named: Any) -> DistributedDataParallel:
        if cls is DistributedDataParallel:
            cls = _class_around(framework_of_model(module).module_type)
        return super().__new__(cls)

    def __init__(
        self,
        module: Module,
        device_ids: object = None,
        output_device: object = None,
        *,
        config: BucketConfig | None = None,
        process_group: Any = None,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        **fields: Any,
    ) -> None:
        """Wrap the model, as all ranks of the group do with the same model at the same time.

        Args:
            module: The model, of torch or torsh_runtime.nn.
            device_ids: For programs written for torch; the model says where it is. At most one.
            output_device: For programs written for torch; makes no difference.
            config: How gradients are treated.
            process_group: The ranks; None is the default group, or torch's if only torch has one.
                One of torch.distributed's of backend "torsh" serves as well. Of a model with
                layouts (parallel/layouts.py) the mesh's axes along which batches differ, as
                mesh["dp", "cp"]: what is sharded along others, as experts are, is averaged over
                those of these ranks that have the same.
            broadcast_buffers: Whether to give all ranks rank 0's buffers before each forward pass
                in training.
            init_sync: Whether to compare models and options here, and give all ranks rank 0's
                values. False sends nothing; options and parameters are compared when gradients are
                first averaged.
            **fields: Further fields of BucketConfig, such as find_unused_parameters=True; torch's
                bucket_cap_mb is bucket_size_mb.

        Raises:
            ConfigError: On all ranks if models or options differ, for a model without parameters
                that need gradients, or of which they have different parts, and for wrong fields.
            CommError: As ProcessGroup. The backward pass raises it, too.
        """
        del output_device  # it is where the model's outputs are
        super().__init__()
        self.module = module
        self._framework = framework_of(module)
        self._replicas = Replicas(module, process_group)
        self._group = self._replicas.group
        self._config = BucketConfig()
        self._broadcasts_buffers = broadcast_buffers
        self._has_buffers = any(True for _ in module.named_buffers())  # a walk through the model
        with Attempt() as attempt:
            _check_devices(device_ids)
            self._config = replace(config or self._config, **fields_of(fields))
            _check_parameters(module)
        options = _options(self._config, broadcast_buffers, init_sync)
        if self._group.is_unmet and attempt.error is None:
            pass  # it gets the others' values, and is compared with them, when it has joined them
        elif init_sync:
            told = {**options, **self._replicas.told(with_all=True)}
            agree(self._group, _NAME, told, attempt.error, SAME_MODEL)
            self._replicas.send(0, self._everything())
        elif attempt.error is not None:
            raise attempt.error
        compare = partial(_compare, options, self._replicas, not init_sync)
        self._reducer: Reducer | None = None
        self._is_synchronising = True
        self._joining: Joining | None = None
        if self._group.world_size > 1 or self._config.check_nan:
            self._reducer = Reducer(module, self._replicas, self._config, compare)
        if self._config.gradient_compression is not None:
            self._compress(self._config.gradient_compression)
        self._group.wrappers.add(self)
        # Not bound, for a cycle would keep the model's hooks after the wrapper is gone.
        self._before_call = self._framework.untraced(DistributedDataParallel._prepare)
        self._after_call = self._framework.untraced(DistributedDataParallel._expect)

    @property
    def process_group(self) -> ProcessGroup:
        """Return the ranks that gradients are averaged over."""
        return self._group

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the model, and return its outputs.

        Args:
            *inputs: The model's arguments.
            **named: The model's arguments by name.

        Raises:
            CommError: If buffers or joining ranks are exchanged and that fails.
        """
        self._before_call(self)
        outputs = self.module(*inputs, **named)
        self._after_call(self, outputs)
        return outputs

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Average each bucket of gradients by `hook(state, bucket)`.

        All ranks register the same. See Bucket, and torsh_runtime.compression for existing hooks.
        What fewer ranks have, as experts, is averaged without it.

        Args:
            state: What the hook is called with, such as the group; None for the default group.
            hook: A function that starts to average the bucket and returns Work, or a future,
                torch's included.

        Raises:
            ConfigError: If there is a hook already.

        Example:
            ```python
            model.register_comm_hook(None, tr.compression.TopK(ratio=0.01))
            ```
        """
        if self._reducer is None:  # one rank alone compresses, too
            self._reducer = Reducer(self.module, self._replicas, self._config)
        self._reducer.register_hook(state, hook)

    @property
    def has_hook(self) -> bool:
        """Return whether gradients are averaged by a hook or compressed."""
        return self._reducer is not None and self._reducer.has_hook

    def begin_anew(self) -> None:
        """Drop gradients that were being averaged, as all ranks do once their group has been
        configured anew.

        Example:
            ```python
            tr.group.WORLD.configure(tr.get_store(), "", rank, world_size, quorum_id=1)
            model.begin_anew()
            ```
        """
        if self._reducer is not None:
            self._reducer.begin_anew()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate the gradients of passes in this block on each rank, without averaging.

        The first backward pass of a forward pass outside of the block averages the sums.

        Example:
            ```python
            with model.no_sync():
                loss(model(first)).backward()
            loss(model(second)).backward()
            ```
        """
        before, self._is_synchronising = self._is_synchronising, False
        try:
            yield
        finally:
            self._is_synchronising = before

    def reduce_gradients(self) -> None:
        """Average the gradients that have been accumulated under no_sync(), now.

        All ranks call it. Within such a block it leaves them for later.

        Raises:
            CommError: If the exchange among the ranks fails.
            GradientError: On all ranks, if the gradients cannot be averaged.

        Example:
            ```python
            with model.no_sync():
                for batch in batches:
                    loss(model(batch)).backward()
            model.reduce_gradients()
            optimizer.step()
            ```
        """
        if self._reducer is not None and self._is_synchronising:
            self._reducer.average()

    @contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Let ranks have unequal numbers of batches in the training loop that this block encloses.

        A rank that has left the loop gives zeros to the averages until all have. Then all ranks get
        the model of one of those that were the last to train.

        Args:
            divide_by_initial_world_size: Whether to divide sums by the number of all ranks, and not
                of those that still train.
            enable: False does nothing.
            throw_on_early_termination: Whether to end the loop of all ranks with GradientError when
                the first one has no batch left.

        Raises:
            GradientError: With `throw_on_early_termination`, on all ranks.

        Example:
            ```python
            with model.join():
                for batch in batches:
                    train(model, batch)
            ```
        """
        if not enable or self._reducer is None:
            yield
            return
        names = [name for name, _ in trained_parameters(self.module)]
        options = (divide_by_initial_world_size, throw_on_early_termination)
        self._joining = Joining(self._group, names, *options)
        try:
            yield
            self._follow_others(self._reducer, self._joining)
        finally:
            self._joining, self._reducer.divisor = None, None

    def _follow_others(self, reducer: Reducer, joining: Joining) -> None:
        while (company := joining.meet(is_active=False)).active:
            reducer.divisor = joining.divisor(company)
            if company.sends_buffers:
                self._send_buffers(company.active[0])
            if company.averages:
                reducer.shadow()
        if joining.last_active:
            self._replicas.send(joining.last_active[0], self._everything())

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedDataParallel:
        """Return a wrapper of the same ranks around a copy of the model, with a copy of its
        compressor and without a registered hook."""
        module, config = copy.deepcopy((self.module, self._config), memo)
        return _unpickled(module, config, self._broadcasts_buffers, self._replicas.given)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model and the options. The unpickled wrapper is of the default group,
        without a registered hook, and takes its model as it is. Raises ConfigError if this one
        is of another group."""
        if self._group is not group_of(None):
            raise ConfigError("the wrapper is not of the default group: pickle its .module")
        return _unpickled, (self.module, self._config, self._broadcasts_buffers)

    def _compress(self, compressor: str | Hook) -> None:
        if isinstance(compressor, str):
            from torsh_runtime.compression import from_name

            self.register_comm_hook(self._group, from_name(compressor))
        else:
            self.register_comm_hook(self._group, compressor)

    def _prepare(self) -> None:
        if self._framework.in_backward():  # a checkpoint computes it once more
            return
        first = 0
        if self._joining is not None and self._reducer is not None:
            is_trained = self._is_synchronising and self._framework.is_grad_enabled()
            averages = is_trained and self._reducer.is_next_averaged()
            company = self._joining.meet(True, averages, self._sends_buffers())
            self._reducer.divisor = self._joining.divisor(company)
            first = company.active[0]
        if self._sends_buffers():
            self._send_buffers(first)

    def _sends_buffers(self) -> bool:
        is_wanted = self._broadcasts_buffers and self._has_buffers
        return is_wanted and self._is_synchronising and self.module.training

    def _send_buffers(self, rank: int) -> None:
        buffers = [tensor for _, tensor in self.module.named_buffers()]
        send_from(rank, buffers, self._group)

    def _everything(self) -> list[Any]:
        named = [*all_parameters(self.module), *self.module.named_buffers()]
        return [tensor for _, tensor in named]

    def _expect(self, outputs: object) -> None:
        if self._reducer is None or not self._framework.is_grad_enabled():
            return
        if not self._framework.in_backward():
            self._reducer.expect(self._is_synchronising)
        self._reducer.follow(outputs)


def _unpickled(
    module: Module,
    config: BucketConfig,
    broadcast_buffers: bool,
    process_group: Any = None,
) -> DistributedDataParallel:
    return DistributedDataParallel(
        module,
        config=config,
        process_group=process_group,
        broadcast_buffers=broadcast_buffers,
        init_sync=False,
    )


@cache
def _class_around(module_class: type) -> type[DistributedDataParallel]:
    name = DistributedDataParallel.__name__
    return type(name, (DistributedDataParallel, module_class), {"__module__": __name__})


def _options(config: BucketConfig, broadcast_buffers: bool, init_sync: bool) -> dict[str, Any]:
    """Return what all ranks must have been given alike, by name."""
    return {
        "init_sync": init_sync,
        "broadcast_buffers": broadcast_buffers,
        "register_comm_hook": None,
        **config.agreed(),
    }


def _compare(
    options: dict[str, object],
    replicas: Replicas,
    with_model: bool,
    hook: Hook | None,
) -> None:
    model = replicas.told(with_all=False) if with_model else {}
    told = {**options, "register_comm_hook": name_of(hook), **model}
    agree(replicas.group, _NAME, told, advice=SAME_MODEL)


def _check_parameters(model: Module) -> None:
    if not trained_parameters(model):
        raise ConfigError(
            "the model has no parameter that wants gradients: there is nothing to average"
        )
    for name, parameter in all_parameters(model):
        if kind_of(parameter)[1] == "meta":
            raise ConfigError(
                f"parameter {name!r} is on the meta device and has no values: give the model "
                f"memory first, with model.to_empty(device=...); rank 0's values go to all ranks"
            )


def _check_devices(device_ids: object) -> None:
    if isinstance(device_ids, list | tuple) and len(device_ids) > 1:
        raise ConfigError(
            f"device_ids={list(device_ids)}: one process drives one device; start one for each"
        )
