"""The workers' output end to end: options, files, terminals and stalled readers."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes import marked, soon
from support.screen import Screen

from torshrun.exit_codes import PREEMPTED

KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH")


class Job:
    """Starts torshrun on a script, in a directory of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tmp").mkdir()
        self.mark = os.urandom(8).hex()
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        self.environ = {**kept, "TERM": "xterm", "TMPDIR": str(folder / "tmp"), "MARK": self.mark}
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, script: str, *options: str, **streams: int) -> subprocess.Popen[bytes]:
        path = self.folder / "train.py"
        head = "import os, sys, time\nrank = int(os.environ['RANK'])\n"
        path.write_text(head + textwrap.dedent(script))
        process = subprocess.Popen(
            [sys.executable, "-m", "torshrun", *options, str(path)],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},  # type: ignore[call-overload]
        )
        self.started.append(process)
        return process

    def run(self, script: str, *options: str, **streams: int) -> tuple[int, bytes, bytes]:
        process = self.start(script, *options, **streams)
        out, err = process.communicate(timeout=30)
        return process.returncode, out, err

    def file(self, name: str) -> Path:
        """A file below the job's only log directory, "logs"."""
        (folder,) = (self.folder / "logs").iterdir()
        return folder / name

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.wait(timeout=10)
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()
        assert soon(lambda: not marked(self.mark))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


class Window:
    """A terminal that shows what is written to `fd`."""

    def __init__(self, rows: int = 12, columns: int = 60) -> None:
        self._master, self.fd = pty.openpty()
        self.size(rows, columns)
        self.received = bytearray()
        self.screen = Screen(rows, columns)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def size(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self.fd, (rows, columns))

    def close(self) -> None:
        os.close(self.fd)
        self._thread.join(10)
        os.close(self._master)

    def _read(self) -> None:
        try:
            while data := os.read(self._master, 65536):
                self.received += data
                self.screen.feed(data)
        except OSError:  # EIO: all other ends are closed
            pass


@pytest.fixture
def window() -> Iterator[Callable[[], Window]]:
    made: list[Window] = []

    def open_window() -> Window:
        made.append(Window())
        return made[-1]

    yield open_window
    for each in made:
        each.close()


TALK = """
os.write(1, b"out %d\\n" % rank)
os.write(2, b"err \\xff\\n")
"""


def test_redirects_and_tee(job: Job) -> None:
    code, out, err = job.run(
        TALK, "--nproc-per-node=3", "--log-dir=logs", "--redirects=0:3,1:2", "--tee=1:1"
    )
    assert code == 0, err
    assert sorted(out.splitlines()) == [b"[1] out 1", b"[2] out 2"]
    assert err == b"[2] err \xff\n"
    assert job.file("attempt_0/0/stdout.log").read_bytes() == b"out 0\n"
    assert job.file("attempt_0/1/stderr.log").read_bytes() == b"err \xff\n"
    assert job.file("attempt_0/1/stdout.log").read_bytes() == b"out 1\n"
    assert not job.file("attempt_0/2/stdout.log").exists()


def test_filters_collect_from_ranks_that_are_not_shown(job: Job) -> None:
    code, out, err = job.run(
        "print('loss', rank); print('other')",
        "--nproc-per-node=2",
        "--log-dir=logs",
        "--duplicate-stdout-filters=loss",
        "--local-ranks-filter=0",
    )
    assert (code, out) == (0, b"[0] loss 0\n[0] other\n"), err
    chosen = job.file("attempt_0/filtered_stdout.log").read_bytes().splitlines()
    assert sorted(chosen) == [b"[0] loss 0", b"[1] loss 1"]


def test_times_rotation_and_the_prefix(job: Job) -> None:
    code, out, err = job.run(
        "for n in range(100): print('x' * 90)",
        "--log-dir=logs",
        "--log-timestamps",
        "--log-rotate=5000",
        "--log-line-prefix-template=${role_name}.${rank}: ",
    )
    assert code == 0, err
    time = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rb"(default\.0: %b x{90}\n){100}" % time, out)
    kept = b"".join(
        job.file(f"attempt_0/0/stdout.log{end}").read_bytes() for end in (".2", ".1", "")
    )
    assert re.fullmatch(rb"(%b x{90}\n){100}" % time, kept)


def test_a_failure_is_reported_though_its_output_went_to_a_file(job: Job) -> None:
    code, out, err = job.run("raise KeyError('gone')", "--log-dir=logs", "--redirects=3")
    assert (code, out) == (1, b"")
    assert b"KeyError: 'gone'" in err
    assert b"Traceback" in job.file("attempt_0/0/stderr.log").read_bytes()


def test_a_stalled_reader_of_stdout_does_not_hold_back_stderr(job: Job) -> None:
    process = job.start(
        """
        if rank == 0:
            while True: print("z" * 999)
        while not os.path.exists("go"): time.sleep(0.01)
        print("still here", file=sys.stderr)
        time.sleep(60)
        """,
        "--nproc-per-node=2",
    )
    assert process.stdout
    assert process.stderr
    assert process.stdout.read(4) == b"[0] "
    (job.folder / "go").touch()
    assert process.stderr.readline() == b"[1] still here\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=15) == PREEMPTED


def test_a_terminal_is_one_to_the_workers(job: Job, window: Callable[[], Window]) -> None:
    each = window()
    process = job.start(
        """
        try:
            os.open("/dev/tty", os.O_RDWR)
        except OSError:
            print(os.isatty(1), os.isatty(2), os.get_terminal_size(1).columns)
            print("oops", file=sys.stderr)
        """,
        stdout=each.fd,
        stderr=each.fd,
    )
    assert process.wait(timeout=30) == 0
    assert soon(lambda: sorted(each.screen.text()) == ["[0] True True 56", "[0] oops"])
    assert b"\x1b[38;5;" in each.received


ALTERNATE = """
for number in range(200):
    print("out", number)
    print("err", number, file=sys.stderr)
"""


def in_order(text: str, prefix: str) -> bool:
    """Whether the lines of ALTERNATE that stand behind this prefix are in the order of writing."""
    lines = [line for line in text.splitlines() if line.startswith(prefix)]
    return lines == [f"{prefix}{name} {number}" for number in range(200) for name in ("out", "err")]


def test_both_streams_keep_their_order_where_they_go_to_one_place(
    job: Job, window: Callable[[], Window]
) -> None:
    (job.folder / "hosts").write_text("localhost\n")
    shell = "for n in $(seq 0 199); do echo out $n; echo err $n >&2; done"
    for options, prefixes in (
        (("--nproc-per-node", "2"), ("[0] ", "[1] ")),
        (("--hostfile", "hosts"), ("localhost: [0] ",)),
        (("--no-python", "sh", "-c", shell), ("[0] ",)),
    ):
        text = job.run(ALTERNATE, *options, stderr=subprocess.STDOUT)[1].decode()
        assert all(in_order(text, prefix) for prefix in prefixes), text
    job.environ["NO_COLOR"] = "1"
    each = window()
    process = job.start(ALTERNATE, "--status-line", "never", stdout=each.fd, stderr=each.fd)
    assert process.wait(timeout=30) == 0
    assert soon(lambda: in_order(each.received.decode().replace("\r\n", "\n"), "[0] "))


def test_a_report_says_that_it_shows_both_streams_where_they_are_one(job: Job) -> None:
    script = "print('out'); print('err', file=sys.stderr); os._exit(3)"
    one, apart = (
        job.run(script, *options, stderr=subprocess.STDOUT)[1].decode()
        for options in ((), ("--tee", "3"))
    )
    assert "the last lines of its output:\n  | out\n  | err\n" in one
    assert "the last lines of its stderr:\n  | err\n" in apart


def test_only_the_terminal_s_stream_is_a_terminal(job: Job, window: Callable[[], Window]) -> None:
    each = window()
    process = job.start("print(os.isatty(1), os.isatty(2))", stderr=each.fd)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, b"[0] False True\n")


def test_workers_learn_of_a_new_window_size(job: Job, window: Callable[[], Window]) -> None:
    each = window()
    process = job.start(
        """
        print("up")
        while (columns := os.get_terminal_size(1).columns) != 96: time.sleep(0.01)
        print("resized")
        """,
        stdout=each.fd,
        stderr=each.fd,
    )
    assert soon(lambda: "[0] up" in each.screen.text())
    each.size(12, 100)
    process.send_signal(signal.SIGWINCH)  # as the kernel does for a terminal's own processes
    assert process.wait(timeout=30) == 0


def test_the_status_line_is_below_the_log_and_goes(job: Job, window: Callable[[], Window]) -> None:
    each = window()
    process = job.start(
        """
        n = 0
        while not os.path.exists("go"):
            n += 1
            print("step", n); time.sleep(0.02)
        print("name? ", end="")
        """,
        stdout=each.fd,
        stderr=each.fd,
    )
    assert soon(lambda: "1/1 workers" in "".join(each.screen.text()[-1:]), 30)
    (job.folder / "go").touch()
    assert process.wait(timeout=30) == 0
    assert soon(lambda: each.screen.text()[-1] == "[0] name?")
    rows = each.screen.text()[:-1]
    assert rows == [f"[0] step {n + 1}" for n in range(len(rows))]


def test_the_status_line_shows_a_loops_bar(job: Job, window: Callable[[], Window]) -> None:
    each = window()
    process = job.start(
        """
        from torsh_runtime.monitoring import progress
        for n in (bar := progress(range(100_000), desc="train", mininterval=0.01)):
            bar.set_postfix(loss=0.5)
            time.sleep(0.01)
            if os.path.exists("go"): break
        """,
        stdout=each.fd,
        stderr=each.fd,
    )
    shown = re.compile(r"step [\d,]+/100,000  [\d.]+ it/s, loss 0\.5")
    assert soon(lambda: bool(shown.search("".join(each.screen.text()[-1:]))), 30)
    (job.folder / "go").touch()
    assert process.wait(timeout=30) == 0
    left = re.compile(rb"train: +0%.*\| \d+/100000 \[")
    assert soon(lambda: bool(left.search(each.received)))


def test_much_output_on_a_terminal_is_complete(job: Job, window: Callable[[], Window]) -> None:
    each = window()
    process = job.start(
        "for n in range(5000): print(n)\nos._exit(3)",
        "--nproc-per-node=2",
        "--color=never",
        "--status-line=never",
        stdout=each.fd,
        stderr=each.fd,
    )
    assert process.wait(timeout=30) == 3
    assert soon(lambda: b"restarts" in each.received or b"failed first" in each.received)
    ended = [rank for rank in range(2) if b"[%d] 4999\r\n" % rank in each.received]
    assert ended
    for rank in ended:
        numbers = re.findall(rb"\[%d\] (\d+)\r\n" % rank, each.received)
        assert numbers == [b"%d" % number for number in range(5000)]


# ---- a reader who leaves, and a log directory that somebody replaces


def test_a_reader_who_leaves_does_not_end_the_job_and_that_is_said(job: Job) -> None:
    """As `torshrun ... | head -1` does."""
    script = """
        print("first", flush=True)
        while not os.path.exists("closed"):
            time.sleep(0.01)
        for number in range(10000):
            print("z" * 100)
        open("done", "w").close()
    """
    process = job.start(script, "--events", "events", "--log-dir", "logs")
    assert process.stdout
    assert process.stdout.readline() == b"[0] first\n"
    process.stdout.close()
    (job.folder / "closed").touch()
    assert process.stderr
    said = process.stderr.read()
    assert process.wait(timeout=30) == 0
    assert said.count(b"on stdout (Broken pipe)") == said.count(b"\n") == 1, said
    assert (job.folder / "done").exists()
    assert job.file("attempt_0/0/stdout.log").stat().st_size > 10000 * 100
    lost = [
        line for line in (job.folder / "events").read_text().splitlines() if "output_lost" in line
    ]
    assert len(lost) == 1
    assert '"stream":"stdout","reason":"Broken pipe"' in lost[0]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_job_runs_without_standard_streams(job: Job, closed: str) -> None:
    """As those who start daemons leave them out, and nothing else gets their numbers."""
    (job.folder / "train.py").write_text("import os\nos.write(2, b'x'); open('done', 'w')")
    torshrun = f'exec "{sys.executable}" -m torshrun --events events train.py {closed}'
    code = subprocess.call(["sh", "-c", torshrun], cwd=job.folder, env=job.environ, timeout=30)
    assert code == 0
    assert (job.folder / "done").exists()
    for line in (job.folder / "events").read_text().splitlines():
        assert line.startswith("{")


def test_nothing_is_written_through_a_link_in_the_log_directorys_place(job: Job) -> None:
    """Who owns the directory around it may replace it at any time, for instance between attempts;
    what it leads to then is not touched, though the agent may be root.
    """
    precious = job.folder / "precious"
    (precious / "attempt_1" / "0").mkdir(parents=True)
    logs = job.folder / "logs"
    script = """
        print("attempt", os.environ["TORSH_ROUND"], flush=True)
        if os.environ["TORSH_ROUND"] == "0":
            (folder,) = os.listdir("logs")
            os.rename(f"logs/{folder}", "logs/moved")
            os.symlink(os.path.abspath("precious"), f"logs/{folder}")
        error_file = os.environ["TORCHELASTIC_ERROR_FILE"]
        with open(error_file, "w") as file:
            file.write('{"message": "attempt %s"}' % os.environ["TORSH_ROUND"])
        sys.exit(3)
    """
    code, _, err = job.run(script, "--max-restarts", "1", "--log-dir", str(logs))
    assert code == 79, err
    assert [path for path in precious.rglob("*") if path.is_file()] == []
    for attempt in ("0", "1"):
        folder = logs / "moved" / f"attempt_{attempt}" / "0"
        assert (folder / "stdout.log").read_text() == f"attempt {attempt}\n"
        assert (folder / "error.json").read_text() == f'{{"message": "attempt {attempt}"}}'
    assert (logs / "moved").stat().st_mode & 0o777 == 0o700
