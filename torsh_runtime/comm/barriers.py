"""Provides the barriers, as a method of a group and as functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torsh_runtime.backends.work import Work
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.members import Members
from torsh_runtime.comm.timeouts import Timeout, seconds

if TYPE_CHECKING:
    from torsh_runtime.comm.group import ProcessGroup


class Barriers(Members):
    """Provides the barrier of a group; see ProcessGroup."""

    _timeout: float

    def barrier(self, async_op: bool = False, timeout: float | None = None) -> Work:
        """Wait until every rank has called it.

        Args:
            async_op: Whether to return a Work at once, which is done when every rank has come.
            timeout: Seconds that this may take; None is the group's timeout.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            tr.group.WORLD.barrier(timeout=600)  # seconds
            ```
        """
        seconds = self._timeout if timeout is None else timeout
        return self._backend.barrier(seconds, async_op)


def barrier(
    group: ProcessGroup | None = None,
    async_op: bool = False,
    device_ids: object = None,
    timeout: Timeout = None,
) -> Work | None:
    """Wait until every rank of the group has called it.

    Args:
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once, which is done when every rank has come.
        device_ids: For programs written for torch; makes no difference.
        timeout: Seconds or a timedelta that this may take, at most 30 days; None is the group's
            timeout.

    Returns:
        With `async_op` a Work; otherwise None, when every rank has come.

    Raises:
        ConfigError: If there is no default group, if this process is not in `group`, or if
            `timeout` is no positive number of seconds up to 30 days.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        if tr.get_rank() == 0:
            download(path)
        tr.barrier(timeout=600)  # seconds
        ```
    """
    group = group or default_group()
    work = group.barrier(async_op, seconds(timeout, group.timeout))
    return work if async_op else None


def monitored_barrier(
    group: ProcessGroup | None = None, timeout: Timeout = None, wait_all_ranks: bool = False
) -> None:
    """Wait until every rank has called it; the error names the ranks that did not come.

    Args:
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta that this may take, at most 30 days; None is the group's
            timeout.
        wait_all_ranks: For programs written for torch, where False names one missing rank only.
            Here all are always named.

    Raises:
        ConfigError: As in `barrier`.
        CommTimeout: If ranks did not come in time; on every rank, with these in `missing`.
        CommError: If the barrier fails in a different way. The group cannot be used afterwards.

    Example:
        ```python
        try:
            tr.monitored_barrier(timeout=60)
        except tr.CommTimeout as error:
            print("missing ranks:", error.missing)
            raise
        ```
    """
    group = group or default_group()
    group.barrier(timeout=seconds(timeout, group.timeout))
