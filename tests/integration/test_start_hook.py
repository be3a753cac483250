"""The start hook in the workers' Python: no traces, no harm, and JAX finds its place.

JAX itself is in test_jax.py; here a package of the test's own has its place.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.processes import soon

from torshrun.workers.group import STACK_SIGNAL
from torshrun.workers.spec import python_path

HOOK = Path(python_path({}))
PLACE = {
    "JAX_COORDINATOR_ADDRESS": "127.0.0.1:4000",
    "JAX_NUM_PROCESSES": "4",
    "JAX_PROCESS_ID": "3",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
}
CLUSTERS = """
class ClusterEnv:
    name = ""
    _cluster_types = []
    def __init_subclass__(cls):
        cls._cluster_types.append(cls)

class Slurm(ClusterEnv):
    name = "slurm"
"""
ASK = """
import json
import re
import signal
from jax._src import clusters
cluster = clusters.ClusterEnv._cluster_types[0]
answer = [c.name for c in clusters.ClusterEnv._cluster_types]
if cluster.name == "torshrun":
    answer += [cluster.is_env_present(), cluster.get_process_count(), cluster.get_process_id(),
               cluster.get_coordinator_address(timeout_secs=1, override_coordinator_port=None),
               cluster.get_local_process_id()]
answer.append([type(clusters.__loader__).__name__, clusters.__spec__.loader is clusters.__loader__])
print(json.dumps(answer))
"""
REGISTERED = ["torshrun", "slurm", True, 4, 3, "127.0.0.1:4000", 1, ["SourceFileLoader", True]]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A directory with a package that looks like JAX where the hook looks at it."""
    folder = tmp_path / "packages"
    (folder / "jax/_src").mkdir(parents=True)
    (folder / "jax/__init__.py").touch()
    (folder / "jax/_src/__init__.py").touch()
    (folder / "jax/_src/clusters.py").write_text(CLUSTERS)
    return folder


def run(
    code: str,
    path: list[Path],
    *flags: str,
    python: str = sys.executable,
    **changes: str | None,
) -> subprocess.CompletedProcess[str]:
    """A worker's Python with this PYTHONPATH; changes are made to PLACE, None removes."""
    inherited = {"PYTHONPATH": ":".join(map(str, path))} if path else {}
    environ = {"PATH": "/usr/bin:/bin", **inherited, **PLACE, **changes}
    return subprocess.run(
        [python, *flags, "-c", code],
        cwd="/",
        env={name: value for name, value in environ.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=60,
    )


def answer(code: str, path: list[Path], *flags: str, **options: Any) -> Any:
    ended = run(code, path, *flags, **options)
    assert (ended.returncode, ended.stderr) == (0, "")
    return json.loads(ended.stdout)


STATE = """
import json, sys
print(json.dumps([sorted(sys.modules), sys.path, sorted(map(str, sys.path_importer_cache))]))
"""


def test_it_leaves_no_trace_and_loads_nothing() -> None:
    assert answer(STATE, [HOOK]) == answer(STATE, [])
    assert answer(STATE, [HOOK], "-S")[0] == answer(STATE, [], "-S")[0]
    assert answer(STATE, [HOOK], "-I") == answer(STATE, [], "-I")


def test_jax_finds_its_place_first_here(packages: Path) -> None:
    assert answer(ASK, [HOOK, packages]) == REGISTERED


def test_a_process_that_is_alone_on_its_node_sees_all_gpus(packages: Path) -> None:
    assert answer(ASK, [HOOK, packages], LOCAL_WORLD_SIZE="1")[6] is None


def test_only_a_worker_has_a_place(packages: Path) -> None:
    present = ASK.replace("cluster.is_env_present(),", "cluster.is_env_present()]\n    0 and [")
    assert answer(present, [HOOK, packages])[2] is True
    assert answer(present, [HOOK, packages], JAX_PROCESS_ID=None)[2] is False
    assert answer(ASK, [HOOK, packages], JAX_COORDINATOR_ADDRESS=None)[0] == "slurm"


def test_it_reaches_what_a_worker_starts(packages: Path) -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ASK!r}])"
    assert answer(child, [HOOK, packages]) == REGISTERED


def test_an_interpreter_without_torshrun_has_it_too(packages: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = str(tmp_path / "venv/bin/python")
    missing = run("import torsh_runtime", [], python=python)
    assert "ModuleNotFoundError" in missing.stderr
    assert answer(ASK, [HOOK, packages], python=python) == REGISTERED


def test_a_package_in_an_archive(packages: Path, tmp_path: Path) -> None:
    archive = tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for source in packages.rglob("*.py"):
            file.write(source, source.relative_to(packages))
    assert answer(ASK, [HOOK, archive]) == [*REGISTERED[:-1], ["zipimporter", True]]


def test_another_sitecustomize_has_its_turn(tmp_path: Path) -> None:
    theirs = "import sys; sys.theirs = __name__, __file__"
    (tmp_path / "sitecustomize.py").write_text(theirs)
    code = "import json, sys, sitecustomize; print(json.dumps([*sys.theirs, sitecustomize.theirs]))"
    (tmp_path / "sitecustomize.py").write_text(theirs + "; theirs = 1")
    expected = ["sitecustomize", str(tmp_path / "sitecustomize.py"), 1]
    assert answer(code, [HOOK, tmp_path]) == answer(code, [tmp_path]) == expected


@pytest.mark.parametrize("mistake", ["1 / 0", "import no_such_module", "raise SystemExit(3)"])
def test_another_sitecustomize_fails_as_without_this_one(tmp_path: Path, mistake: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(mistake)
    with_hook, without = (run("print('ran')", path) for path in ([HOOK, tmp_path], [tmp_path]))
    assert with_hook.returncode == without.returncode
    assert with_hook.stdout == without.stdout
    assert with_hook.stderr.splitlines()[-1:] == without.stderr.splitlines()[-1:]


@pytest.mark.parametrize("clusters", ["", "ClusterEnv = None", "class ClusterEnv: pass"])
def test_a_jax_that_has_changed_is_left_alone(packages: Path, clusters: str) -> None:
    (packages / "jax/_src/clusters.py").write_text(clusters)
    ended = run("import jax._src.clusters; print('fine')", [HOOK, packages])
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "fine\n", "")


def test_a_broken_jax_fails_as_without_it(packages: Path) -> None:
    (packages / "jax/_src/clusters.py").write_text("raise KeyError('broken')")
    ended = run("import jax._src.clusters", [HOOK, packages])
    assert ended.returncode == 1
    assert ended.stderr.endswith("KeyError: 'broken'\n")
    (packages / "jax/_src/clusters.py").unlink()
    ended = run("import jax._src.clusters", [HOOK, packages])
    assert "ModuleNotFoundError: No module named 'jax._src.clusters'" in ended.stderr


def test_registering_twice_is_harmless(packages: Path) -> None:
    again = "from torsh_runtime.integrations import jax\njax.register()\njax.register()\n"
    root = HOOK.parents[2]
    assert answer(again + ASK, [HOOK, packages, root]) == REGISTERED
    assert answer(again + ASK, [packages, root]) == REGISTERED


def test_the_path_that_a_worker_inherits_comes_after() -> None:
    here = str(HOOK)
    assert python_path({"PYTHONPATH": ""}) == here
    assert python_path({"PYTHONPATH": "/a:/b"}) == f"{here}:/a:/b"
    assert python_path({"PYTHONPATH": f"{here}:/a:"}) == f"{here}:/a:"


def traced(folder: Path, code: str, *, before: str = "") -> tuple[int, dict[str, Any], str]:
    """A worker's exit status, the account that it left and its stack. It is asked to stop when it
    has written a line. `before` is a program that starts it.
    """
    error_file, stack_file = folder / "error.json", folder / "stack"
    (folder / "train.py").write_text(code)
    environ = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(HOOK),
        "TORCHELASTIC_ERROR_FILE": str(error_file),
        "TORSH_STACK_FILE": str(stack_file),
    }
    argv = [sys.executable, *(["-c", before] if before else []), "train.py"]
    with subprocess.Popen(argv, cwd=folder, env=environ, stdout=subprocess.PIPE) as worker:
        assert worker.stdout
        if worker.stdout.readline():
            worker.terminate()
        worker.stdout.read()
    account = json.loads(error_file.read_text()) if error_file.exists() else {}
    return worker.returncode, account, stack_file.read_text() if stack_file.exists() else ""


SLEEPS = "import time\ndef load():\n    print('up', flush=True)\n    time.sleep(60)\nload()\n"


def test_a_worker_that_is_stopped_leaves_its_stack_and_dies_as_without(tmp_path: Path) -> None:
    code, account, stack = traced(tmp_path, SLEEPS)
    assert (code, account) == (-15, {})
    assert re.search(r"line [34] in load", stack)
    assert "line 5 in <module>" in stack


def test_who_is_asked_for_its_stack_at_its_end_ends_as_without(tmp_path: Path) -> None:
    ends = f"import faulthandler, os\nfaulthandler.unregister({STACK_SIGNAL})\n"  # as Python does
    asked = f"{ends}os.kill(os.getpid(), {STACK_SIGNAL})\nraise SystemExit(3)"
    assert traced(tmp_path, asked) == (3, {}, "")
    (tmp_path / "stack").unlink()
    forks = f"import os\nif not os.fork():\n    os.kill(os.getpid(), {STACK_SIGNAL})\n"
    assert traced(tmp_path, f"{forks}raise SystemExit(os.wait()[1])") == (STACK_SIGNAL, {}, "")


def test_a_handler_of_its_own_is_the_scripts(tmp_path: Path) -> None:
    own = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
    assert traced(tmp_path, own + SLEEPS) == (9, {}, "")
    (tmp_path / "stack").unlink()
    asks = SLEEPS.replace("    print", f"    os.kill(os.getpid(), {STACK_SIGNAL})\n    print")
    leaves = f"import os\n{own}{asks}"
    code, _, stack = traced(tmp_path, leaves)  # what torshrun sends before SIGTERM
    assert (code, "in load" in stack) == (9, True)
    ask = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)"
    (tmp_path / "stack").unlink()
    assert traced(tmp_path, f"{ask}\nimport time; time.sleep(60)")[0] == -15


def test_an_exception_leaves_an_account_without_a_decorator(tmp_path: Path) -> None:
    code, account, stack = traced(tmp_path, "def f():\n    raise KeyError('x')\nf()\n")
    assert (code, stack) == (1, "")
    message = account["message"]
    assert message["message"] == "KeyError: 'x'"
    assert message["extraInfo"]["py_callstack"].startswith("Traceback (most recent call last):")
    assert account["torsh"]["versions"]["python"].startswith("3.")
    assert account["torsh"]["blame"] is None


@pytest.mark.parametrize("ending", ["raise SystemExit(3)", "raise KeyboardInterrupt", "pass"])
def test_other_ends_leave_none(tmp_path: Path, ending: str) -> None:
    assert traced(tmp_path, ending)[1:] == ({}, "")


def test_the_scripts_own_excepthook_is_called_as_well(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.excepthook = lambda *_: print('theirs', flush=True)"
    )
    environ = f"import os; os.environ['PYTHONPATH'] += ':{tmp_path}'; "
    start = f"{environ}import sys; os.execv(sys.executable, [sys.executable, 'train.py'])"
    (tmp_path / "train.py").write_text("1 / 0")
    ended = run(start, [HOOK], TORSH_STACK_FILE=None)
    assert ended.returncode != 0
    with_hook = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": f"{HOOK}:{tmp_path}",
            "TORSH_STACK_FILE": str(tmp_path / "stack"),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (with_hook.returncode, with_hook.stdout, with_hook.stderr) == (1, "theirs\n", "")


def test_what_a_worker_starts_or_forks_leaves_nothing(tmp_path: Path) -> None:
    children = f"""
import os, signal, subprocess, sys, time
subprocess.run([sys.executable, "-c", "1 / 0"], stderr=subprocess.DEVNULL)
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, b"up")
    time.sleep(60)
os.read(read, 2)
os.kill(child, signal.SIGTERM)
assert os.waitpid(child, 0)[1] == signal.SIGTERM
child = os.fork()
if child == 0:
    sys.stderr = open(os.devnull, "w")
    1 / 0
os.waitpid(child, 0)
assert not os.path.getsize({str(tmp_path / "stack")!r})
"""
    assert traced(tmp_path, children) == (0, {}, "")


def test_the_first_python_of_a_worker_does_and_its_descriptor_is_out_of_the_way(
    tmp_path: Path,
) -> None:
    # The listing has a descriptor of its own.
    code = "import json, os; print(json.dumps(sorted(map(int, os.listdir('/proc/self/fd')))))"
    numbers = answer(code, [HOOK], TORSH_STACK_FILE=str(tmp_path / "stack"))
    assert numbers[:4] == [0, 1, 2, 3]
    assert numbers[4] >= 500


def test_where_nothing_can_be_written_a_worker_runs_all_the_same(tmp_path: Path) -> None:
    for path in ("/no/such/place", str(tmp_path), ""):
        ended = run("print('fine')", [HOOK], TORSH_STACK_FILE=path)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "fine\n", "")


def test_it_loads_nothing_that_takes_time(tmp_path: Path) -> None:
    code = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    with_hook = answer(code, [HOOK], TORSH_STACK_FILE=str(tmp_path / "stack"))
    compiled_in = {"atexit", "faulthandler", "fcntl", "time"}
    assert set(with_hook) - set(answer(code, [])) <= compiled_in


def noted(folder: Path, code: str, *asked: int) -> tuple[int, list[dict[str, Any]]]:
    """The exit status of a worker that gets these signals when it has written a line, each when it
    has noted what the one before had it note, and what it noted of its end.
    """
    notes = folder / "stack_end"
    (folder / "train.py").write_text(code)
    environ = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(HOOK),
        "TORSH_STACK_FILE": str(folder / "stack"),
    }
    argv = [sys.executable, "train.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(argv, cwd=folder, env=environ, start_new_session=True, **pipes) as worker:
        assert worker.stdout
        if worker.stdout.readline():
            for number, signo in enumerate(asked):
                assert soon(lambda n=number: n == 0 or (notes.exists() and notes.stat().st_size))
                worker.send_signal(signo)
        worker.stdout.read()
    lines = notes.read_text().splitlines() if notes.exists() else []
    notes.unlink(missing_ok=True)
    (folder / "stack").unlink()
    return worker.returncode, [json.loads(line) for line in lines]


RAISES = "def f():\n    raise KeyError('x')\n"


@pytest.mark.parametrize(
    ("ending", "code", "how"),
    [
        ("f()", 1, "exception"),
        ("import sys; sys.excepthook = lambda *_: None\nf()", 1, "exception"),
        ("import atexit; atexit.register(lambda: 1 / 0)\nf()", 1, "exception"),
        ("import sys; sys.exit('no data')", 1, "exit"),
        ("try: f()\nexcept KeyError: raise SystemExit(3)", 3, "exit"),
        ("import sys\ntry: f()\nexcept KeyError: sys.excepthook(*sys.exc_info())", 0, "exit"),
        ("import threading; threading.Thread(target=f).start()", 0, "exit"),
        ("import os\ntry: f()\nexcept KeyError: os._exit(4)", 4, "left"),
        ("import os\nos._exit(4)", 4, ""),
        ("raise KeyboardInterrupt", -2, ""),
    ],
)
def test_how_python_ended_is_noted(tmp_path: Path, ending: str, code: int, how: str) -> None:
    status, notes = noted(tmp_path, RAISES + ending)
    assert (status, [each["how"] for each in notes]) == (code, [how] if how else [])
    if how == "exception":
        (note,) = notes
        assert note["own"]
        assert note["errors"] == ["KeyError: 'x'"]
        assert note["frame"] == f"{tmp_path}/train.py:2"
        assert note["trace"].startswith("Traceback (most recent call last):")


CATCHES = " try: f()\n except KeyError: sys.exit(7)\n"


@pytest.mark.parametrize(
    ("ending", "how", "error"),
    [
        ("try: f()\nexcept KeyError: sys.exit(3)", "exit", "KeyError: 'x'"),
        ("try: f()\nexcept KeyError: os._exit(3)", "left", "KeyError: 'x'"),
        (f"try:\n{CATCHES}except SystemExit: sys.exit(3)", "exit", "KeyError: 'x'"),
        (f"try:\n{CATCHES}except SystemExit: pass\nsys.exit(3)", "exit", ""),
        ("threading.Thread(target=sys.exit, args=(1,)).start()\nsys.exit(3)", "exit", ""),
    ],
)
def test_what_was_handled_when_a_script_chose_its_exit_code_is_noted(
    tmp_path: Path, ending: str, how: str, error: str
) -> None:
    status, (note,) = noted(tmp_path, "import os, sys, threading\n" + RAISES + ending)
    assert (status, note["how"], note.get("errors", [])) == (3, how, [error] if error else [])
    assert note.get("code", 3) == 3
    assert note["own"]


SHOWN = """
import io, logging, sys, traceback
log = logging.StreamHandler(io.StringIO())
def f():
    try: 1 / 0
    except ZeroDivisionError as error: raise KeyError('x') from error
"""


@pytest.mark.parametrize(
    ("program", "errors"),
    [
        ("traceback.format_exc()", ["ZeroDivisionError: division by zero", "KeyError: 'x'"]),
        (
            "logging.getLogger().addHandler(log); logging.exception('failed')",
            ["ZeroDivisionError: division by zero", "KeyError: 'x'"],
        ),
        ("pass", None),
        ("log.format(logging.makeLogRecord({'exc_info': (None, None, None)}))", None),
        ("traceback.format_exc(); import time; time.sleep(1.1)", None),  # it went on
    ],
)
def test_what_was_shown_just_before_the_end_is_noted(
    tmp_path: Path, program: str, errors: list[str] | None
) -> None:
    status, (note,) = noted(tmp_path, f"{SHOWN}try: f()\nexcept KeyError: {program}\nsys.exit(3)")
    assert (status, note["how"]) == (3, "shown" if errors else "exit")
    assert note.get("errors") == errors


PORTS = """
import http.server, socket, socketserver
held = socket.create_server(("127.0.0.1", 0))
METRICS_PORT = held.getsockname()[1]
print(METRICS_PORT, flush=True)
"""


@pytest.mark.parametrize(
    "program",
    [
        "socket.socket().bind(('127.0.0.1', METRICS_PORT))",
        "http.server.HTTPServer(('127.0.0.1', METRICS_PORT), None)",
        "def serve(port): socketserver.TCPServer(('', port), None)\nserve(METRICS_PORT)",
        "socket.create_server(('127.0.0.1', METRICS_PORT))",
    ],
)
def test_the_port_that_was_in_use_is_noted(tmp_path: Path, program: str) -> None:
    held = PORTS.replace("held = ", "http.server.HTTPServer.allow_reuse_address = False\nheld = ")
    status, (note,) = noted(
        tmp_path, held + "open('port', 'w').write(str(METRICS_PORT))\n" + program
    )
    assert status == 1
    assert note["port"] == int((tmp_path / "port").read_text())


CLEANS_UP = """
import signal, sys, time
def clean_up():
    print("up", flush=True)
    time.sleep(60)
class Upload:
    def __enter__(self): return self
    def __exit__(self, *_): clean_up()
"""


@pytest.mark.parametrize(
    ("program", "errors", "line"),
    [
        ("try: raise ValueError('bad')\nfinally:\n    clean_up()", ["ValueError: bad"], 11),
        ("with Upload():\n    raise ValueError('bad')", ["ValueError: bad"], 9),
        ("try: sys.exit('no data')\nfinally: clean_up()", ["SystemExit: no data"], 10),
        ("clean_up()", None, 0),
    ],
)
def test_an_exception_on_its_way_is_noted_when_a_worker_is_asked_for_its_stack(
    tmp_path: Path, program: str, errors: list[str] | None, line: int
) -> None:
    code, notes = noted(tmp_path, CLEANS_UP + program, STACK_SIGNAL, signal.SIGTERM)
    (note,) = notes
    assert (code, note["how"], note.get("errors")) == (-15, "asked", errors)
    assert note.get("places", []) == ([[f"{tmp_path}/train.py", line]] if line else [])


def test_a_python_2_takes_no_notice(tmp_path: Path) -> None:
    """It would complain of a file that it cannot parse, in each process that a worker starts."""
    hook = HOOK / "sitecustomize.py"
    newer = (ast.AnnAssign, ast.JoinedStr, ast.NamedExpr, ast.AsyncFunctionDef, ast.FunctionDef)
    assert not [node for node in ast.walk(ast.parse(hook.read_text())) if isinstance(node, newer)]
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = 1")
    for python in ("python2", "python2.7"):
        if (
            not shutil.which(python)
            or subprocess.run([python, "-V"], capture_output=True).returncode
        ):
            continue  # a shim of pyenv's may stand for none
        python = shutil.which(python) or python
        done = run("import sys; print(sys.theirs)", [HOOK, tmp_path], python=python)
        assert (done.stdout, done.stderr) == ("1\n", "")


FREED = """
import sys, traceback, weakref
class Model: pass
def f():
    model = Model()
    refs.append(weakref.ref(model))
    raise KeyError("x")
def leave():
    try: f()
    except KeyError: sys.exit(1)
refs = []
try: f()
except KeyError: traceback.format_exc()
try: leave()
except SystemExit: pass
print([each() for each in refs])
"""


def test_what_is_kept_of_exceptions_keeps_nothing_else_alive(tmp_path: Path) -> None:
    ended = run(FREED, [HOOK], TORSH_STACK_FILE=str(tmp_path / "stack"))
    assert (ended.stdout, ended.stderr) == ("[None, None]\n", "")
