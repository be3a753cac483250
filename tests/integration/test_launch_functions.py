"""torshrun.launch(): functions in workers."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import textwrap

import pytest
from support.launcher import Launcher

needs_cloudpickle = pytest.mark.skipif(
    not importlib.util.find_spec("cloudpickle"), reason="needs cloudpickle"
)


def run(launcher: Launcher, text: str, *, as_file: bool = True) -> tuple[int, str, str]:
    """A program, from a file or from stdin, as of a notebook."""
    text = textwrap.dedent(text)
    (launcher.folder / "program.py").write_text(text)
    stdin = subprocess.DEVNULL if as_file else subprocess.PIPE
    word = "program.py" if as_file else "-"
    process = launcher.start(word, command=(sys.executable,), stdin=stdin)
    out, err = process.communicate(None if as_file else text, timeout=60)
    return process.returncode, out, err


def test_functions_of_a_program_go_by_name(torshrun: Launcher) -> None:
    code, out, err = run(
        torshrun,
        """
        import os, torshrun
        class Answer:
            def __init__(self, rank): self.rank = rank
        def work(factor, given):
            assert type(given) is Answer
            return Answer(int(os.environ["RANK"]) * factor)
        if __name__ == "__main__":
            found = torshrun.launch(work, 10, Answer(3), nproc_per_node=3)
            print({rank: (type(each) is Answer, each.rank) for rank, each in found.items()})
        """,
    )
    assert (code, out, err) == (0, "{0: (True, 0), 1: (True, 10), 2: (True, 20)}\n", "")


@needs_cloudpickle
def test_functions_of_a_notebook_go_as_values(torshrun: Launcher) -> None:
    """Tracebacks show the lines, which are in no file."""
    code, out, err = run(
        torshrun,
        """
        import os, torshrun
        factor = 10
        class Answer:
            def __init__(self, rank): self.rank = rank
        def rank(): return int(os.environ["RANK"]) * factor
        found = torshrun.launch(lambda: Answer(rank()), nproc_per_node=2)
        print({rank: (type(each) is Answer, each.rank) for rank, each in found.items()})
        source = "def fail():\\n    raise ValueError('bad')\\n"
        import linecache
        linecache.cache["<cell 7>"] = (len(source), None, source.splitlines(True), "<cell 7>")
        exec(compile(source, "<cell 7>", "exec"))
        try:
            torshrun.launch(fail, nproc_per_node=1)
        except torshrun.LaunchFailed as error:
            print(error.code, error.rank, error.report)
        """,
        as_file=False,
    )
    assert code == 0, err
    assert out.startswith("{0: (True, 0), 1: (True, 10)}\n1 0 torshrun: rank 0 failed first: ")
    assert """  |   File "<cell 7>", line 2, in fail\n  |     raise ValueError('bad')\n""" in out


def test_restarts_and_options_count(torshrun: Launcher) -> None:
    code, out, err = run(
        torshrun,
        """
        import os, sys, torshrun
        def work():
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": sys.exit(3)
            return os.environ["TORCHELASTIC_RUN_ID"]
        if __name__ == "__main__":
            print(torshrun.launch(work, max_restarts=1, options=["--rdzv-id", "named"]))
        """,
    )
    assert (code, out) == (0, "{0: 'named'}\n"), err


def test_what_cannot_be_is_refused_by_name(torshrun: Launcher) -> None:
    code, out, err = run(
        torshrun,
        """
        import sys, threading, torshrun
        from torsh_runtime.errors import BackendUnavailable, ConfigError
        def work(*_): return threading.Lock()
        def tried(*args, **named):
            try:
                torshrun.launch(*args, **named)
            except (ConfigError, BackendUnavailable) as error:
                print(type(error).__name__, error)
        if __name__ == "__main__":
            tried(work, threading.Lock())
            tried(work)
            tried(work, nproc_per_node="many")
            tried(work, options=["--no-such-option"])
            tried(work, options="--standalone")
            tried(work, options=["--hang-timeout", 60])
            tried(work, options=["--role", "a", "train.py"])
            tried(work, options=["--dry-run"])
            sys.modules["cloudpickle"] = None
            tried(lambda: 1)
        """,
    )
    assert code == 0, err
    lines = out.splitlines()
    assert "its arguments, cannot be sent to other processes: TypeError: cannot pickle" in lines[0]
    assert "the function has run, but rank 0's result is lost: TypeError" in lines[1]
    assert "torshrun has started no worker: its output says why" in lines[2]
    assert "torshrun: error: --nproc-per-node: 'many' is not a whole number" in err
    assert "there is no option --no-such-option" in lines[3]
    assert "options as a list" in lines[4]
    assert "options as a list" in lines[5]
    assert "options must not name a script, as 'train.py': launch() runs" in lines[6]
    assert "call torshrun itself for --dry-run" in lines[7]
    assert lines[8].startswith("BackendUnavailable Sending a function of a notebook")
    assert "pip install 'cloudpickle>=3'" in lines[8]


def test_a_program_without_a_guard_is_told_so(torshrun: Launcher) -> None:
    program = """
    import threading, torshrun
    def work(): pass
    def begin():
        try:
            torshrun.launch(work)
        except Exception as error:
            print(error)
    thread = threading.Thread(target=begin)
    thread.start(), thread.join()
    torshrun.launch(work)
    """
    code, out, err = run(torshrun, program)
    assert code == 1
    told = "launch() is called while a worker loads the program"
    assert out.count(f"[0] {told}") == 2  # of each worker's thread, and of no further worker's
    assert told in err


def test_a_full_disk_is_told_by_its_place(torshrun: Launcher) -> None:
    program = """
    import resource, signal, torshrun
    from torsh_runtime.errors import ConfigError
    def work(_): pass
    if __name__ == "__main__":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            torshrun.launch(work, bytes(5000))
        except ConfigError as error:
            print(error)
    """
    code, out, err = run(torshrun, program)
    assert code == 0, err
    assert out.startswith("cannot write the function and its arguments, 5,0")
    assert f"bytes, to {torshrun.temporary}: File too large. TMPDIR says" in out


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_workers_once(torshrun: Launcher, signo: signal.Signals) -> None:
    program = """
    import signal, sys, time, torshrun
    def work():
        handle = lambda *_: (time.sleep(0.2), print("saved", flush=True), sys.exit(0))
        signal.signal(signal.SIGTERM, handle), signal.signal(signal.SIGINT, handle)
        print("ready", flush=True)
        time.sleep(60)
    if __name__ == "__main__":
        try:
            torshrun.launch(work, nproc_per_node=2)
        except torshrun.LaunchFailed as error:
            print("code", error.code)
        except KeyboardInterrupt:
            print("interrupted")
    """
    (torshrun.folder / "program.py").write_text(textwrap.dedent(program))
    process = torshrun.start("program.py", command=(sys.executable,), start_new_session=True)
    assert process.stdout is not None
    assert [process.stdout.readline()[4:] for _ in range(2)] == ["ready\n"] * 2
    process.send_signal(signo)
    out, err = process.communicate(timeout=30)
    assert out.count("saved") == 2, err
    assert out.splitlines()[-1] == ("code 75" if signo == signal.SIGTERM else "interrupted")


def test_notices_reach_workers_and_what_is_ignored_stays_so(torshrun: Launcher) -> None:
    program = """
    import signal, torshrun
    def work():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        print("ready", flush=True)
        return signal.sigwait([signal.SIGUSR1]).name
    if __name__ == "__main__":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        print(torshrun.launch(work, nproc_per_node=2))
    """
    (torshrun.folder / "program.py").write_text(textwrap.dedent(program))
    process = torshrun.start("program.py", command=(sys.executable,))
    assert process.stdout is not None
    assert [process.stdout.readline()[4:] for _ in range(2)] == ["ready\n"] * 2
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGUSR1)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "{0: 'SIGUSR1', 1: 'SIGUSR1'}\n"), err


def test_nothing_is_left_of_a_program_that_is_killed(torshrun: Launcher) -> None:
    program = """
    import time, torshrun
    def work():
        print("ready", flush=True)
        time.sleep(60)
    if __name__ == "__main__":
        torshrun.launch(work, nproc_per_node=2)
    """
    (torshrun.folder / "program.py").write_text(textwrap.dedent(program))
    process = torshrun.start("program.py", command=(sys.executable,))
    assert process.stdout is not None
    assert [process.stdout.readline()[4:] for _ in range(2)] == ["ready\n"] * 2
    process.kill()
    process.wait()  # the fixture asserts the rest
    for path in torshrun.temporary.glob("torsh-function-*"):  # a killed program removes nothing
        for each in path.iterdir():
            each.unlink()
        path.rmdir()
