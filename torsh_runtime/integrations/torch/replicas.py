"""Lets torch's DistributedDataParallel go on after the loss of a worker.

Its reducer is in the midst of something then, and its buckets are in the order of earlier backward
passes, which a replacement has not seen. So all ranks make new reducers, on the same objects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import signature
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from torsh_runtime.backends.reconfiguration import Unmet
from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.torch.group import TorshProcessGroup

Replicas: Any = torch.nn.parallel.DistributedDataParallel
_REFUSED = (
    "register_comm_hook",
    "_register_comm_hook",
    "_register_builtin_comm_hook",
    "_register_buffer_comm_hook",
    "_register_fused_optim",
    "join_hook",
)
"""Methods whose effects a new reducer would lack."""
_present: WeakKeyDictionary[Any, None] = WeakKeyDictionary()
"""In the order in which they were made, which is that of their hooks on shared parameters."""


def can_be_lost(env: WorkerEnv) -> bool:
    """Return whether an agent may replace workers of this job while others go on."""
    return bool(env.store_endpoint and env.max_restarts) and env.world_size > 1


@functools.cache
def watch() -> None:
    """Note each DistributedDataParallel, and let replacements make theirs without communication."""
    Replicas.__init__ = _without_peers(Replicas.__init__)
    Replicas._ddp_init_helper = _noted(Replicas._ddp_init_helper)


def present(group: TorshProcessGroup) -> list[Any]:
    """Return all that average over the group, in the order in which the program made them."""
    return [each for each in _present if each.process_group is group]


def problem_of(model: Any) -> str:
    """Return why this DistributedDataParallel cannot go on after a loss; "" if it can."""
    if model._delay_all_reduce_params:
        return "it averages gradients of delay_all_reduce_named_params by itself"
    hook = model._get_ddp_logging_data().get("comm_hook")
    if model._comm_hooks or hook or hasattr(model, "buffer_hook"):
        return "its gradients or buffers go through a communication hook"
    if model.mixed_precision is not None:
        return "mixed_precision= averages gradients by a communication hook"
    if model._use_python_reducer:
        return "torch.compile() averages its gradients (python_reducer)"
    if model._join_config.enable:
        return "it is within join() of torch's, for ranks with unequal numbers of batches"
    return ""


def protect(group: TorshProcessGroup) -> None:
    """Refuse what a new reducer could not do, now and from now on. Raises ConfigError."""
    for model in present(group):
        if problem := problem_of(model):
            raise ConfigError(
                f"tr.elastic.join() cannot recover the DistributedDataParallel of a "
                f"{type(model.module).__name__}: {problem}. Leave that out, or use "
                f"tr.elastic.State, which restarts all workers after a loss"
            )
        for name in _REFUSED:
            if hasattr(model, name):
                setattr(model, name, functools.partial(_refuse, name))


def begin_anew(model: Any) -> None:
    """Make the reducer anew, as the constructor does, and drop the gradients.

    The former one may expect gradients of a backward pass that has failed.
    """
    model._remove_autograd_hooks()
    del model.reducer, model.logger
    for parameter in model.module.parameters():
        parameter.grad = None  # may be a view of the former reducer's bucket
    model._has_rebuilt_buckets, model.require_forward_param_sync = False, True
    parameters, sparse = model._build_params_for_reducer()
    names = model._build_debug_param_to_name_mapping(parameters)
    model._ddp_init_helper(parameters, sparse, names, model.static_graph)
    if model.static_graph:
        model._static_graph_delay_allreduce_enqueued = False
        model.reducer._set_static_graph()
        model.logger._set_static_graph()


def _refuse(name: str, *_: Any, **__: Any) -> None:
    raise ConfigError(
        f"{name}() of a DistributedDataParallel that tr.elastic.join() protects would be without "
        f"effect after the loss of a worker: leave it out, or use tr.elastic.State"
    )


def _noted(theirs: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(theirs)
    def make_reducer(self: Any, *given: Any, **named: Any) -> None:
        """Call torch's own, and note the object."""
        theirs(self, *given, **named)
        _present.setdefault(self)

    return make_reducer


def _without_peers(theirs: Callable[..., None]) -> Callable[..., None]:
    names = signature(theirs)

    @functools.wraps(theirs)
    def wrap(self: Any, *given: Any, **named: Any) -> None:
        """Call torch's own. A replacement gets the others' values when it joins them."""
        told = names.bind(self, *given, **named)
        group = told.arguments.get("process_group")
        mesh = told.arguments.get("device_mesh")
        if mesh is not None:
            group = mesh.get_group()
        if "init_sync" in names.parameters and is_unmet(group or dist.group.WORLD):
            told.arguments["init_sync"] = False
        theirs(*told.args, **told.kwargs)

    return wrap


def is_unmet(group: Any) -> bool:
    """Return whether the group is a replacement's, which has not met the others yet."""
    return isinstance(group, TorshProcessGroup) and isinstance(group.own_backend, Unmet)
