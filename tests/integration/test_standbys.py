"""Workers that are forks of a process that has imported for them, and standbys for restarts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launcher import Launcher, until_line
from support.ports import free_ports
from support.processes import is_parked, marked, soon

from torshrun.procfs import read_text

FORKED = "import gc; print('forked' if gc.get_freeze_count() else 'began alone', flush=True)\n"
"""Only a process that imports ahead freezes what it has; its forks inherit that."""

PIDS = Path("/sys/fs/cgroup/pids")


def write(torshrun: Launcher, text: str, name: str = "train.py") -> str:
    """A script with nothing before its own first line."""
    (torshrun.folder / name).write_text(text)
    return name


def module(torshrun: Launcher, name: str, text: str) -> None:
    """Make a module that workers can import from wherever they are."""
    folder = torshrun.folder / "modules"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    torshrun.environ["PYTHONPATH"] = str(folder)


def events(torshrun: Launcher) -> list[dict[str, object]]:
    return [json.loads(line) for line in (torshrun.folder / "events").read_text().splitlines()]


def killed_once(torshrun: Launcher, *options: str, text: str = FORKED) -> tuple[int, str, str]:
    """Run two workers; each is killed by name once its standbys are there."""
    script = write(
        torshrun,
        f"import numpy, os, time\n{text}"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    open('up' + os.environ['RANK'], 'w').write(str(os.getpid()))\n"
        "    time.sleep(60)\n",
    )
    process = torshrun.start(
        "--nproc-per-node", "2", "--max-restarts", "1", "--events", "events", *options, script
    )
    torshrun.wait_for("up0", "up1", "events")
    told = torshrun.folder / "events"
    assert soon(lambda: "standbys_" in told.read_text(), 20)
    os.kill(_pid(torshrun.folder / "up1"), signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def _pid(file: Path) -> int:
    """The number that a worker writes into a file, which it opens before."""
    assert soon(lambda: bool(file.read_text()), 20)
    return int(file.read_text())


@pytest.mark.parametrize("preload", ["auto", "numpy,json"])
def test_workers_are_forks_and_know_no_better(torshrun: Launcher, preload: str) -> None:
    script = write(
        torshrun,
        '"""Trains."""\nfrom __future__ import annotations\nimport numpy\nimport os, random, sys\n'
        + FORKED
        + "print(__name__, sys.argv, os.getcwd(), 'TORSH_PARK' in os.environ, flush=True)\n"
        "print(sys.path[0], 'torsh_standby' in sys.modules, os.getpgrp() == os.getpid())\n"
        "print('drawn', random.random(), numpy.random.rand(), flush=True)\n"
        "print('read', repr(sys.stdin.read()), sorted(os.listdir('/proc/self/fd')), flush=True)\n",
    )
    told = {}
    for options in (["--preload", preload], []):
        process = torshrun.start(
            "--nproc-per-node", "2", *options, script, "a", "b", stdin=subprocess.DEVNULL
        )
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert not err
        told[bool(options)] = sorted(out.splitlines())
    warm, cold = told[True], told[False]
    assert sum("] forked" in line for line in warm) == 2
    drawn = [line for line in warm if "drawn" in line]
    assert len({line.partition("drawn")[2].split()[0] for line in drawn}) == 2
    assert len({line.split()[-1] for line in drawn}) == 2

    def rest(lines: list[str]) -> list[str]:
        return [line for line in lines if "drawn" not in line and "forked" not in line]

    assert rest(warm) == [line for line in rest(cold) if "began alone" not in line]


def test_a_restart_takes_standbys(torshrun: Launcher) -> None:
    code, out, err = killed_once(torshrun, "--preload", "auto")
    assert code == 0, err
    assert out.count("forked") == 4
    assert "failed first: killed by SIGKILL" in err
    (ready, *_) = (each for each in events(torshrun) if each["event"] == "standbys_ready")
    assert ready["count"] == 2
    assert "numpy" in str(ready["modules"])


def test_standbys_that_die_are_replaced_and_no_failure(torshrun: Launcher) -> None:
    script = write(torshrun, "import numpy, os, time\nopen('up', 'w')\ntime.sleep(4)\n")
    process = torshrun.start(
        "--max-restarts", "1", "--preload", "auto", "--events", "events", script
    )
    torshrun.wait_for("up")

    def parked() -> list[int]:
        """Children of the keeper that are no worker and no zygote: they have no children."""
        return [pid for pid in torshrun.left_behind() if is_parked(pid)]

    assert soon(lambda: len(parked()) == 2, 20), parked()  # the zygote, and one that it forked
    victims = parked()
    os.kill(max(victims), signal.SIGKILL)
    assert soon(lambda: len(parked()) == 2 and parked() != victims, 20)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert not err


def test_an_importer_that_is_killed_is_replaced(torshrun: Launcher) -> None:
    script = write(
        torshrun,
        "import numpy, os, time\n" + FORKED + "open('up', 'w').write(str(os.getpid()))\n"
        "while os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': time.sleep(0.1)\n",
    )
    process = torshrun.start("--max-restarts", "1", "--preload", "auto", "--standbys", "0", script)
    torshrun.wait_for("up")
    worker = _pid(torshrun.folder / "up")
    (zygote,) = (pid for pid in torshrun.left_behind() if is_parked(pid) and pid != worker)
    os.kill(zygote, signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.splitlines() == ["[0] forked", "[0] forked"]
    assert "standbys" not in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os; os.environ.get('RANK')", "told reads RANK when it is imported"),
        ("import os; b'RANK' in os.environb", "told reads RANK when it is imported"),
        ("import os; os.environ.copy()", "told reads all variables when it is imported"),
        ("import os; os._exit(3)", "has ended (exit code 3)"),
        ("import os; os.kill(os.getpid(), 11)", "has ended (signal 11)"),
        ("import sys; sys.excepthook = None; sys.path = None", "has ended (exit code 1)"),
        ("import os; os.chdir('/')", "a module has changed the working directory"),
        ("raise OSError('no such device')", "told cannot be imported ahead: OSError: no such dev"),
        ("import sys; sys.exit(0)", "told cannot be imported ahead: SystemExit: 0"),
        ("import nowhere", "told cannot be imported ahead: ModuleNotFoundError: No module named"),
    ],
)
def test_a_module_that_cannot_be_imported_ahead_is_named(
    torshrun: Launcher, text: str, said: str
) -> None:
    module(torshrun, "told", text)
    script = write(torshrun, FORKED)
    code, out, err = torshrun.run("--nproc-per-node", "2", "--preload", "told", script)
    assert code == 0
    assert said in err
    assert len(out.splitlines()) == 2


def test_tqdm_which_looks_for_variables_of_its_own_is_imported_ahead(torshrun: Launcher) -> None:
    pytest.importorskip("tqdm")  # which torch loads
    script = write(torshrun, FORKED)
    code, out, err = torshrun.run("--preload", "tqdm", script)
    assert (code, out, err) == (0, "[0] forked\n", "")


def test_what_has_threads_is_not_forked_but_a_standby_of_its_own(torshrun: Launcher) -> None:
    module(
        torshrun,
        "threaded",
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True, name='spins').start()\n",
    )
    text = "import threading; print('spins' in [t.name for t in threading.enumerate()])\n"
    code, out, err = killed_once(torshrun, "--preload", "threaded", text=text)
    assert code == 0, err
    assert err.count("a module has started the thread spins") == 1
    assert "True" in out


def test_one_of_its_own_is_replaced_when_it_is_taken(torshrun: Launcher) -> None:
    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True)"
    module(torshrun, "threaded", f"{text}.start()\n")
    script = write(
        torshrun,
        FORKED + "import os, time\nopen('up', 'w').write(str(os.getpid()))\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': time.sleep(60)\n",
    )
    options = ("--preload", "threaded", "--max-restarts", "1", "--events", "events")
    process = torshrun.start(*options, script)
    torshrun.wait_for("up", "events")
    told = torshrun.folder / "events"
    assert soon(lambda: "standbys_ready" in told.read_text(), 20), told.read_text()
    os.kill(_pid(torshrun.folder / "up"), signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "[0] forked\n[0] forked\n"), err
    assert err.count("no process can be forked") == 1


def test_what_modules_say_and_set_is_kept(torshrun: Launcher) -> None:
    module(torshrun, "loud", "import os\nprint('loaded', flush=True)\nos.environ['LOUD'] = 'yes'\n")
    script = write(torshrun, "import os\nprint(os.environ['LOUD'], os.environ['RANK'])\n")
    code, out, err = torshrun.run("--nproc-per-node", "2", "--preload", "loud", script)
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[0] yes 0", "[1] yes 1", "[preload] loaded"]


def test_the_script_is_read_anew_and_own_modules_are_not_imported_ahead(
    torshrun: Launcher,
) -> None:
    (torshrun.folder / "own.py").write_text("version = 1\n")
    script = write(
        torshrun,
        "import numpy, os, time\nimport own\n" + FORKED + "print('version', own.version)\n"
        "if own.version == 1:\n"
        "    open('own.py', 'w').write('version = 2  # mended\\n')\n"
        "    time.sleep(2.5)\n    raise SystemExit(1)\n",
    )
    code, out, _ = torshrun.run("--max-restarts", "1", "--preload", "auto", script)
    assert code == 0
    assert out.count("forked") == 2
    assert "version 2" in out


@pytest.mark.parametrize(
    "how", ["--module", "--run-path", "--pid-namespace", "--virtual-local-rank"]
)
def test_other_ways_to_run_it(torshrun: Launcher, how: str) -> None:
    script = write(torshrun, "import numpy, os, sys\n" + FORKED + "print(sys.argv[1:])\n")
    if how == "--pid-namespace" and os.geteuid():
        pytest.skip("needs root")
    target = "train" if how == "--module" else script
    code, out, err = torshrun.run("--nproc-per-node", "2", "--preload", "auto", how, target, "x")
    assert code == 0, err
    assert out.count("forked") == 2, err
    assert out.count("['x']") == 2


def test_a_program_has_none(torshrun: Launcher) -> None:
    code, out, err = torshrun.run("--preload", "auto", "--no-python", "/bin/echo", "fine")
    assert (code, out) == (0, "[0] fine\n")
    assert "torshrun: standbys: there are none of a program (--no-python)" in err


def test_an_interpreter_that_is_a_wrapper_has_none(torshrun: Launcher) -> None:
    wrapper = torshrun.folder / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -E "$@"\n')
    wrapper.chmod(0o755)
    torshrun.environ["PYTHON_EXEC"] = str(wrapper)
    script = write(torshrun, "import json, os\nprint(os.environ['RANK'])\n")
    code, out, err = torshrun.run("--preload", "auto", script)
    assert (code, out) == (0, "[0] 0\n")
    assert f"{wrapper} is no interpreter itself" in err


def test_another_sitecustomize_has_its_turn_before_the_imports(torshrun: Launcher) -> None:
    module(
        torshrun,
        "sitecustomize",
        "import builtins, sys\nbuiltins.seen = 'decimal' in sys.modules\n"
        "print('mine', flush=True)\n",
    )
    script = write(torshrun, "import decimal\nprint(seen)\n" + FORKED)
    code, out, err = torshrun.run("--preload", "auto", script)
    assert code == 0, err
    shown = [
        line for line in out.splitlines() if line != "mine"
    ]  # torshrun's own Python has it, too
    assert shown == ["[preload] mine", "[0] False", "[0] forked"]


@pytest.mark.parametrize("victim", ["agent", "keeper"])
def test_nobody_is_left_when_agent_or_keeper_is_killed(torshrun: Launcher, victim: str) -> None:
    script = write(torshrun, "import numpy, os, time\nopen('up', 'w')\ntime.sleep(60)\n")
    process = torshrun.start("--max-restarts", "1", "--preload", "auto", script)
    torshrun.wait_for("up")
    assert soon(lambda: len([pid for pid in torshrun.left_behind() if is_parked(pid)]) == 2, 20)
    parents = marked(torshrun.mark)
    (keeper,) = {parent for parent in parents.values() if parents.get(parent) == process.pid}
    os.kill(process.pid if victim == "agent" else keeper, signal.SIGKILL)
    assert soon(lambda: not torshrun.left_behind(), 20), marked(torshrun.mark)


def test_ctrl_c_while_modules_are_imported(torshrun: Launcher) -> None:
    module(torshrun, "slow", "import time; print('importing', flush=True); time.sleep(60)\n")
    script = write(torshrun, "print('never')\n")
    process = torshrun.start("--nproc-per-node", "2", "--preload", "slow", script)
    until_line(process, "importing")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "never" not in out


def test_torshctl_shows_them(torshrun: Launcher) -> None:
    script = write(torshrun, "import numpy, time\ntime.sleep(60)\n")
    (port,) = free_ports(1)
    meet = ["--rdzv-backend", "tcp", "--rdzv-endpoint", f"localhost:{port}"]
    conf = ["--rdzv-id", "warm", "--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0"]
    process = torshrun.start(*meet, *conf, "--preload", "auto", script)
    command = [sys.executable, "-m", "torshrun.ctl", "status", *meet, "warm"]

    def status() -> str:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout

    assert soon(lambda: "; 1 on standby" in status(), 30), status()
    process.terminate()
    process.communicate(timeout=30)


def test_few_descriptors_are_no_success(torshrun: Launcher) -> None:
    script = write(torshrun, "import json\n" + FORKED)
    process = torshrun.start("--preload", "auto", script, within=limited("-Sn 20"))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "[0] forked\n"), err


def limited(limit: str) -> list[str]:
    """A command that runs another within this limit."""
    return ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh"]


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Of our own, with a limit of processes."""
    folder = PIDS / f"torsh-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"needs a cgroup of version 1 for pids: {error}")
    yield folder
    assert soon(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


@pytest.mark.parametrize(("limit", "said"), [(20, "began alone"), (60, "forked")])
def test_workers_that_need_all_processes_get_them(
    torshrun: Launcher, cgroup: Path, limit: int, said: str
) -> None:
    """At first, or soon after."""
    (cgroup / "pids.max").write_text(str(limit))
    script = write(
        torshrun,
        "import threading, time\n" + FORKED + "import os\n"
        "def start(count):\n"
        "    for _ in range(count):\n"
        "        threading.Thread(target=time.sleep, args=(3,), daemon=True).start()\n"
        f"left = lambda: {limit} - int(open({str(cgroup / 'pids.current')!r}).read())\n"
        "start(max(left() - 20, 0))\n"
        "while 'standbys_missing' not in open('events').read(): time.sleep(0.05)\n"
        "time.sleep(0.5)\n"
        "start(left())\n"
        f"print('processes', len(open({str(cgroup / 'cgroup.procs')!r}).readlines()))\n",
    )
    within = ("sh", "-c", f'echo $$ >{cgroup}/cgroup.procs; exec "$@"', "sh")
    options = ("--preload", "auto", "--max-restarts", "1", "--events", "events", script)
    process = torshrun.start(*options, within=within)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, f"[0] {said}\n[0] processes 3\n"), err
    assert "more processes and threads may be started" in err


def test_an_environment_larger_than_a_socket_can_hold(torshrun: Launcher) -> None:
    torshrun.environ |= {f"BIG{number}": "\udcff" * 60_000 for number in range(20)}
    script = write(torshrun, "import os\nprint(len(os.environ['BIG7']))\n" + FORKED)
    code, out, err = torshrun.run("--preload", "auto", script)
    assert (code, out) == (0, "[0] 60000\n[0] forked\n"), err


def test_variables_are_as_modules_leave_them(torshrun: Launcher) -> None:
    module(torshrun, "tidy", "import os\ndel os.environ['UNWANTED']\nos.environ['RANK'] = '7'\n")
    torshrun.environ["UNWANTED"] = "x"
    script = write(
        torshrun, "import tidy, os\nprint('UNWANTED' in os.environ, os.environ['RANK'])\n" + FORKED
    )
    code, out, err = torshrun.run("--preload", "tidy", script)
    assert (code, out) == (0, "[0] False 7\n[0] forked\n"), err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import multiprocessing\nlock = multiprocessing.Lock()\n", "opened /dev/shm/sem."),
        ("import os\nends = os.pipe()\n", "opened pipe:"),
        ("import tempfile\nfile = tempfile.TemporaryFile()\n", "opened /"),
        (
            "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\n",
            "started the process",
        ),
        ("import ctypes\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n", "made its process adopt"),
    ],
)
def test_what_each_worker_must_have_for_itself_is_not_shared(
    torshrun: Launcher, text: str, said: str
) -> None:
    module(torshrun, "owner", text)
    script = write(torshrun, "import owner\nprint('runs')\n")
    options = ("--nproc-per-node", "2", "--shutdown-timeout", "0.1")  # for what `text` leaves
    code, out, err = torshrun.run(*options, "--preload", "owner", script)
    assert code == 0, err
    assert f"since a module has {said}" in err
    assert sorted(out.splitlines()) == ["[0] runs", "[1] runs"]


LATER = (
    "import later\nimport os, time\n" + FORKED + "if os.environ['TORCHELASTIC_RESTART_COUNT']"
    " == '0':\n    import later.more\n"
    "    open('up' + os.environ['RANK'], 'w').write(str(os.getpid()))\n    time.sleep(60)\n"
)
"""Imports more of a package than its head says; runs until it is killed."""


def later(torshrun: Launcher, text: str) -> str:
    """A script that does, of a package whose second module says this."""
    folder = torshrun.folder / "site-packages" / "later"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "more.py").write_text(text)
    torshrun.environ["PYTHONPATH"] = str(folder.parent)
    return write(torshrun, LATER)


def test_one_that_takes_an_importers_place_has_imported_as_much(torshrun: Launcher) -> None:
    script = later(torshrun, "import ctypes\nctypes.CDLL(None).prctl(15, b'has more', 0, 0, 0)\n")
    process = torshrun.start("--max-restarts", "1", "--preload", "auto", script)
    torshrun.wait_for("up0")
    worker = _pid(torshrun.folder / "up0")

    def others() -> set[int]:
        """Importers, and standbys that were forked later, by the name that they give themselves."""
        names = {pid: read_text(f"/proc/{pid}/comm") for pid in torshrun.left_behind()}
        return {pid for pid, name in names.items() if name == "has more\n"} - {worker}

    assert soon(lambda: len(others()) == 2, 20)
    known = others()
    os.kill(min(known), signal.SIGKILL)
    assert soon(lambda: others() - known, 20)
    os.kill(worker, signal.SIGKILL)
    assert process.communicate(timeout=60)[0] == "[0] forked\n[0] forked\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n",
            "started the thread",
        ),
        ("import os\nos.environ.get('LOCAL_RANK')\n", "later.more reads LOCAL_RANK"),
        ("import os\n'RANK' in os.environ or os._exit(9)\n", "has ended (exit code 9)"),
    ],
)
def test_what_cannot_be_imported_since_spoils_nothing(
    torshrun: Launcher, text: str, said: str
) -> None:
    script = later(torshrun, text)
    process = torshrun.start("--max-restarts", "1", "--preload", "auto", "--events", "ev", script)
    torshrun.wait_for("up0", "ev")
    told = torshrun.folder / "ev"
    assert soon(lambda: "is not imported ahead" in told.read_text(), 20), told.read_text()
    os.kill(_pid(torshrun.folder / "up0"), signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out == "[0] forked\n[0] forked\n"
    assert said in err


def test_ignored_children_are_no_obstacle(torshrun: Launcher) -> None:
    module(torshrun, "deaf", "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n")
    script = write(
        torshrun,
        "import deaf, os, threading\n" + FORKED + "print(threading.main_thread().native_id - "
        "os.getpid())\n",
    )
    code, out, err = torshrun.run("--preload", "deaf", script)
    assert (code, out, err) == (0, "[0] forked\n[0] 0\n", "")


def test_a_standby_that_was_stopped_goes_on_as_a_worker(torshrun: Launcher) -> None:
    script = write(torshrun, LATER.replace("later.more", "numpy").replace("later", "numpy"))
    process = torshrun.start("--max-restarts", "1", "--preload", "auto", "--events", "ev", script)
    torshrun.wait_for("up0", "ev")
    assert soon(lambda: "standbys_ready" in (torshrun.folder / "ev").read_text(), 20)
    worker = _pid(torshrun.folder / "up0")
    parked = [pid for pid in torshrun.left_behind() if is_parked(pid) and pid != worker]
    for pid in parked:
        os.kill(pid, signal.SIGSTOP)
    os.kill(worker, signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "[0] forked\n[0] forked\n"), err


def test_a_neighbour_of_the_script_is_not_hidden(torshrun: Launcher) -> None:
    (torshrun.folder / "mine").mkdir()
    (torshrun.folder / "mine" / "random.py").write_text("mine = True\n")
    script = write(torshrun, "import json, random\nprint(random.mine)\n", "mine/train.py")
    code, out, err = torshrun.run("--preload", "json", script)
    assert (code, out) == (0, "[0] True\n")
    assert "random.py would be hidden by Python's own" in err
