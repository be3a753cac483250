"""Ranks on the workers of a real Dask cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import placed_ranks
from support.blocks import shown

pytest.importorskip("distributed", reason="needs Dask (the extra dask)")


@pytest.mark.slow
def test_ranks_on_dask_workers(tmp_path: Path) -> None:
    out = placed_ranks.run("dask_ranks.py", tmp_path, 300)
    found = dict(line.split(" ", 1) for line in out.splitlines())
    assert found["sums"] == "[(0, 6.0), (1, 6.0)]"
    assert found["again"] == "[(0, 1.0)]"
    assert found["compute"] == "[] [3, 5] 2"
    assert found["torch"] == "[2.0, 2.0] [2.0, 2.0]"
    assert found["few"].startswith("ConfigError: 3 Dask workers were asked for and 2 are there")
    assert found["own"] == "KeyError: 'of rank 1'"
    assert found["busy"].startswith(
        "CommTimeout: the start of all ranks timed out after 0.5 s waiting for rank(s) 1, "
        "on tcp://127.0.0.1:"
    )
    assert found["grown"] == found["early"] == "[3, 3, 3]"
    assert found["lost"] in (
        "[(0, 2, '1'), (1, 2, '1')]",
        "[(0, 3, '1'), (1, 3, '1'), (2, 3, '1')]",
    )
    assert found["cancelled"].startswith("WorkerFailed: Dask has cancelled a rank's task, _rank-")
    assert found["environment"] == "[None]"


@pytest.mark.slow
def test_the_guide(tmp_path: Path) -> None:
    (tmp_path / "squares.py").write_text(shown("docs/dask.md", "# squares.py"))
    done = subprocess.run(
        [sys.executable, "squares.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    first, second = done.stdout.splitlines()
    losses = [float(loss) for loss in re.findall(r"\d\.\d+e-\d\d", second)]
    assert (first.count("("), len(losses)) == (2, 4), done.stderr
    assert max(losses) < 1e-6
