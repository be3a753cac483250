"""The agent through which this process takes part in remote calls."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torsh_runtime.rpc.failures import CallRefused

if TYPE_CHECKING:
    from torsh_runtime.rpc.agent import Agent

_current: Agent | None = None


def current_agent() -> Agent:
    """Return this process's agent. Raises CallRefused if it takes no part in calls."""
    if _current is None:
        raise CallRefused("this process takes no part in remote calls: call init_rpc() first")
    return _current


def has_agent() -> bool:
    return _current is not None


def set_agent(agent: Agent | None) -> None:
    global _current
    _current = agent


def _in_fork() -> None:
    """Drop the agent in a forked child, which is no worker and must not keep others from seeing
    that its parent has ended. The child may become a worker by an init_rpc() of its own."""
    if _current is not None:
        _current.close_in_fork()
        set_agent(None)


os.register_at_fork(after_in_child=_in_fork)
