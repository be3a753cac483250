"""Python stacks of running processes, through py-spy where it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from torshrun.health import usage

AT_A_TIME = 4
"""Dumps that run at the same time."""
DUMP_BOUND = 5.0
"""Seconds that one run of py-spy may take."""
_LOOK_BELOW = 4
"""Processes of a worker that are tried until one is Python: a script may have started it."""
_MISSING = "py-spy is not installed: pip install 'torshrun[debug]' for Python stacks here"
_FORBIDDEN = (
    "py-spy may not look into the workers: run as root, or with the capability SYS_PTRACE "
    "(in a container: --cap-add SYS_PTRACE)"
)
_NOT_PYTHON = "no Python process"


@dataclass(frozen=True, slots=True)
class Stacks:
    """What could be found out."""

    texts: dict[int, str]
    """By pid: lines, the most recent call of each thread first; "no Python process" of what is
    none; "" where nothing could be found out."""
    hint: str
    """Why something is missing and what to do about it; "" if nothing is."""


async def collect(pids: Sequence[int], timeout: float) -> Stacks:
    """The stacks of these processes, as far as they can be had within `timeout` seconds."""
    program = find_program()
    if not program:
        return Stacks(dict.fromkeys(pids, ""), _MISSING)
    turns = asyncio.Semaphore(AT_A_TIME)
    tasks = {pid: asyncio.create_task(_dump(program, pid, turns)) for pid in pids}
    try:
        if tasks:
            await asyncio.wait(tasks.values(), timeout=timeout)
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    late = ("", f"py-spy did not answer within {timeout:g} s")
    found = {pid: late if task.cancelled() else task.result() for pid, task in tasks.items()}
    hints = dict.fromkeys(hint for _, hint in found.values() if hint)
    return Stacks({pid: text for pid, (text, _) in found.items()}, "; ".join(hints))


def find_program() -> str:
    """Path of py-spy: beside this Python, or in PATH; "" if it is not installed."""
    import shutil

    beside = os.path.dirname(sys.executable)  # noqa: PTH120  (it may be empty)
    return shutil.which("py-spy", path=beside) or shutil.which("py-spy") or ""


async def _dump(program: str, pid: int, turns: asyncio.Semaphore) -> tuple[str, str]:
    """The stack of a worker, and why there is none."""
    hint = ""
    async with turns:
        for process in islice(usage.tree(pid), _LOOK_BELOW):
            # First without stopping the process, which succeeds where it stands still.
            for mode in ("--nonblocking", ""):
                text, hint = await _dump_process(program, process, mode)
                if text != "" and text != _NOT_PYTHON:
                    return text, ""
                if text == _NOT_PYTHON or hint == _FORBIDDEN:
                    break
    return (_NOT_PYTHON, "") if not hint else ("", hint)


async def _dump_process(program: str, pid: int, mode: str) -> tuple[str, str]:
    argv = [program, "dump", "--json", "--pid", str(pid), *([mode] if mode else [])]
    try:
        async with asyncio.timeout(DUMP_BOUND):
            code, out, err = await _run(argv)
    except TimeoutError:
        return "", f"py-spy did not answer within {DUMP_BOUND:g} s"
    except OSError as error:
        return "", f"py-spy cannot be run: {error}"
    return _result(code, out, err.decode(errors="replace"))


async def _run(argv: Sequence[str]) -> tuple[int, bytes, bytes]:
    """Exit code and output; the process does not outlive this call."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return process.returncode or 0, out, err


def _result(code: int, out: bytes, err: str) -> tuple[str, str]:
    import json

    if code == 0:
        try:
            return format_threads(json.loads(out)), ""
        except (ValueError, TypeError, KeyError, AttributeError):
            return "", "py-spy gave an answer that is none"
    if "python version" in err.lower():
        return _NOT_PYTHON, ""
    if "permission" in err.lower() or "not permitted" in err.lower():
        return "", _FORBIDDEN
    causes = [line.strip() for line in err.splitlines() if line.strip()]
    return "", f"py-spy failed: {causes[0] if causes else f'exit code {code}'}"


def format_threads(threads: Sequence[dict[str, object]]) -> str:
    """py-spy's threads in lines, the main one first; what stands at the same place looks alike in
    all processes.
    """
    ordered = sorted(threads, key=_is_main, reverse=True)
    return "\n".join(line for thread in ordered for line in _thread_lines(thread))


def _is_main(thread: dict[str, object]) -> bool:
    return thread.get("os_thread_id") == thread.get("pid")


def _thread_lines(thread: dict[str, object]) -> list[str]:
    frames = thread["frames"]
    if not isinstance(frames, list):
        raise TypeError("frames")
    usual = "MainThread" if _is_main(thread) else "a thread without a name"
    name = thread.get("thread_name") or usual
    lines = [f"{name} ({'active' if thread.get('active') else 'idle'})"]
    return lines + [f"  {_frame(frame)}" for frame in frames]


def _frame(frame: dict[str, object]) -> str:
    place = frame.get("short_filename") or frame.get("filename")
    return f"{frame['name']} ({place}:{frame['line']})"
