"""A program that trains by ElasticAgent. Its argument says how."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import torsh_runtime as tr


def train(checkpointer: Any) -> Any:
    """Rank 1 dies once, behind a commit."""
    state = tr.elastic.State(step=0, total=np.zeros(2), checkpointer=checkpointer)
    state.restore()
    began = state.step
    while state.step < 6:
        state.total = state.total + 1
        state.step += 1
        state.commit()
        if state.step == 4 and began == 0 and tr.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    checkpointer.save(state.step, {"step": state.step, "total": state.total}, async_op=True)
    return {"began": began, "total": state.total, "ranks": tr.get_world_size(), 5: (b"x", None)}


def fail() -> None:
    if tr.get_rank() == 1:
        raise ValueError("the weights are heavy")
    tr.barrier()


def returns_a_thing() -> Any:
    return object()


def ranks() -> int:
    return tr.get_world_size()


def sleep() -> None:
    Path(sys.argv[2] if len(sys.argv) > 2 else os.environ["TELLS"]).write_text(str(os.getpid()))
    time.sleep(600)


def main() -> None:
    agent = tr.elastic.ElasticAgent(max_restarts=1, options=["--restart-backoff=0"])
    agent = agent.min_workers(2).max_workers(2)
    how = sys.argv[1]
    if how == "meet":
        others = tr.elastic.ElasticAgent(
            min_workers=2, max_workers=2, workers_per_node=1, rdzv_endpoint=sys.argv[2]
        )
        print("result", others.run(ranks))
    elif how == "ranks":
        print("result", agent.run(ranks))
    elif how == "train":
        print("result", agent.checkpoint_dir(sys.argv[2]).run(train))
    else:
        functions = {"fail": fail, "thing": returns_a_thing, "sleep": sleep}
        try:
            agent.max_restarts(0).run(functions[how])
        except tr.TorshError as error:
            print("raised", type(error).__name__, str(error).splitlines()[-1])


if __name__ == "__main__":
    main()
