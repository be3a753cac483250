"""Names what protects the default group against the loss of workers: torshrun --recover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torsh_runtime.contract import WorkerEnv
    from torsh_runtime.integrations.torch.group import TorshProcessGroup


class Protector(Protocol):
    """Protects a default group. The module torsh_runtime.recover is one."""

    def protect(self, group: TorshProcessGroup, env: WorkerEnv) -> None:
        """Protect the first default group of this process."""

    def give_up(self, reason: str) -> None:
        """Protect nothing from now on, for this reason."""


protector: Protector | None = None
"""Protector of the default group of this process; None without --recover."""
