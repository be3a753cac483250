"""Defines join(), by which a training goes on without restarts when workers are lost."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal

from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.comm.agreement import Attempt
from torsh_runtime.comm.default import default_group, has_default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.contract import COPIES
from torsh_runtime.elastic.hashes import Checks
from torsh_runtime.elastic.healing import Holding, check_same, hold
from torsh_runtime.elastic.parts_of_job import Parts
from torsh_runtime.elastic.rounds import Rounds
from torsh_runtime.elastic.torchs import torchs_default
from torsh_runtime.elastic.training import Training
from torsh_runtime.errors import ConfigError, TorshError
from torsh_runtime.job import Job
from torsh_runtime.job_group import JobGroup
from torsh_runtime.parallel.fsdp.node_storage import groups_of_nodes
from torsh_runtime.parallel.state import Contents


def join(
    *,
    seed: int = 0,
    check_every: int = 0,
    on_corruption: Literal["heal", "end"] = "heal",
    **parts: Any,
) -> Training:
    """Let this training go on without restarts when workers are lost.

    When a worker dies, torshrun replaces that worker alone. The others keep their processes, leave
    the step that they are in, and give the replacement their state when it calls join(), too. Then
    all repeat the step, with the same batch and random numbers. Each loss is a restart of
    `--max-restarts`. Without torshrun, and with one rank, it changes nothing.

    All ranks call it, once, before the first step, with the same state.

    Args:
        seed: With the step and the rank, the seed of the random numbers of each step.
        check_every: The number of steps after which ranks compare checksums of their parameters,
            optimizer states and other parts, to find bits that faulty hardware has changed. 0 is
            never.
        on_corruption: What follows if a minority of ranks has other bits: "heal" gives them the
            others' state and repeats the step, "end" raises StateCorrupted. Without a majority it
            is always raised.
        **parts: The model, wrapped in tr.DistributedDataParallel or tr.FullyShardedDataParallel or
            not at all, its optimizer, and whatever else changes from step to step and has a
            state_dict(): an ElasticSampler, a learning rate schedule.

    Returns:
        The training, whose steps() are to be taken.

    Raises:
        ConfigError: On all ranks, if their states differ; for parts that cannot be recovered, and
            when it is called a second time.
        CommError: If communication fails before all ranks have joined.

    Example:
        ```python
        job = tr.elastic.join(model=model, optimizer=optimizer, sampler=sampler)
        for step in job.steps(1000):
            with step:
                loss(model(step.next(sampler))).backward()
                step.commit()
        ```
    """
    group = default_group() if has_default_group() else torchs_default()
    is_replacement = group is not None and group.is_unmet
    try:
        return _join(group, seed, check_every, on_corruption, parts)
    except ConfigError as error:
        if not is_replacement:  # it may fit the others once all have started again
            _end_job_by(error, group)
        raise


def _join(
    group: ProcessGroup | None,
    seed: int,
    check_every: int,
    on_corruption: str,
    parts: Mapping[str, Any],
) -> Training:
    global _joined
    if COPIES in os.environ:
        raise ConfigError(
            "torshrun --recover is for scripts that do not call join(), which recovers by itself: "
            "leave --recover out"
        )
    if group is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("join() needs the ranks of this job: call tr.init_process_group() before")
    if _joined:
        raise ConfigError(
            f"{_who(group)}join() was called before in this process: call it once, with all parts"
        )
    with Attempt() as attempt:
        own = Parts(parts, group)
        _check_group(group)
        if isinstance(group, JobGroup):
            group.protect()
            own.check_replicas(group.replicas)
        checks = Checks(own, check_every, on_corruption)
    if group is not None and group.is_unmet:
        if attempt.error is not None:
            raise attempt.error
        training = Training(own, group, seed, _rounds(group), checks)
        training.replace()
    else:
        held = Holding(Contents(), [], attempt.error)
        if attempt.error is None:
            held = hold(own.alike, Ranks(group))
        if group is not None:
            check_same(group, held)
        if held.problem is not None:
            raise held.problem
        training = Training(own, group, seed, _rounds(group), checks)
        training.begin()
    _joined = True
    return training


_joined = False
"""True once this process has joined."""


def _end_job_by(error: ConfigError, group: ProcessGroup | None) -> None:
    """Have the agent end the job if this error ends the process, as it would after each restart."""
    rounds, before = _rounds(group), sys.excepthook
    ended_by = weakref.ref(error)  # its traceback has the model, which a program may do without
    if rounds is None:
        return

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if value is ended_by():
            with suppress(TorshError):  # then it ends as after any other exception
                rounds.refuse()
        before(kind, value, trace)

    sys.excepthook = hook


def _check_group(group: ProcessGroup | None) -> None:
    """Raise ConfigError for jobs that cannot go on without restarts."""
    if group is None:
        return
    if not isinstance(group, JobGroup):
        raise ConfigError("join() needs the group that tr.init_process_group() makes")
    job = group.job
    if not isinstance(job, Job) or not job.env.store_endpoint:
        return
    if group.backend != "native":
        raise ConfigError(
            f"the backend is {group.backend}, and join() recovers groups of backend native: leave "
            f"backend= out, or use tr.elastic.State"
        )
    made = group.session.count - len(groups_of_nodes(group))
    if job.turn != 1 or (made and not group.is_unmet):
        raise ConfigError(
            "groups were made of the default group, or that was made anew, and join() recovers "
            "the first default group alone: make no groups before, or use tr.elastic.State"
        )


def _rounds(group: ProcessGroup | None) -> Rounds | None:
    """Return the rounds of this worker; None if no agent replaces lost workers."""
    if not isinstance(group, JobGroup) or not isinstance(group.job, Job):
        return None
    env = group.job.env
    return Rounds(group, group.job) if env.store_endpoint and env.max_restarts else None


def _who(group: ProcessGroup | None) -> str:
    return "" if group is None else f"rank {group.rank}: "
