"""Methods of a sharded model that compute without a call of it."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.fsdp.wrapper import FullyShardedDataParallel


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

    @functools.wraps(method)
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
