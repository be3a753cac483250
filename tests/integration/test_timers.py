"""torch's own file timers under torshrun."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import marked, soon

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="uses torch's timers"),
]

SCRIPT = """
import os, time
from torch.distributed.elastic import timer

timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=600):
    print("in time", flush=True)
open("up" + os.environ["RANK"], "w").close()
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists("up0"):
        time.sleep(0.1)
    with timer.expires(after=0.5):
        time.sleep(600)
"""


@pytest.mark.parametrize("options", [[], ["--pid-namespace"]])
def test_a_worker_whose_timer_runs_out_is_killed_and_named(
    tmp_path: Path, options: list[str]
) -> None:
    if options and os.geteuid() != 0:
        pytest.skip("needs root, for a pid namespace")
    (tmp_path / "train.py").write_text(SCRIPT)
    mark = os.urandom(8).hex()
    argv = ["--nproc-per-node", "2", "--max-restarts", "1", *options, "train.py"]
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "torshrun", *argv],
        cwd=tmp_path,
        env={**os.environ, "TORCHELASTIC_ENABLE_FILE_TIMER": "1", "MARK": mark},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("in time") == 4
    assert "torshrun: rank 1 is killed: its timer " in ended.stderr
    assert "rank 1 failed first: hung, then killed by SIGKILL" in ended.stderr
    assert soon(lambda: not marked(mark)), marked(mark)
