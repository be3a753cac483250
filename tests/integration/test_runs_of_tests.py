"""The command that runs the tests: it ends, says what hangs, and what it says of tests is true."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from support.forked import run_forked
from support.processes import marked, soon

TESTS = Path(__file__).parents[1]
_COMMAND = """
import sys
sys.path.insert(0, {tests!r})
import run
sys.exit(run.run(sys.argv[1:], {limit}))
"""
_HEAD = """
import ctypes, os, pathlib, subprocess, sys, time
import pytest

def is_first(name):
    try:
        open(name, "x").close()
    except FileExistsError:
        return False
    return True
"""


class Tree:
    """Some tests in a folder, and the command that runs them."""

    def __init__(self, folder: Path, **files: str) -> None:
        self.folder, self.mark = folder, os.urandom(8).hex()
        (folder / "pytest.ini").write_text(
            f"[pytest]\npythonpath = {TESTS}\naddopts = -p no:cacheprovider -p xdist\n"
        )
        (folder / "conftest.py").write_text(
            'pytest_plugins = ("support.quick", "support.run_record")\n'
        )
        for name, text in files.items():
            (folder / f"test_{name}.py").write_text(_HEAD + textwrap.dedent(text))

    def start(self, *arguments: str, limit: float = 60) -> subprocess.Popen[str]:
        command = _COMMAND.format(tests=str(TESTS), limit=limit)
        return subprocess.Popen(
            [sys.executable, "-P", "-c", command, *arguments],
            cwd=self.folder,
            env=os.environ
            | {"MARK": self.mark, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
            | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, limit: float = 60) -> tuple[int, str]:
        """The exit code and the output; of all that was started nothing may be left."""
        process = self.start(*arguments, limit=limit)
        output = process.communicate(timeout=100)[0]
        assert soon(lambda: not marked(self.mark)), output
        return process.returncode, output


def test_one_that_fails_once_is_unsteady_and_a_crash_of_a_worker_is_a_failure(
    tmp_path: Path,
) -> None:
    tree = Tree(
        tmp_path,
        once="""
            def test_once():
                assert not is_first("once")
            def test_another():
                pass
        """,
        crash="""
            def test_crash():
                if is_first("crash"):
                    os._exit(0)
            def test_beside_it():
                pass
        """,
    )
    code, output = tree.run()
    assert code == 0, output
    assert "2 failed" in output
    assert "unsteady: test_once.py::test_once\n" in output
    assert "unsteady: test_crash.py::test_crash\n" in output
    assert output.count("1 passed") == 4  # each of the two, alone, twice


def test_what_does_not_pass_by_itself_fails_the_run(tmp_path: Path) -> None:
    tree = Tree(
        tmp_path,
        some="""
            def test_always():
                assert False
            def test_once_passed_then_failed():
                assert not is_first("first") and is_first("second")
            def test_skipped_afterwards():
                if not is_first("third"):
                    pytest.skip("by itself")
                assert False
        """,
    )
    code, output = tree.run()
    assert code == 1, output
    assert output.count("failed again: ") == 3
    assert "unsteady" not in output


def test_more_than_a_few_unsteady_ones_fail_the_run(tmp_path: Path) -> None:
    tree = Tree(
        tmp_path,
        many="""
            @pytest.mark.parametrize("number", range(4))
            def test_once(number):
                assert not is_first(f"{number}")
        """,
    )
    code, output = tree.run()
    assert (code, output.count("== test session starts")) == (1, 1), output
    assert "4 tests failed" in output


@pytest.mark.parametrize(
    ("text", "arguments", "code", "said"),
    [
        ("import nowhere", (), 1, "No module named 'nowhere'"),
        ("def test_a(): os._exit(0)", ("test_x.py",), 1, "have not run:   test_x.py::test_a"),
        ("def test_a(): assert False", ("-k", "a"), 1, "1 failed"),
        ("def test_a(): assert False", ("--collect-only",), 0, "1 test collected"),
    ],
)
def test_other_runs_end_with_the_code_that_tells_of_them(
    tmp_path: Path, text: str, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended, output = Tree(tmp_path, x=text).run(*arguments)
    assert ended == code, output
    assert said in output.replace("\n", " ")
    assert output.count("== test session starts") <= 1


def test_the_cost_of_files_is_that_of_their_tests_and_of_processes_that_they_start(
    tmp_path: Path,
) -> None:
    """What only waits costs nothing. Bytecode is kept, though the environment says otherwise."""
    tree = Tree(
        tmp_path,
        busy="""
            BUSY = "import time\\nwhile time.process_time() < 0.6: pass"
            def test_busy():
                subprocess.run([sys.executable, "-c", BUSY], check=True)
            def test_bytecode():
                assert not sys.dont_write_bytecode
        """,
        idle="def test_idle(): time.sleep(0.6)",
    )
    code, output = tree.run()
    assert code == 0, output
    files = re.findall(r"^ +([0-9.]+) of +([0-9.]+)  (test_\w+)", output, re.MULTILINE)
    assert [name for *_, name in files] == ["test_busy", "test_idle"], output
    (busy, _, _), (idle, lasted, _) = files
    assert float(busy) >= 0.6 > float(idle), output
    assert float(lasted) >= 0.6, output


def threads_after_a_product(_: int = 0) -> int:
    """How many there are once large matrices have been multiplied; one for each processor is what
    OpenBLAS would have."""
    large = np.ones((512, 512))
    assert (large @ large)[0, 0] == 512
    return len(os.listdir("/proc/self/task"))


def test_processes_of_tests_multiply_matrices_on_one_thread() -> None:
    assert run_forked(2, threads_after_a_product) == [1, 1]


@pytest.mark.torch
def test_torch_computes_on_one_thread_in_tests_and_what_they_fork() -> None:
    torch = pytest.importorskip("torch")
    assert torch.get_num_threads() == 1
    assert run_forked(2, lambda _: torch.get_num_threads()) == [1, 1]


def test_programs_that_tests_start_have_as_many_threads_as_usual() -> None:
    code = (
        "from support.one_thread import load_numpy; load_numpy(); import os; print(len(os.environ))"
    )
    environ = {"PYTHONPATH": str(Path(__file__).parents[1]), "LC_CTYPE": "C.UTF-8"}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, check=True, text=True)
    assert int(done.stdout) == len(environ)


def test_a_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    tree = Tree(tmp_path, slow="def test_slow(): time.sleep(1000)")
    code, output = tree.run(limit=0.6)
    assert code == 1, output
    assert "the run had not ended after 0.01 minutes and is ended" in output


def test_a_run_that_is_ended_says_where_all_stands_and_takes_all_with_it(tmp_path: Path) -> None:
    tree = Tree(
        tmp_path,
        gil="""
            def test_holds_the_gil():
                mutex = (ctypes.c_char * 64)()
                library = ctypes.PyDLL(None)  # keeps the GIL while it is in C
                library.pthread_mutex_lock(mutex)
                is_first("gil")
                library.pthread_mutex_lock(mutex)
        """,
        child="""
            DETACHED = "import os, time; os.fork() or (os.setsid(), time.sleep(1000))"
            STUCK = "def stuck():\\n open('child', 'x')\\n time.sleep(1000)\\nimport time\\nstuck()"
            def test_waits_for_a_child():
                subprocess.run([sys.executable, "-c", DETACHED], check=True)
                pathlib.Path("stuck.py").write_text(STUCK)
                subprocess.run([sys.executable, "stuck.py"])
        """,
    )
    process = tree.start()
    try:
        assert soon(lambda: (tmp_path / "gil").exists() and (tmp_path / "child").exists(), 60)
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=100)[0]
    finally:
        process.kill()
    assert process.returncode == 1, output
    assert "got SIGTERM and is ended. These tests were running:" in output
    for test in ("test_gil.py::test_holds_the_gil", "test_child.py::test_waits_for_a_child"):
        assert f"  {test} for " in output
    assert re.search(r'test_gil.py", line \d+ in test_holds_the_gil', output)
    assert re.search(r'test_child.py", line \d+ in test_waits_for_a_child', output)
    assert "stuck (stuck.py:3)" in output
    assert "os.setsid()" in output
    assert soon(lambda: not marked(tree.mark))


def test_quick_chooses_units_and_the_first_of_each_file_of_integration(tmp_path: Path) -> None:
    """Also in a file that is new, and whose first one is slow."""
    text = """
        @pytest.mark.slow
        def test_slow(): pass
        @pytest.mark.parametrize("number", range(2))
        def test_first(number): pass
        def test_second(): pass
    """
    (tmp_path / "tests/unit/some").mkdir(parents=True)
    (tmp_path / "tests/integration").mkdir()
    (tmp_path / "tests/fault").mkdir()
    for name in ("unit/some/test_a", "integration/test_b", "integration/test_c", "fault/test_d"):
        (tmp_path / f"tests/{name}.py").write_text(_HEAD + textwrap.dedent(text))
    code, output = Tree(tmp_path).run("--quick", "-q", "--collect-only", "tests")
    assert code == 0, output
    assert [line for line in output.splitlines() if "::" in line] == [
        "tests/integration/test_b.py::test_first[0]",
        "tests/integration/test_c.py::test_first[0]",
        *(f"tests/unit/some/test_a.py::{name}" for name in ("test_first[0]", "test_first[1]")),
        "tests/unit/some/test_a.py::test_second",
    ]
