"""Lets scripts of torch.distributed that know nothing of it go on when a worker is killed.

Nothing of this is imported without torshrun --recover.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torsh_runtime.contract import WorkerEnv
    from torsh_runtime.integrations.torch.group import TorshProcessGroup
    from torsh_runtime.recover.protecting import Protection

_protection: Protection | None = None


def protect(group: TorshProcessGroup, env: WorkerEnv) -> None:
    """Protect the first default group of this process. Raises OSError, StoreError."""
    global _protection
    if _protection is None and group.size() > 1 and env.store_endpoint and env.status_file:
        from torsh_runtime.recover.protecting import Protection

        _protection = Protection(group, env)


def give_up(reason: str) -> None:
    """Protect nothing from now on, for this reason."""
    if _protection is not None:
        _protection.give_up(reason)
