"""Python stacks of running processes, through py-spy where it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat

from torshrun import own_programs
from torshrun.procfs import tree

AT_A_TIME = 4
DUMP_BOUND = 5.0
"""Seconds that one run of py-spy may take."""
_LOOK_BELOW = 4
"""Processes of a worker that are tried until one is Python: a script may have started it."""
_MISSING = "py-spy is not installed: pip install py-spy for Python stacks here"
_FORBIDDEN = (
    "py-spy may not look into the workers: run as root, or with the capability SYS_PTRACE "
    "(in a container: --cap-add SYS_PTRACE)"
)
_NOT_PYTHON = "no Python process"
_AT_BREAKPOINT = re.compile(r"\binteraction \((?:\S*/)?pdb\.py:|\b_?do_wait_suspend \(")
"""Matches pdb, tools built on it, and pydevd, while somebody types or looks on."""
_DEEPER = " " * 8
_COLLECTIVE = re.compile(r"\((?:torch/distributed/distributed_c10d|torsh_runtime/comm/\w+)\.py:")
_ARGUMENT = re.compile(
    r"^ {12}(?P<name>(?:group_)?(?:src|dst)|tag|ranks|group_name|(?:in|out)put_split_sizes): "
    r'(?P<value>-?[0-9]+|None|"[0-9]+"|\[[0-9, ]*(?:\.\.\.)?\])$'
)
_THREAD = re.compile(r'^Thread \S+ \((?P<state>\w+).*?\)(?:: "(?P<name>.*)")?$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Stacks:
    texts: dict[int, str]
    """Stacks by pid: lines, the most recent call of each thread first; "no Python process" for a
    process that is none; "" where nothing could be found out.
    """
    hint: str
    """A hint why something is missing and what to do about it; "" if nothing is."""


async def collect(pids: Sequence[int], timeout: float) -> Stacks:
    """Return the stacks of these processes, as far as they can be had within `timeout` seconds."""
    program = find_program()
    if not program:
        return Stacks(dict.fromkeys(pids, ""), _MISSING)
    turns = asyncio.Semaphore(AT_A_TIME)
    found = dict.fromkeys(pids, ("", f"py-spy did not answer within {timeout:g} s"))

    async def dump(pid: int) -> None:
        async with turns:
            found[pid] = await _dump(program, pid)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
            for pid in found:
                group.create_task(dump(pid))
    hints = dict.fromkeys(hint for _, hint in found.values() if hint)
    return Stacks({pid: text for pid, (text, _) in found.items()}, "; ".join(hints))


def is_at_breakpoint(text: str) -> bool:
    """Return whether the process with this stack is in a debugger."""
    return bool(_AT_BREAKPOINT.search(text))


def find_program() -> str:
    """Return the path of py-spy: beside this Python, or in PATH; "" if it is not installed."""
    import shutil

    beside = os.path.dirname(sys.executable)  # noqa: PTH120  (it may be empty)
    return shutil.which("py-spy", path=beside) or shutil.which("py-spy") or ""


async def _dump(program: str, pid: int) -> tuple[str, str]:
    """Return the stack of a worker, and why there is none."""
    hint = ""
    for process in islice(tree(pid), _LOOK_BELOW):
        # First without stopping the process, which succeeds where it stands still.
        for mode in ("--nonblocking", ""):
            asked = [program, "dump", "--locals", "--pid", str(process), *mode.split()]
            text, hint = await _run(asked)
            if text not in ("", _NOT_PYTHON):
                return text, ""
            if text == _NOT_PYTHON or hint == _FORBIDDEN:
                break
    return (_NOT_PYTHON, "") if not hint else ("", hint)


async def _run(argv: Sequence[str]) -> tuple[str, str]:
    """Run py-spy to its end, and return what it prints, and why it prints nothing."""
    pipe = asyncio.subprocess.PIPE
    own_programs.begin()
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
    except BaseException as error:
        own_programs.end()
        if isinstance(error, OSError):
            return "", f"py-spy cannot be run: {error}"
        raise
    try:
        async with asyncio.timeout(DUMP_BOUND):
            out, err = await process.communicate()
    except TimeoutError:
        return "", f"py-spy did not answer within {DUMP_BOUND:g} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        reaped = asyncio.create_task(process.wait())
        reaped.add_done_callback(lambda _: own_programs.end())
        await asyncio.shield(reaped)  # this task may be cancelled meanwhile
    return _result(
        process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")
    )


def _result(code: int, out: str, err: str) -> tuple[str, str]:
    if code == 0:
        text = _shown(out)
        return text, "" if text else "py-spy gave an answer that is none"
    if "python version" in err.lower():
        return _NOT_PYTHON, ""
    if "permission" in err.lower() or "not permitted" in err.lower():
        return "", _FORBIDDEN
    causes = [line.strip() for line in err.splitlines() if line.strip()]
    return "", f"py-spy failed: {causes[0] if causes else f'exit code {code}'}"


def _shown(out: str) -> str:
    """Return its threads, the main one first, without what differs between equal processes."""
    _, _, threads = out.partition("\n\nThread ")
    usual = chain(["MainThread"], repeat("a thread without a name"))

    def head(thread: re.Match[str]) -> str:
        nameless = next(usual)
        return f"{thread['name'] or nameless} ({thread['state']})"

    lines = _THREAD.sub(head, f"Thread {threads}" if threads else "").splitlines()
    return "\n".join(_without_locals(lines))


def _without_locals(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines without variables, except arguments of collectives behind their calls."""
    frame, arguments = "", dict[str, str]()
    for line in [*lines, ""]:
        found = _ARGUMENT.match(line)
        if found and _COLLECTIVE.search(frame):
            arguments[found["name"]] = found["value"]
        if line.startswith(_DEEPER):
            continue
        if frame:
            yield frame + _listed(arguments)
        frame, arguments = f"  {line.strip()}" if line[:1] == " " else line, {}


def _listed(arguments: Mapping[str, str]) -> str:
    """Return the arguments that are given; a rank of the job says more than one of the group."""
    given = {name: value for name, value in arguments.items() if value != "None"}
    told = [
        f"{name}={value}"
        for name, value in given.items()
        if name[:6] != "group_" or name.removeprefix("group_") not in given
    ]
    return f" [{', '.join(told)}]" if told else ""
