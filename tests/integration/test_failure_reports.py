"""What torshrun says about real workers that really failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes import marked, soon

from torshrun import cgroups

Run = Callable[..., tuple[int, str]]

MEBI = 1 << 20


@pytest.fixture
def torshrun(tmp_path: Path) -> Iterator[Run]:
    """run(script, *options, wrapper=(), environ={}): the exit code and stderr of a job."""
    mark = os.urandom(8).hex()
    kept = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_ERROR_FILE"}
    own = {**kept, "MARK": mark, "TMPDIR": str(tmp_path)}

    def run(
        script: str, *options: str, wrapper: tuple[str, ...] = (), **environ: str
    ) -> tuple[int, str]:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(script))
        command = [*wrapper, sys.executable, "-m", "torshrun", *options, str(path)]
        ended = subprocess.run(
            command, cwd=tmp_path, env={**own, **environ}, capture_output=True, timeout=60
        )
        return ended.returncode, ended.stderr.decode()

    yield run
    assert soon(lambda: not marked(mark)), marked(mark)


def report(stderr: str) -> list[str]:
    """The lines of the report, without what the workers wrote themselves."""
    return stderr[stderr.index("torshrun: rank ") :].split("\n")


def test_the_traceback_is_shown_although_more_was_written_after_it(torshrun: Run) -> None:
    code, stderr = torshrun(
        """
        import atexit, os, sys, time
        if os.environ["RANK"] != "1":
            time.sleep(60)
        atexit.register(lambda: print("\\nbye\\n" * 50, file=sys.stderr))
        def step():
            raise ValueError("shapes (3, 4) and (5,) do not fit")
        try:
            step()
        except ValueError as error:
            raise RuntimeError("step 7 failed") from error
        """,
        "--nproc-per-node=4",
    )
    assert code == 1
    lines = report(stderr[stderr.index("failed first") - 20 :])
    start = lines.index("  its traceback:")
    end = lines.index("  the last lines of its stderr:")
    assert "  | bye" in lines[end:]
    quoted = [line for line in lines[start + 1 : end] if line.startswith("  |")]
    assert quoted[0] == "  | Traceback (most recent call last):"
    assert "  | ValueError: shapes (3, 4) and (5,) do not fit" in quoted
    assert quoted[-1] == "  | RuntimeError: step 7 failed"
    assert "  after it: ranks 0, 2-3 stopped by torshrun" in lines


def test_a_crash_shows_where_python_called_it(torshrun: Run) -> None:
    code, stderr = torshrun(
        """
        import ctypes
        def load_batch():
            ctypes.string_at(0)
        load_batch()
        """
    )
    assert code == 139
    lines = report(stderr)
    assert "killed by SIGSEGV, exit code 139" in lines[0]
    assert lines[1].startswith("  It accessed memory that is not its own")
    assert "  | Fatal Python error: Segmentation fault" in lines
    assert any(line.endswith(" in load_batch") for line in lines if line.startswith("  |   File"))


def test_what_cannot_be_imported_and_by_whom(torshrun: Run) -> None:
    code, stderr = torshrun("import no_such_library.part")
    assert code == 1
    assert f"  {sys.executable} cannot import 'no_such_library'" in report(stderr)[1]


def test_wrong_arguments(torshrun: Run) -> None:
    script = "import argparse; p = argparse.ArgumentParser(); p.add_argument('x'); p.parse_args()"
    code, stderr = torshrun(script)
    assert code == 2
    assert report(stderr)[1].startswith("  It refused its arguments.")
    assert "  | usage: train.py" in stderr


def test_a_script_that_is_not_there_and_one_that_cannot_be_read(
    torshrun: Run, tmp_path: Path
) -> None:
    code, stderr = torshrun("def f(:\n    pass\n")
    assert code == 1
    assert report(stderr)[1].startswith(f"  {sys.executable} cannot read this as Python")
    code, stderr = torshrun("open('no/such/file')")
    assert (
        report(stderr)[1] == "  A file or directory is not where it is looked for: 'no/such/file'."
    )
    assert "\n  what to do: Paths that do not begin with / count from " in stderr


def test_a_kill_from_outside_is_told_from_one_for_want_of_memory(torshrun: Run) -> None:
    code, stderr = torshrun("import os; os.kill(os.getpid(), 9)")
    assert code == 137
    assert report(stderr)[1].startswith("  Only the kernel or another process sends it")


def test_what_record_wrote_is_shown_if_stderr_says_nothing(torshrun: Run) -> None:
    code, stderr = torshrun(
        """
        import os, sys
        import torsh_runtime as tr

        @tr.record
        def main():
            raise LookupError("no such shard")

        try:
            main()
        except LookupError:
            pass
        os._exit(6)
        """
    )
    assert code == 6
    assert "  from its error file:" in report(stderr)
    assert "  | LookupError: no such shard" in report(stderr)


def test_a_launcher_above_finds_the_root_cause(torshrun: Run, tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    script = "import os; raise KeyError('gone') if os.environ['RANK'] == '1' else SystemExit(0)"
    code, _ = torshrun(script, "--nproc-per-node=2", TORCHELASTIC_ERROR_FILE=str(path))
    assert code == 1
    message = json.loads(path.read_text())["message"]
    assert (message["message"], message["errorCode"]) == ("KeyError: 'gone'", 1)
    assert message["extraInfo"]["py_callstack"].startswith("Traceback")


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup of 64 MiB without swap, below this process's own, or beside it in version 2."""
    own = next((path[0] for path in cgroups.find("memory", Path("/"))), None)
    if own is None or not os.access(own.folder / "cgroup.procs", os.W_OK):
        pytest.skip("no writable memory cgroup")
    place = own.folder if own.version == 1 else own.folder.parent
    folder = place / f"torsh-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made in {place}: {error.strerror}")
    try:
        limit = "memory.limit_in_bytes" if own.version == 1 else "memory.max"
        if not (folder / limit).exists():
            pytest.skip(f"memory is not limited in {place}")
        (folder / limit).write_text(str(64 * MEBI))
        for name, value in (("memory.swappiness", "0"), ("memory.swap.max", "0")):
            if (folder / name).exists():
                (folder / name).write_text(value)
        yield folder
    finally:
        assert soon(lambda: _removed(folder)), f"{folder} cannot be removed"


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return not folder.exists()
    return True


def inside(folder: Path) -> tuple[str, ...]:
    """What starts a command in a cgroup."""
    return ("sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(folder))


def test_an_out_of_memory_kill_is_recognised(torshrun: Run, small_cgroup: Path) -> None:
    code, stderr = torshrun(
        """
        import os, time
        while os.environ["RANK"] == "0":
            time.sleep(1)
        hoard = [bytearray(os.urandom(1 << 20)) for _ in range(4096)]
        """,
        "--nproc-per-node=2",
        wrapper=inside(small_cgroup),
    )
    assert code == 128 + signal.SIGKILL, stderr
    explained = report(stderr[stderr.index("failed first") - 20 :])[1]
    assert explained.startswith("  The kernel killed it: out of memory (cgroup limit 64 MiB in ")
    assert f"/{small_cgroup.name}, its peak was " in explained
    assert "ask the scheduler" not in stderr


def test_so_is_that_of_a_workers_child(torshrun: Run, small_cgroup: Path) -> None:
    code, stderr = torshrun(
        """
        import os, subprocess, sys
        hoard = "import os; x = [bytearray(os.urandom(1 << 20)) for _ in range(4096)]"
        ended = subprocess.run([sys.executable, "-c", hoard])
        sys.exit(f"loader ended by SIGKILL" if ended.returncode == -9 else "unexpected")
        """,
        wrapper=inside(small_cgroup),
    )
    assert code == 1
    assert report(stderr)[1].startswith("  The kernel killed one of its processes: out of memory")
