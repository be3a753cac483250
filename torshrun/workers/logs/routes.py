"""Where a worker's output goes: to the console, to its files, or both."""

from __future__ import annotations

from torsh_runtime.contract import WorkerEnv
from torshrun.config.job import OutputConfig, StreamRule, Streams


def shown(output: OutputConfig, place: WorkerEnv) -> Streams:
    """Which of this worker's streams the console shows."""
    if output.ranks_filter is not None and place.rank not in output.ranks_filter:
        return Streams.NONE
    if output.local_ranks_filter is not None and place.local_rank not in output.local_ranks_filter:
        return Streams.NONE
    redirected, teed = _rules(output, place)
    return ~redirected | teed


def kept(output: OutputConfig, place: WorkerEnv) -> Streams:
    """Which of this worker's streams are kept in stdout.log and stderr.log."""
    if output.log_dir is not None and output.redirects == output.tee == StreamRule():
        return Streams.BOTH
    redirected, teed = _rules(output, place)
    return redirected | teed


def needs_folder(output: OutputConfig) -> bool:
    """Whether something may have to be kept, so that the job needs a log directory."""
    ruled = (output.redirects, output.tee) != (StreamRule(), StreamRule())
    filtered = bool(output.duplicate_stdout_filters or output.duplicate_stderr_filters)
    return output.log_dir is not None or ruled or filtered


def _rules(output: OutputConfig, place: WorkerEnv) -> tuple[Streams, Streams]:
    ranks = (place.rank, place.local_rank)
    return output.redirects.streams(*ranks), output.tee.streams(*ranks)
