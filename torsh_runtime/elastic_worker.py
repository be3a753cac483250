"""Runs the function of an elastic.ElasticAgent: python -m torsh_runtime.elastic_worker JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torsh_runtime.bootstrap import destroy_process_group, init_process_group
from torsh_runtime.checkpoint.checkpointer import Checkpointer
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.comm.groups import is_initialized
from torsh_runtime.elastic.function import NamedFunction
from torsh_runtime.errors import TorshError


def run_here(function: Callable[..., Any], checkpoint_dir: Path | None) -> Any:
    """Call the function in a process group and return its result.

    If there is a `checkpoint_dir`, pass it a Checkpointer for that. Creates the default group, and
    destroys it afterwards, unless it already exists.
    """
    is_ours = not is_initialized()
    if is_ours:
        init_process_group()
    if checkpoint_dir is None:
        result = function()
    else:
        with Checkpointer(checkpoint_dir) as checkpointer:
            result = function(checkpointer)
    if is_ours and is_initialized():
        destroy_process_group()
    return result


def main() -> None:
    """Run the function that ElasticAgent requested, and save rank 0's result for it."""
    told = json.loads(sys.argv[1])
    sys.path[:] = told["path"]
    function = NamedFunction(told["module"], told["is_path"], told["name"]).find()
    directory = told["checkpoint_dir"]
    result = run_here(function, None if directory is None else Path(directory))
    place = Path(told["results"])
    if os.environ["RANK"] == "0" and place.exists():  # the agent is on this machine
        _leave(result, place)


def _leave(result: Any, place: Path) -> None:
    try:
        Checkpointer(place, process_group=Ranks(None)).save(0, {"result": result})
    except TorshError as error:  # failing now would restart the function
        (place / "refused").write_text(str(error))


if __name__ == "__main__":
    main()
