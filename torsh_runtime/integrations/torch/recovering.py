"""Lets tr.elastic.join() protect a job whose default group is one of torch.distributed."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from torsh_runtime.backends.base import Backend
from torsh_runtime.comm.timeouts import Timeout
from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.torch import replicas
from torsh_runtime.integrations.torch.group import TorshProcessGroup
from torsh_runtime.job import Job, LateJob
from torsh_runtime.job_group import JobGroup
from torsh_runtime.launchers import completed
from torsh_runtime.store.user import Store


class RecoveringGroup(JobGroup):
    """Represents torch's default group for join(): what it is configured to, torch's group is, too.

    Both have one backend, and with it one order of operations.
    """

    def __init__(self, group: TorshProcessGroup, job: Job | LateJob) -> None:
        """Take the backend of torch's group."""
        self._torchs = group
        super().__init__(group.own_backend, group.own_timeout, job)

    def protect(self) -> None:
        """Refuse what torch's group could not do after the loss of a worker."""
        if len(dist.distributed_c10d._world.pg_map) > 1:
            raise ConfigError(
                "torch.distributed has groups beside the default one, and join() recovers that "
                "alone: make no groups, or use tr.elastic.State"
            )
        replicas.protect(self._torchs)
        self._torchs.is_alone = replicas.can_be_lost(self.job.env)

    def replicas(self) -> list[Any]:
        """Return torch's DistributedDataParallel of this group, too."""
        return [*super().replicas(), *replicas.present(self._torchs)]

    def problem_of(self, model: Any) -> str:
        """Return why a model's DistributedDataParallel of torch's cannot be recovered, or ""."""
        if model.process_group is not self._torchs:
            return "its group is not the default one: leave process_group and device_mesh out"
        return replicas.problem_of(model)

    def configure(
        self,
        store_addr: Store | str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        timeout: Timeout = None,
    ) -> None:
        """Configure torch's group, too, and give torch's DistributedDataParallel new reducers."""
        super().configure(store_addr, replica_id, rank, world_size, quorum_id, timeout)
        ranks: Any = dist.distributed_c10d._world.pg_group_ranks
        ranks[self._torchs] = {each: each for each in range(world_size)}
        for model in replicas.present(self._torchs):
            replicas.begin_anew(model)

    def _put(self, backend: Backend) -> None:
        super()._put(backend)
        self._torchs.take(backend)


def recovering_group() -> RecoveringGroup:
    """Return the default group of torch.distributed for join(), after refusing other groups.

    Raises ConfigError for backends other than "torsh", ranks that torshrun has not given, and if
    the program has made further groups.
    """
    world: Any = dist.group.WORLD
    if not isinstance(world, TorshProcessGroup) or len(world._device_types) > 1:
        raise ConfigError(
            f"the default group of torch.distributed is of backend {dist.get_backend()!r}, and "
            f"join() recovers CPU tensors' groups of backend 'torsh': call "
            f"torch.distributed.init_process_group('torsh'), or start the script with torshrun "
            f"--torch-backend torsh"
        )
    env = WorkerEnv.from_environ(completed(os.environ))
    if (env.rank, env.world_size) != (world.rank(), world.size()):
        raise ConfigError(
            f"init_process_group() was given rank {world.rank()} of {world.size()}, and torshrun "
            f"started rank {env.rank} of {env.world_size}: leave rank and world_size out"
        )
    has_agent = env.store_endpoint and env.world_size > 1
    timeout = world.own_timeout
    return RecoveringGroup(world, Job.connect(env, timeout) if has_agent else LateJob(env, timeout))
