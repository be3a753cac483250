"""What ranks of real jobs wait for when they hang: messages, locks, by name."""

from __future__ import annotations

import sys

from support.launcher import Launcher

NATIVE = """
import numpy as np
import torsh_runtime as tr
tr.init_process_group()
"""


def hung(torshrun: Launcher, script: str) -> str:
    """Stderr of a job that hangs."""
    options = "--nproc-per-node=3", "--hang-timeout=1.5", "--shutdown-timeout=5"
    job = torshrun.start(*options, torshrun.script(script))
    _, err = job.communicate(timeout=100)
    assert job.returncode == 80, err
    return err


def test_a_message_is_named_with_its_peer_its_tag_and_the_one_that_came(torshrun: Launcher) -> None:
    script = """
if rank == 0: tr.recv(np.ones(4), 1, tag=7)
if rank == 1: tr.send(np.ones(4), 0, tag=8)
tr.barrier()
"""
    err = hung(torshrun, NATIVE + script)
    assert "rank 0: waits in recv(src=1, tag=7) (rank 1, which has sent one with tag=8)" in err
    assert "undecided between rank 0 and rank 1: mismatch" in err
    assert "rank 0 waited in recv(src=1, tag=7) at train.py:" in err
    assert "for rank 1, which had sent a message with tag=8, and waited in barrier()" in err
    assert "Others (rank 2) only wait for them." in err


def test_a_message_of_a_sub_group_is_named_by_ranks_of_the_job(torshrun: Launcher) -> None:
    script = """
group = tr.new_group([1, 2])
if rank == 2: tr.irecv(np.ones(4), 1, group, tag=3).wait()
tr.barrier()
"""
    err = hung(torshrun, NATIVE + script)
    assert "rank 2 waited in recv(src=1, tag=3) at train.py:" in err


def test_a_lock_file_is_named_with_who_holds_it(torshrun: Launcher) -> None:
    script = f"""
import fcntl, subprocess
lock = open("build.lock", "w")
if rank == 2:
    holds = "import fcntl; f = open('build.lock', 'w'); fcntl.flock(f, 2); print(); input()"
    pipe = subprocess.PIPE
    holder = subprocess.Popen([{sys.executable!r}, "-uc", holds], stdin=pipe, stdout=pipe)
    holder.stdout.readline()
    fcntl.flock(lock, fcntl.LOCK_EX)
tr.barrier()
"""
    err = hung(torshrun, NATIVE + script)
    assert "rank 2 made no progress, and waited for the lock of" in err
    assert "build.lock, which python" in err
    assert "Meanwhile ranks 0-1 waited in barrier() (operation 1) for it." in err
    assert "deadlock" not in err
