"""The torshrun command: argv to LaunchConfig, and nothing else until that is valid."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from torsh_runtime.errors import TorshError
from torshrun import config

SIZE = "Size"
RUN = "Run"
MASTER = "Where rank 0 listens"
OUTPUT = "Output"


class GroupedOption(click.Option):
    """An option that is listed under a heading of its own in --help."""

    def __init__(self, *args: Any, heading: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.heading = heading


class GroupedCommand(click.Command):
    """A command whose --help lists options under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                heading = getattr(parameter, "heading", "Other")
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _option(heading: str, *names: str, metavar: str, text: str) -> click.Option:
    return GroupedOption(names, heading=heading, metavar=metavar, help=text)


def _flag(heading: str, *names: str, text: str) -> click.Option:
    return GroupedOption(names, heading=heading, is_flag=True, help=text)


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"torshrun {version('torshrun')}")
    ctx.exit()


_PARAMETERS: list[click.Parameter] = [
    _option(
        SIZE,
        "--nproc-per-node",
        metavar="N",
        text="Workers to start on this node. [default: 1]",
    ),
    _option(
        SIZE,
        "--nnodes",
        metavar="N",
        text="Nodes of the job; this version runs on one. [default: 1]",
    ),
    _flag(SIZE, "--standalone", text="One node: what this version always does."),
    _option(
        RUN,
        "--max-restarts",
        metavar="N",
        text="How often all workers are started again after one fails. [default: 0]",
    ),
    _option(
        RUN,
        "--rdzv-id",
        "--run-id",
        "run_id",
        metavar="NAME",
        text="Name of the job. [default: none]",
    ),
    _option(RUN, "--role", metavar="NAME", text="Role of the workers. [default: default]"),
    _option(
        RUN,
        "--shutdown-timeout",
        metavar="SECONDS",
        text="Time between asking workers to stop and killing them. [default: 30]",
    ),
    _flag(RUN, "-m", "--module", text="The script is a module's name, as with python -m."),
    _flag(RUN, "--no-python", text="The script is a program: run it without Python."),
    _option(
        MASTER,
        "--master-addr",
        metavar="HOST",
        text="Address for MASTER_ADDR. [default: 127.0.0.1]",
    ),
    _option(
        MASTER,
        "--master-port",
        metavar="PORT",
        text="Port for MASTER_PORT. [default: a free one for each start]",
    ),
    _option(
        OUTPUT,
        "--log-dir",
        metavar="DIRECTORY",
        text="Keep each worker's output in DIRECTORY/<job>_*/attempt_<n>/<local rank>/.",
    ),
    GroupedOption(
        ["--version"],
        heading="Other",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Print the version and exit.",
    ),
    click.Argument(["script"]),
    click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]..."),
]


def _launch(
    script: str,
    arguments: tuple[str, ...],
    module: bool,
    no_python: bool,
    standalone: bool,
    **options: str | None,
) -> None:
    if module and no_python:
        raise click.UsageError("--module and --no-python exclude each other")
    kind: config.Kind = "module" if module else "program" if no_python else "script"
    try:
        job = config.resolve(
            options, target=script, arguments=arguments, kind=kind, environ=os.environ
        )
        from torshrun.launch import launch

        code = launch(job)
    except (TorshError, OSError) as error:  # a place one may not look at, a name too long
        click.echo(f"torshrun: error: {error}", err=True)
        code = 2
    sys.exit(code)


command = GroupedCommand(
    "torshrun",
    params=_PARAMETERS,
    callback=_launch,
    help=(
        "Start SCRIPT once per worker, give each its rank through the environment, and watch over "
        "them: if one fails the others are stopped and, if restarts are left, all start again.\n\n"
        "Every option that takes a value can also be set by an environment variable, "
        "TORSH_NPROC_PER_NODE or PET_NPROC_PER_NODE for example; the command line wins. Options "
        "after SCRIPT are SCRIPT's."
    ),
    context_settings={
        "allow_interspersed_args": False,
        "token_normalize_func": lambda name: name.replace("_", "-"),
        "max_content_width": 100,
        "help_option_names": ["-h", "--help"],
    },
)


def main() -> None:
    """Run the command with this process's arguments and exit with the job's exit code."""
    command.main(prog_name="torshrun")
