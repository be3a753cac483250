"""Provides weights for readers that come and go.

A worker publishes versions of a state, which is a nested dict of arrays, and any number of others
read them. Within a node there is one copy of a version, in shared memory that the writer has made
and that readers map; a reader of another node fetches the pieces that it needs by calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from torsh_runtime.rpc.current import current_agent
from torsh_runtime.rpc.publishing.subscription import Subscription
from torsh_runtime.rpc.publishing.weights import Weights

__all__ = ["Subscription", "Weights", "publish", "subscribe"]


def publish(
    name: str, state: Mapping[str, Any] | Any, timeout: float | timedelta | None = None
) -> int:
    """Publish a version of a state for the subscribers of this name, and return its number.

    Numbers begin at 1 and ascend, also from one writer of a name to the next, with a gap between
    the two. A name has one writer at a time. Readers cost the writer nothing, whether they come,
    read, or die. Only the memory of a version that a reader still holds cannot be used again: a
    further slot is then made, up to 8. When all are held publish() waits.

    Args:
        name: The name.
        state: A dict, nested as it likes, of numpy, cupy and jax arrays, tensors of torch and plain
            values; or a model of torch or tr.nn, which stands for its state_dict(). The arrays are
            copied and may be changed as soon as the call returns. Of a model that is sharded over
            ranks publish the state_dict() of the whole, on one rank.
        timeout: Seconds or a timedelta to wait for a slot, 0 for no limit; None is
            RpcBackendOptions.rpc_timeout.

    Raises:
        CommTimeout: If readers hold all slots; it names them.
        ConfigError: For what cannot be published, or a name that another worker publishes.
        CallRefused: Without init_rpc().

    Example:
        ```python
        for step in range(steps):
            train(step)
            tr.rpc.publish("policy", model)
        ```
    """
    return current_agent().publications().publish(name, state, timeout)


def subscribe(name: str) -> Subscription:
    """Follow what is published under this name, now or later, and by whoever publishes it.

    Args:
        name: The name.

    Returns:
        The subscription, from which to take versions.

    Raises:
        CallRefused: Without init_rpc().

    Example:
        ```python
        policy = tr.rpc.subscribe("policy")
        with policy.wait() as weights:
            weights.copy_to(model)
        ```
    """
    return current_agent().publications().subscribe(name)
