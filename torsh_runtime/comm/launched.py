"""Reads what the launcher has set in this process's environment."""

from __future__ import annotations

import os

from torsh_runtime.errors import ConfigError
from torsh_runtime.launchers import place


def is_torchelastic_launched() -> bool:
    """Return whether an elastic launcher, torshrun or torchrun, has started this process.

    Example:
        ```python
        if tr.is_torchelastic_launched():
            tr.init_process_group()
        ```
    """
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return this process's rank on its node, as set by torshrun, torchrun, mpiexec or srun.

    Args:
        fallback_rank: The rank to return if none of these has started this process.

    Raises:
        ConfigError: If there is no rank and `fallback_rank` is None, or if the rank is not an
            integer.

    Example:
        ```python
        device = torch.device("cuda", tr.get_node_local_rank(fallback_rank=0))
        ```
    """
    text = {**place(os.environ), **os.environ}.get("LOCAL_RANK")
    if text is None and fallback_rank is None:
        raise ConfigError(
            "LOCAL_RANK is not set: start the script with torshrun, torchrun, mpiexec or srun, or "
            "give a fallback_rank"
        )
    try:
        return int(text if text is not None else fallback_rank)  # type: ignore[arg-type]
    except ValueError:
        raise ConfigError(f"LOCAL_RANK={text!r} is not an integer") from None
