"""Debuggers reach workers: breakpoints of VS Code and PyCharm, and servers of their own."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import debugpy
import pytest
from support.dap import DebugClient, line_with
from support.launcher import Launcher
from support.ports import free_port

from torshrun.health.stacks import find_program

DEBUGPY = (sys.executable, "-Xfrozen_modules=off", "-m", "debugpy")
PYDEVD = Path(debugpy.__file__).parent / "_vendored/pydevd/pydevd.py"
FAILS_ONCE = """
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def step():
    return f"{attempt}.{rank}"  # here
print(step(), sys.argv[1:])
open(f"{attempt}.{rank}", "w").close()
while not all(os.path.exists(f"{attempt}.{each}") for each in range(2)):
    time.sleep(0.01)  # the first one that fails ends the other
if attempt == 0:
    sys.exit(3)
"""
BOTH_TWICE = ["'0.0'", "'0.1'", "'1.0'", "'1.1'"]


@contextmanager
def debugging(script: str, expression: str) -> Iterator[DebugClient]:
    with DebugClient(script, line_with(script, "# here"), expression) as client:
        yield client


def test_a_debugger_that_runs_torshrun_stops_in_each_worker(torshrun: Launcher) -> None:
    script, port = torshrun.script(FAILS_ONCE), free_port()
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--hang-timeout", "1")
    within = (*DEBUGPY, "--listen", f"{port}", "--wait-for-client", "-m", "torshrun")
    job = torshrun.start(*options, "--preload", "auto", script, "x", command=within)
    with debugging(script, "f'{attempt}.{rank}'") as client:
        client.debug(port)
        client.wait_for_stops(4)
        out, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert sorted(client.stops) == BOTH_TWICE
    assert "[1] 1.1 ['x']" in out.splitlines()
    assert "--hang-timeout has no effect: torshrun runs in a debugger" in err
    assert "--preload has no effect: torshrun runs in a debugger" in err
    assert "Debugger warning" not in err


def test_what_launch_json_says_is_done(torshrun: Launcher) -> None:
    script, port = torshrun.script(FAILS_ONCE), free_port()
    adapter = subprocess.Popen(
        [sys.executable, "-m", "debugpy.adapter", "--port", f"{port}"], env=torshrun.environ
    )
    try:
        with debugging(script, "f'{attempt}.{rank}'") as client:
            wanted = {
                "module": "torshrun",
                "args": ["--nproc-per-node", "2", "--max-restarts", "1", script],
                "console": "internalConsole",
                "cwd": str(torshrun.folder),
                "python": [sys.executable],
                "env": torshrun.environ,
            }
            client.debug(port, wanted, "launch")
            client.wait_for_stops(4)
            assert sorted(client.stops) == BOTH_TWICE
    finally:
        adapter.terminate()
        adapter.wait(10)


def test_pycharms_debugger_stops_in_each_worker(torshrun: Launcher) -> None:
    """It is pydevd, too, but speaks lines, and wants a connection from each process."""
    script = torshrun.script(FAILS_ONCE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = (*DEBUGPY[:2], str(PYDEVD), "--multiprocess", "--client", "127.0.0.1")
        command += ("--port", f"{port}", "--module", "--file", "torshrun")
        job = torshrun.start("--nproc-per-node", "2", script, command=command)
        stops: list[int] = []
        threads = [threading.Thread(target=_go_on, args=(server, script, stops)) for _ in range(3)]
        for thread in threads:
            thread.start()
        _, err = job.communicate(timeout=60)
        for thread in threads:
            thread.join()
    assert job.returncode == 3, err
    assert len(set(stops)) == 2, err


def _go_on(server: socket.socket, script: str, stops: list[int]) -> None:
    """Take one connection, set the breakpoint there, and note which process stops at it."""
    set_breakpoint, run, resume, suspended = 111, 101, 106, "105"
    where = f"1\tpython-line\t{script}\t{line_with(script, '# here')}\tNone\tNone\tNone"
    connection, _ = server.accept()
    with connection, connection.makefile("rw", newline="\n") as peer:
        peer.write(f"501\t1\t1.1\tUNIX\tID\n{set_breakpoint}\t3\t{where}\n{run}\t5\t\n")
        peer.flush()
        for line in peer:
            code, _, text = line.split("\t", 2)
            if code == suspended:
                thread = unquote(text).partition('id="')[2].partition('"')[0]
                stops.append(int(thread.split("_")[1]))
                peer.write(f"{resume}\t7\t{thread}\n")
                peer.flush()


def test_each_worker_serves_debugpy(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        import debugpy
        debugpy.wait_for_client()
        print(rank, sys.argv[1:], __name__, len(sys.orig_argv))  # here
        """
    )
    first = free_port()
    options = ("--nproc-per-node", "2", "--debugpy", f"{first}", "--hang-timeout", "1")
    job = torshrun.start(*options, script, "x")
    with debugging(script, "rank") as client:
        for port in (first, first + 1):
            client.debug(port)
        client.wait_for_stops(2)
        out, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    assert sorted(client.stops) == ["0", "1"]
    assert "[1] 1 ['x'] __main__" in out
    assert f"debugpy serves local rank 0 at 127.0.0.1:{first}, others at that port plus" in err
    assert "--hang-timeout has no effect: --debugpy is given" in err


def test_debugpy_is_refused_where_a_port_is_taken(torshrun: Launcher) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        options = ("--nproc-per-node", "2", "--debugpy", f"{port - 1}")
        code, out, err = torshrun.run(*options, torshrun.script("print('ran')"))
    assert (code, out) == (2, "")
    assert f"--debugpy: 127.0.0.1:{port}, for local rank 1, cannot be listened on" in err


def test_debugpy_is_refused_where_it_is_not_installed(torshrun: Launcher) -> None:
    python = torshrun.folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o700)
    torshrun.environ["PYTHON_EXEC"] = str(python)
    script = torshrun.script("print('ran')")
    code, out, err = torshrun.run("--debugpy", f"{free_port()}", script)
    assert (code, out) == (2, "")
    assert f"no debugpy: {python} -m pip install debugpy" in err


@pytest.mark.skipif(not find_program(), reason="py-spy is not installed")
def test_a_rank_that_stands_in_pdb_does_not_hang(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        import torsh_runtime as tr
        tr.init_process_group("native")
        if rank == 0:
            breakpoint()
        tr.barrier()
        print("over", rank)
        """
    )
    options = ("--nproc-per-node", "2", "--hang-timeout", "0.5", script)
    job = torshrun.start(*options, stdin=subprocess.PIPE)
    assert job.stdin
    assert job.stderr
    said = job.stderr.readline()
    job.stdin.write("c\n")
    out, err = job.communicate(timeout=60)
    assert said == "torshrun: rank 0 is in a debugger, which does not count as a hang\n"
    assert (job.returncode, err) == (0, "")
    assert "[1] over 1" in out
