"""Reports when nodes may be added to the job."""

from __future__ import annotations

import math
import os

from torsh_runtime.contract import CHECKPOINT_KEY, WorkerEnv
from torsh_runtime.errors import ConfigError

_PATIENCE = 10.0
"""Seconds that the agent's store may take to answer."""


def checkpoint_saved(window: float = 2.0) -> None:
    """Report that all work so far is in a checkpoint, so that this is a good time to add nodes.

    Adding nodes starts all workers again. That happens as soon as there are any; but once this has
    been called in a round, only within `window` seconds after a call. So a job that calls it after
    it has loaded a checkpoint and after each one that it saves loses `window` seconds of work when
    it grows. Nodes that fail or go do not wait for it.

    Rank 0's call counts; on other ranks, and without torshrun, it does nothing.

    Args:
        window: Seconds, which should be 1 or more, because the agents have to hear of it.

    Raises:
        ConfigError: If `window` is no number of seconds.
        StoreError: If the agent does not answer within 10 seconds.

    Example:
        ```python
        checkpointer.save(step, state)
        tr.elastic.checkpoint_saved()
        ```
    """
    if not 0 <= window < math.inf:
        raise ConfigError(f"window must be a number of seconds >= 0, not {window!r}")
    if not os.environ.get("TORSH_STORE_ENDPOINT"):
        return
    env = WorkerEnv.from_environ(os.environ)
    if env.rank == 0:
        _put(env, str(float(window)).encode())


def _put(env: WorkerEnv, value: bytes) -> None:
    from torsh_runtime.store.client import StoreClient

    secret = bytes.fromhex(env.secret)
    with StoreClient.connect(env.store_endpoint, secret, _PATIENCE, _PATIENCE) as store:
        store.put(CHECKPOINT_KEY, value)
