"""Runs programs that start torchrun, with and without torshrun in its place.

Each front end runs the same scenes twice, with TORSHRUN_AS_TORCHRUN=1 and without it, and each cell
shows the result. Then the time from `torchrun` to its workers' first lines is measured, with and
without.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks.bars import Check
from benchmarks.launch import launch
from benchmarks.launchers import GLOO, TORCHRUN, Launcher
from benchmarks.processes import Program, interrupt_on_term, started
from benchmarks.session import positive
from benchmarks.table import render

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
SCENES = ("runs", "raises", "oom", "hangs", "killed", "preempted")
START_RATIO = 0.15
HANG_SECONDS = 4
TO_BE_READY, TO_END, TO_BE_GONE = 240.0, 45.0, 15.0
_REPORT = re.compile(r"torshrun: rank 1 failed first|Root Cause \(first observed failure\)")
_SKYPILOT = """\
MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE \
  --master_addr=$MASTER_ADDR --master_port=8008 --node_rank=${SKYPILOT_NODE_RANK} "$@"
"""
_SKYPILOTS = {
    "SKYPILOT_NODE_IPS": "127.0.0.1",
    "SKYPILOT_NUM_NODES": "1",
    "SKYPILOT_NODE_RANK": "0",
    "SKYPILOT_NUM_GPUS_PER_NODE": "2",
}
_KUBEFLOWS = {
    "PET_NNODES": "1",
    "PET_NPROC_PER_NODE": "2",
    "PET_NODE_RANK": "0",
    "PET_MASTER_ADDR": "127.0.0.1",
    "PET_MASTER_PORT": "29431",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """Describes a way to start two workers."""

    name: str
    words: Sequence[str]
    """The command before the script and its arguments."""
    script: str = "front_ends_scene.py"
    args: Sequence[str] = ()
    """Arguments of the script before the scene and the folder."""
    env: dict[str, str] = field(default_factory=dict)
    needs: str = ""
    """The program without which it cannot be run."""

    def command(self, scene: str, folder: Path) -> list[str]:
        return [*self.words, str(HERE / self.script), *self.args, scene, str(folder)]


def front_ends() -> list[FrontEnd]:
    torchrun, two = str(BIN / "torchrun"), ("--nproc_per_node", "2")
    accelerate = (str(BIN / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2")
    torchx = (str(BIN / "torchx"), "run", "-s", "local_cwd", "dist.ddp", "-j", "1x2", "--script")
    python, function = (sys.executable,), "front_ends_function.py"
    return [
        FrontEnd(name="torchrun", words=(torchrun, *two)),
        FrontEnd(
            name="-m torch.distributed.run", words=(*python, "-m", "torch.distributed.run", *two)
        ),
        FrontEnd(name="accelerate launch", words=accelerate, needs=accelerate[0]),
        FrontEnd(
            name="notebook_launcher", words=python, script=function, args=("notebook_launcher",)
        ),
        FrontEnd(
            name="Lightning",
            words=python,
            script="front_ends_lightning.py",
            needs=str(BIN / "fabric"),
        ),
        FrontEnd(name="transformers", words=(torchrun, *two), script="front_ends_transformers.py"),
        FrontEnd(name="elastic_launch", words=python, script=function, args=("elastic_launch",)),
        FrontEnd(name="torchx local", words=torchx, needs=torchx[0]),
        FrontEnd(name="PET_*", words=(torchrun,), env=_KUBEFLOWS),
        FrontEnd(name="SkyPilot's lines", words=("bash", "-c", _SKYPILOT, "job"), env=_SKYPILOTS),
    ]


class Scene:
    """Plays one scene with one front end, with or without torshrun in torchrun's place."""

    def __init__(self, front_end: FrontEnd, scene: str, folder: Path, *, ours: bool) -> None:
        self._front_end, self._scene, self._folder = front_end, scene, folder
        self._env = {
            "TORSHRUN_AS_TORCHRUN": str(int(ours)),
            "TORSH_HANG_TIMEOUT": str(HANG_SECONDS),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
            "TMPDIR": str(folder),
            "PYTHONDONTWRITEBYTECODE": "",  # see benchmarks/launchers.py for the reason
            **front_end.env,
        }

    def play(self) -> str:
        """Return what is wrong, or "" if all is right."""
        command = self._front_end.command(self._scene, self._folder)
        with (self._folder / "output").open("w") as output:
            program = Program(command, self._folder, self._env)
            with started(program, stdout=output.fileno(), stderr=output.fileno()) as process:
                pids = self._workers(process)
                if len(pids) < 2:
                    return f"no workers came: {self._text()[-300:]}"
                judge: Callable[[subprocess.Popen[str], list[int]], str]
                judge = getattr(self, f"_{self._scene}")
                return judge(process, pids)

    def _workers(self, process: subprocess.Popen[str]) -> list[int]:
        """Return the workers' process ids, once both are ready."""
        deadline = time.monotonic() + TO_BE_READY
        paths = [self._folder / f"ready{rank}" for rank in (0, 1)]
        while not all(path.exists() for path in paths) and time.monotonic() < deadline:
            if process.poll() is not None:
                break
            time.sleep(0.05)
        return [int(path.read_text()) for path in paths if path.exists()]

    def _text(self) -> str:
        return (self._folder / "output").read_text(errors="replace")

    def _runs(self, process: subprocess.Popen[str], pids: list[int]) -> str:
        code = _ended(process, TO_BE_READY)
        return "" if code == 0 else f"code {code}"

    def _raises(self, process: subprocess.Popen[str], pids: list[int]) -> str:
        return self._failed(process, pids, "ValueError: bad batch")

    def _oom(self, process: subprocess.Popen[str], pids: list[int]) -> str:
        return self._failed(process, pids, "MemoryError")

    def _failed(self, process: subprocess.Popen[str], pids: list[int], words: str) -> str:
        code = _ended(process, TO_END)
        if code is None:
            return "does not end"
        found = _REPORT.search(self._text())
        report = self._text()[found.start() :] if found else ""
        return _all_of(
            _is_bad(code),
            "" if words in report else "no report says why",
            _left(pids),
        )

    def _hangs(self, process: subprocess.Popen[str], pids: list[int]) -> str:
        code = _ended(process, TO_END)
        if code is None:
            return "hangs for ever"
        told = "" if "no progress for" in self._text() else "nothing says so"
        return _all_of(_is_bad(code), told, _left(pids))

    def _killed(self, process: subprocess.Popen[str], pids: list[int]) -> str:
        os.kill(_agent(process.pid), signal.SIGKILL)
        return _left(pids)

    def _preempted(self, process: subprocess.Popen[str], pids: list[int]) -> str:
        is_shell = psutil.Process(process.pid).name() == "bash"
        os.kill(_agent(process.pid) if is_shell else process.pid, signal.SIGTERM)
        code = _ended(process, TO_END)
        if code is None:
            return "does not end"
        saved = len([*self._folder.glob("saved*")]) == 2 or [*self._folder.glob("*.ckpt")]
        return _all_of(_is_bad(code), "" if saved else "nothing is saved", _left(pids))


def _agent(pid: int) -> int:
    """Return the launcher's process, which a shell or TorchX may have started."""
    process = psutil.Process(pid)
    while process.name() in ("bash", "torchx") and process.children():
        process = process.children()[0]
    return process.pid


def _ended(process: subprocess.Popen[str], timeout: float) -> int | None:
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None


def _is_bad(code: int) -> str:
    return "" if code else "code 0"


def _left(pids: Sequence[int]) -> str:
    """Return a text about workers that still run after a while, or ""."""
    deadline = time.monotonic() + TO_BE_GONE
    while True:
        left = [pid for pid in pids if _runs(pid)]
        if not left or time.monotonic() > deadline:
            return f"{len(left)} workers are left" if left else ""
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _all_of(*problems: str) -> str:
    return ", ".join(filter(None, problems))


def start_ms(*, ours: bool) -> float:
    """Return the time from the command to the last worker's first line, in ms.

    It is measured as in benchmarks/launch.py.
    """
    launcher = Launcher(name=TORCHRUN, peer=GLOO, start=(str(BIN / "torchrun"),))
    os.environ["TORSHRUN_AS_TORCHRUN"] = str(int(ours))
    with tempfile.TemporaryDirectory(prefix="torsh-benchmark-") as name:
        return launch(launcher, Path(name), TO_BE_READY)[0]


def measure_start(rounds: int) -> Check:
    taken = [(start_ms(ours=True), start_ms(ours=False)) for _ in range(rounds)]
    ours, theirs = (statistics.median(column) for column in zip(*taken, strict=True))
    print(f"first lines, medians of {rounds} rounds: {ours:.0f} ms, torch's own {theirs:.0f} ms")
    return Check("first lines, of torchrun's time", ours / theirs, START_RATIO, at_most=True)


def measure_scene(front_end: FrontEnd, scene: str, *, ours: bool) -> str:
    with tempfile.TemporaryDirectory(prefix="torsh-benchmark-") as name:
        begun = time.monotonic()
        problem = Scene(front_end, scene, Path(name), ours=ours).play()
        who = "torshrun" if ours else "torch's own"
        took = f"{time.monotonic() - begun:.1f} s"
        said = problem or "right"
        print(f"{front_end.name}, {scene}, {who}: {said} ({took})", flush=True)
        if problem and ours:
            shutil.copy(Path(name) / "output", Path(tempfile.gettempdir()) / "front_ends_output")
        return said


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [each.name for each in front_ends()]
    parser.add_argument("--front-ends", default=",".join(names), help="names, between commas")
    parser.add_argument("--scenes", default=",".join(SCENES), help="names, between commas")
    parser.add_argument("--rounds", type=positive, default=5, help="of starts [5]")
    parser.add_argument("--no-peer", action="store_true", help="leave torch's own column out")
    parser.add_argument("--bars", action="store_true", help="end with 1 if a cell is not right")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    wanted = [each for each in front_ends() if each.name in options.front_ends.split(",")]
    missing = [each.name for each in wanted if each.needs and not Path(each.needs).exists()]
    scenes, body, right, cells = options.scenes.split(","), [], 0, 0
    for front_end in wanted:
        if front_end.name in missing:
            print(f"{front_end.name}: not installed here")
            continue
        for scene in scenes:
            ours = measure_scene(front_end, scene, ours=True)
            peer = "-" if options.no_peer else measure_scene(front_end, scene, ours=False)
            body.append((front_end.name, scene, ours, peer))
            right, cells = right + (ours == "right"), cells + 1
    print("\n" + render(("front end", "scene", "torshrun", "torch's own"), body))
    checks = [Check("cells that are right", right, cells)]
    if not options.no_peer:
        checks.append(measure_start(options.rounds))
    print("\n".join(map(str, checks)))
    return int(options.bars and not all(check.passed for check in checks))


if __name__ == "__main__":
    raise SystemExit(main())
