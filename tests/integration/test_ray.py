"""Ranks in the workers and actors of a real Ray cluster of two nodes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from support import placed_ranks

pytest.importorskip("ray", reason="needs Ray (the extra ray)")


@pytest.mark.slow
def test_ranks_on_ray(tmp_path: Path) -> None:
    search = "optuna" if find_spec("optuna") else "random"
    out = placed_ranks.run("ray_ranks.py", tmp_path, 580, search)
    found = dict(line.split(" ", 1) for line in out.splitlines() if " " in line)
    of_all = "[[3.0, 1.0, 1.0, 2.0, 1.0], [3.0, 1.0, 1.0, 4.0, 1.0]]"
    assert (found["imperative"], found["made"]) == (of_all, of_all)
    assert found["tensor"] == "499500.0"
    assert found["nccl"].startswith("ConfigError: backend is 'nccl'; this module has 'torsh'")
    assert found["few"].startswith("ConfigError: 3 workers of 1 CPU each were asked for, and the")
    assert "places for 2, on 2 node(s)" in found["few"]
    assert found["trained"] == "{'step': 4, 'total': 2.0}"
    assert found["tuned"] == "2 0 True"
    notes = sorted((tmp_path / "notes").read_text().splitlines())
    assert notes == [
        "PeerLost 1",
        "rank 0 of 2, node 0, restart 0, is resumed False",
        "rank 0 of 2, node 0, restart 1, is resumed True",
        "rank 1 of 2, node 1, restart 0, is resumed False",
        "rank 1 of 2, node 1, restart 1, is resumed True",
    ]
