"""Scripts written for several ranks, run by one: nothing in them has to change."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.util import find_spec

import pytest
from support.launcher import Launcher

EVERYTHING = """
import numpy as np
import torsh_runtime as tr

tr.init_process_group(BACKEND)
print(tr.get_backend())
for name in NAMES:
    group = tr.new_group([0], backend=name)
    values = np.arange(4.0)
    tr.all_reduce(values, tr.ReduceOp.AVG, group)
    tr.broadcast(values, 0, group)
    gathered = np.empty((1, 4))
    tr.all_gather_into_tensor(gathered, values, group)
    objects = [None]
    tr.all_gather_object(objects, {"rank": tr.get_rank()}, group)
    assert gathered.tolist() == [[0.0, 1.0, 2.0, 3.0]]
    assert objects == [{"rank": 0}]
    print(tr.get_backend(group))
tr.destroy_process_group()
"""

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
needs_mpi = pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
BACKENDS = [
    pytest.param(None, "single", id="none"),
    ("native", "native"),
    ("single", "single"),
    pytest.param("gloo", "gloo", marks=[pytest.mark.torch, needs_torch]),
    pytest.param("mpi", "mpi", marks=[pytest.mark.mpi, needs_mpi]),
]


def script(backend: str | None, *names: str) -> str:
    return EVERYTHING.replace("BACKEND", repr(backend)).replace("NAMES", repr(names))


def run_alone(text: str, port: int) -> str:
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(port)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", text],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **place, "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("backend", "name"), BACKENDS)
def test_every_backend_by_hand_where_another_job_has_the_port(
    backend: str | None, name: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = run_alone(script(backend, name, "native"), taken.getsockname()[1])
    assert said.split() == [name, name, "native"]


@pytest.mark.torch
@needs_torch
def test_a_group_over_another_library_in_a_job_of_one(torshrun: Launcher) -> None:
    said = run_alone(script(None, "gloo"), 29500)
    assert said.split() == ["single", "gloo"]
    torshrun.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torshrun.script(script("native", "gloo", "single"))
    code, out, err = torshrun.run("--nproc-per-node", "1", "train.py")
    assert code == 0, err
    assert [line.split()[-1] for line in out.splitlines()] == ["native", "gloo", "single"]


def test_the_store_of_a_round_serves_one_rank_and_several(torshrun: Launcher) -> None:
    torshrun.script("""
        import torsh_runtime as tr
        for turn in range(2):
            tr.init_process_group(timeout=30)
            store = tr.get_store()
            assert store.num_keys() == 0
            tr.barrier()
            total = store.add("ranks", 1)
            store.barrier("all", tr.get_world_size())
            print(store.get("ranks").decode())
            tr.barrier()
            tr.destroy_process_group()
    """)
    for ranks in ("1", "2"):
        code, out, err = torshrun.run("--nproc-per-node", ranks, "train.py")
        assert code == 0, err
        assert {line.split()[-1] for line in out.splitlines()} == {ranks}
