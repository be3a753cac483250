"""Where a worker's output goes: to the console, to its files, or both."""

from __future__ import annotations

from dataclasses import dataclass

from torsh_runtime.contract import WorkerEnv
from torshrun.config.job import OutputConfig, StreamRule, Streams


@dataclass(frozen=True, slots=True)
class Route:
    """What becomes of one stream of one worker."""

    shown: bool
    """Whether the console shows it."""
    kept: bool
    """Whether a file keeps it."""


def routes(output: OutputConfig, place: WorkerEnv) -> tuple[Route, Route]:
    """The routes of this worker's stdout and stderr."""
    where = (place.rank, place.local_rank)
    redirected, teed = output.redirects.streams(*where), output.tee.streams(*where)
    kept = keeps(output, *where)
    visible = _is_visible(output, *where)
    return (
        Route(visible and (teed.stdout or not redirected.stdout), kept.stdout),
        Route(visible and (teed.stderr or not redirected.stderr), kept.stderr),
    )


def keeps(output: OutputConfig, rank: int, local_rank: int) -> Streams:
    """Which of this worker's streams are kept in stdout.log and stderr.log."""
    if _keeps_everything(output):
        return Streams(stdout=True, stderr=True)
    redirected = output.redirects.streams(rank, local_rank)
    teed = output.tee.streams(rank, local_rank)
    return Streams(stdout=redirected.stdout or teed.stdout, stderr=redirected.stderr or teed.stderr)


def needs_folder(output: OutputConfig) -> bool:
    """Whether something may have to be kept, so that the job needs a log directory."""
    ruled = (output.redirects, output.tee) != (StreamRule(), StreamRule())
    filtered = bool(output.stdout_filters or output.stderr_filters)
    return output.log_dir is not None or ruled or filtered


def _keeps_everything(output: OutputConfig) -> bool:
    return output.log_dir is not None and output.redirects == output.tee == StreamRule()


def _is_visible(output: OutputConfig, rank: int, local_rank: int) -> bool:
    return (output.ranks is None or rank in output.ranks) and (
        output.local_ranks is None or local_rank in output.local_ranks
    )
