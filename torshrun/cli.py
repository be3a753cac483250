"""The torshrun command: argv to LaunchConfig, and nothing else until that is valid."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from textwrap import fill, indent, wrap

from torsh_runtime.errors import ConfigError, TorshError
from torsh_runtime.transitions import level_of
from torshrun.clusters.detection import RealMachine
from torshrun.config.command_line import CommandLine, parse
from torshrun.config.job import LaunchConfig
from torshrun.config.options import HEADINGS, Option
from torshrun.config.request import Request, gather
from torshrun.config.resolve import resolve
from torshrun.config.surroundings import look_around, look_around_for_hosts
from torshrun.debugger import follows_processes
from torshrun.exit_codes import PREEMPTED, USAGE

ABOUT = (
    "Start SCRIPT once per worker, give each its rank through the environment, and watch over "
    "them: if one fails the others are stopped and, if restarts are left, all start again.",
    "Names may be abbreviated, and written with _ or -. Every option can also be set by a "
    "variable, TORSH_NPROC_PER_NODE or PET_NPROC_PER_NODE for example, and in the file of "
    "--config: the command line wins over the file, and that over the environment. SECONDS are "
    "plain seconds or like 90s, 5m or 1h. Options after SCRIPT are SCRIPT's.",
)
OTHER_OPTIONS = (
    ("--version", "Print the version and exit."),
    ("-h, --help", "Show this message and exit."),
)
_NO_MORE_TASKS = (
    "torshrun may start no more processes or threads: raise the limit, which is ulimit -u or, in a "
    "container or cgroup, pids.max, or end what else this user runs here"
)
_SPACE = "\N{NO-BREAK SPACE}"
_WIDEST = 30  # columns for an option's name; what is longer has a line of its own


def main() -> None:
    _open_standard_streams()
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    try:
        line = parse(argv)
    except ConfigError as error:
        _tell(f"error: {error}\nTry 'torshrun --help' for the options.")
        return USAGE
    try:
        return _answer(line)
    except BrokenPipeError:  # nobody reads the answer, nor what is still in the buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (TorshError, OSError, RuntimeError) as error:
        # OSError: a place one may not look at, a name too long
        if isinstance(error, RuntimeError) and "start new thread" not in str(error):
            raise
        is_limit = isinstance(error, BlockingIOError | RuntimeError)
        _tell(f"error: {_NO_MORE_TASKS if is_limit else error}")
        return USAGE


def _answer(line: CommandLine) -> int:
    if "help" in line.given:
        import shutil

        return _print(help_text(shutil.get_terminal_size().columns))
    if "version" in line.given:
        from importlib.metadata import version

        return _print(f"torshrun {version('torshrun')}\n")
    request = gather(line.given, line.script, line.arguments, os.environ)
    if request["print_completion"]:
        from torshrun.completion import completion

        return _print(completion(request["print_completion"]))
    level_of(os.environ)
    if request["hostfile"]:
        return _on_hosts(request)
    request = look_around(request, os.environ, RealMachine())
    if request["print_config"]:
        from torshrun.config.print_config import show

        _tell(*resolve(request, os.environ, needs_target=False).notes)
        return _print(show(request))
    if request["dry_run"]:
        from torshrun.launch_plan import CHOSEN_AT_START, plan

        job, notes = resolve(request, os.environ, new_id=lambda: CHOSEN_AT_START)
        _tell(*notes)
        return _print(plan(job, os.environ))
    job, notes = resolve(request, os.environ, is_debugged=follows_processes())
    _tell(*notes)
    from torshrun.composition import launch

    return _ended(launch(job), job)


def _on_hosts(request: Request) -> int:
    """Do what is requested of a job whose nodes are started by ssh. Return the exit code."""
    from torshrun.ssh.plan import describe, plan

    request = look_around_for_hosts(request, os.environ, RealMachine())
    shown = request["print_config"]
    job = plan(request, os.environ, needs_target=not shown)
    _tell(*job.notes)
    if follows_processes():
        _tell("the debugger does not reach other hosts: --debugpy PORT serves one in each worker")
    if shown:
        from torshrun.config.print_config import show

        return _print(show(request))
    if request["dry_run"]:
        return _print(describe(job))
    from torshrun.ssh.launch import launch

    return _ended(launch(job), job.config)


def _ended(code: int, job: LaunchConfig) -> int:
    """Return the job's exit code, after asking Slurm to run it again if that is wanted."""
    if code == PREEMPTED and job.requeues:
        from torshrun.clusters.slurm_job import requeue

        _tell(requeue(job.requeues, RealMachine()))
        sys.stderr.flush()
    return code


def _open_standard_streams() -> None:
    """Keep 0, 1 and 2 from becoming something else, should this process lack them."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            setattr(sys, name, os.fdopen(fd, "w", errors="backslashreplace", closefd=False))


def _print(text: str) -> int:
    sys.stdout.write(text.encode(errors="backslashreplace").decode())
    sys.stdout.flush()
    return 0


def _tell(*lines: str) -> None:
    sys.stderr.write("".join(f"torshrun: {line}\n" for line in lines))


def help_text(columns: int) -> str:
    """Return what --help prints on a terminal of that width."""
    width = max(min(columns, 100) - 2, 50)
    about = "\n\n".join(indent(fill(paragraph, width - 2), "  ") for paragraph in ABOUT)
    sections = {heading: [*map(_record, options)] for heading, options in HEADINGS.items()}
    parts = [_section(heading, records, width) for heading, records in sections.items()]
    usage = "Usage: torshrun [OPTIONS] SCRIPT [ARGUMENTS]..."
    return "\n".join((usage, "", f"{about}\n", *parts, _section("Other", OTHER_OPTIONS, width)))


def _record(option: Option) -> tuple[str, str]:
    """Return what is on the left and right.

    The default is in one piece, so that no line ends in it.
    """
    default = option.unset if option.default is None else option.default
    end = f" [default: {default}]" if default and not option.is_flag else ""
    name = f"{', '.join(option.spellings)} {option.metavar}".rstrip()
    return name, option.help + end[:1] + end[1:].replace(" ", _SPACE)


def _section(heading: str, records: Sequence[tuple[str, str]], width: int) -> str:
    column = min(max(len(name) for name, _ in records), _WIDEST) + 2
    lines = [f"{heading}:"]
    for name, text in records:
        first, *more = wrap(text, width - column - 2)
        if len(name) > column - 2:
            lines.append(f"  {name}")
            name = ""
        lines += [f"  {name:{column}}{first}", *(f"  {'':{column}}{line}" for line in more)]
    return "\n".join(lines).replace(_SPACE, " ") + "\n"
