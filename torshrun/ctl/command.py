"""Parses torshctl's command line, requests something of a run, and returns an exit code.

The commands that show what workers do are in looking.py.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from torsh_runtime.errors import ConfigError, StoreError, TorshError
from torshrun.config import values
from torshrun.ctl.looking import COMMANDS
from torshrun.ctl.meeting_options import (
    Command,
    Options,
    is_place_given,
    meeting,
    place_if_given,
    reach_of,
)
from torshrun.ctl.saying import say
from torshrun.exit_codes import RENDEZVOUS, USAGE
from torshrun.text import printable

if TYPE_CHECKING:
    from torshrun.ctl.actions import SteeredRun
    from torshrun.ctl.picture import Picture


NOT_DONE = 1
"""The exit code if there is no such run or node, or if a request is not fulfilled yet."""
_CODES = {ConfigError: USAGE, StoreError: RENDEZVOUS, TorshError: NOT_DONE}
_CLEAR = "\x1b[H\x1b[2J"

_HELP = (
    "Look at a job of several nodes, change its size, take nodes out of it, or end it. RUN is its "
    "--rdzv-id. See what its ranks do, or what is wrong with them (explain, flight, stacks, top, "
    "trace). Or find what would keep jobs from running here (doctor), write scripts that start one "
    "(render), or let torshrun stand in for torchrun (shim).\n\n"
    "Say where its nodes rendezvous by the options that torshrun was given there, or by its "
    "variables: TORSH_RDZV_BACKEND, TORSH_RDZV_ENDPOINT, TORSH_RDZV_CONF, TORSH_SECRET_FILE (also "
    "as PET_*), TORSH_SECRET. For a run of Slurm, such as slurm-17.0, nothing has to be given on "
    "the cluster.\n\n"
    "Exit codes: 0 done; 1 not done, or no such run or node; 2 wrong usage; 69 the store cannot be "
    "reached."
)


def _waiting(command: Command) -> Command:
    """Add the options that set how long to wait."""
    timeout = click.option(
        "--timeout",
        default="30",
        metavar="SECONDS",
        help="How long to wait until it is done. [default: 30]",
    )
    no_wait = click.option("--no-wait", is_flag=True, help="Ask for it and do not wait.")
    return timeout(no_wait(meeting(command)))


@click.group(
    "torshctl",
    help=_HELP,
    invoke_without_command=True,
    context_settings={
        "token_normalize_func": lambda name: name.replace("_", "-"),
        "max_content_width": 100,
        "help_option_names": ["-h", "--help"],
    },
)
@click.version_option(package_name="torshrun", message="torshctl %(version)s")
@click.pass_context
def command(context: click.Context) -> None:
    """Show the help and exit with code 2 if no subcommand is given. The help is `_HELP`."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(USAGE)


@command.command(short_help="Show a run and its nodes.")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--watch", is_flag=True, help="Show each change, until it ends or no node is left.")
@click.option("--json", "as_json", is_flag=True, help="As one line of JSON, each time.")
@meeting
def status(run_id: str | None, watch: bool, as_json: bool, **options: Any) -> None:
    """Show the state of RUN: its round, its nodes, and why some of them wait. Without RUN, list the
    runs in the store; if no store is given, list the jobs of this host, and what each of their
    ranks is doing.
    """

    def show(picture: Picture) -> None:
        from torshrun.ctl.status_text import in_json, in_words

        text = in_json(picture) if as_json else in_words(picture)
        if watch and not as_json:
            text = _CLEAR + text if sys.stdout.isatty() else f"{text}\n"
        click.echo(text, nl=False)

    async def act(run: SteeredRun) -> None:
        show(run.picture)
        if watch:
            await run.watch(show)

    if run_id is None and (watch or as_json):
        raise click.UsageError("--watch and --json apply to one run: name it")
    if run_id is None and not is_place_given(options, os.environ):
        from torshrun.ctl.host_jobs import find_jobs
        from torshrun.ctl.host_jobs import in_words as told

        click.echo(told(find_jobs()), nl=False)
        return
    _carry_out(options, act, run_id)


@command.command(short_help="Change the number of its nodes.")
@click.argument("run_id", metavar="RUN")
@click.argument("size", metavar="N|MIN:MAX")
@_waiting
def scale(run_id: str, size: str, **options: Any) -> None:
    """Run RUN on N nodes, or on at least MIN and at most MAX. With N alone, MIN stays as it is, but
    is never above N.

    Nodes above the new maximum wait as spares. To get more nodes, start torshrun on them; nodes
    that wait are let in after the last call.
    """
    wanted = values.nodes(size)
    _carry_out(options, lambda run: run.scale(size, wanted), run_id)


@command.command(short_help="Take nodes out of it.")
@click.argument("run_id", metavar="RUN")
@click.argument("names", metavar="NODE...", nargs=-1, required=True)
@click.option("--undo", is_flag=True, help="Let them stay, if they have not begun to leave.")
@click.option("--force", is_flag=True, help="Drain them even if too few are left and the job ends.")
@_waiting
def drain(run_id: str, names: tuple[str, ...], undo: bool, force: bool, **options: Any) -> None:
    """Take each NODE (its id, host name, address or node rank) out of RUN: its workers are stopped,
    its agent ends with code 75, and the others continue at once.
    """

    async def act(run: SteeredRun) -> str:
        if undo:
            return await run.keep(names)
        return await run.drain(names, force=force)

    _carry_out(options, act, run_id)


@command.command(short_help="End it on all nodes.")
@click.argument("run_id", metavar="RUN")
@click.option("--reason", default="", metavar="TEXT", help="The reason that its nodes report.")
@_waiting
def stop(run_id: str, reason: str, **options: Any) -> None:
    """End RUN: on all nodes workers are stopped, and the agents end with code 130."""
    _carry_out(options, lambda run: run.stop(reason), run_id)


@command.command(short_help="Delete what is left of a run that died.")
@click.argument("run_id", metavar="RUN")
@meeting
def forget(run_id: str, **options: Any) -> None:
    """Delete what the store still holds of RUN, once no node of it is left: its rounds, its secret
    and how it ended. The next job of that name starts as if there had been none.
    """
    _carry_out(options, lambda run: run.forget(), run_id, even_traces=True)


@command.command(short_help="Find what would keep jobs from running here.")
@click.option("--json", "as_json", is_flag=True, help="As one line of JSON.")
@click.option("--only", default="", metavar="AREA,...", help="Examine only these areas.")
@click.option(
    "--peers",
    metavar="HOST:PORT,...",
    help="Measure the network to these, where torshctl doctor --serve runs.",
)
@click.option("--all-pairs", is_flag=True, help="Measure between all of them, too.")
@click.option(
    "--network-check", is_flag=True, help="Let each pair run a real all_reduce, under torshrun."
)
@click.option("--gpus", is_flag=True, help="With --network-check: over NCCL, by all GPUs.")
@click.option(
    "--serve",
    metavar="[HOST:]PORT",
    help="Only serve other doctors for an hour; needs the secret that they have.",
)
@click.option(
    "--timeout",
    default="30",
    metavar="SECONDS",
    help="How long loading a library, a look-up or a driver may take. [default: 30]",
)
@meeting
def doctor(
    as_json: bool,
    only: str,
    peers: str | None,
    all_pairs: bool,
    network_check: bool,
    gpus: bool,
    serve: str | None,
    timeout: str,
    **options: Any,
) -> int:
    """Examine what jobs need of this host, its network and the store where nodes rendezvous, if one
    is given. Each finding says what to do.

    Exit codes: 0 nothing is a problem; 1 something is; 2 wrong usage.
    """
    from torshrun.ctl.doctor import run as doctor

    rendezvous, secret, master_port = place_if_given(options, os.environ)
    if serve is not None:
        if as_json or peers or all_pairs or network_check or gpus:
            raise click.UsageError("--serve excludes these options: it only serves other doctors")
        doctor.serve_peers(serve, secret, say)
        return 0
    if (all_pairs or network_check) and not peers:
        raise click.UsageError("--all-pairs and --network-check need --peers")
    if gpus and not network_check:
        raise click.UsageError("--gpus needs --network-check")
    wanted = doctor.Wanted(
        rendezvous=rendezvous,
        secret=secret,
        master_port=master_port,
        peers=doctor.parse_peers(peers or ""),
        all_pairs=all_pairs,
        network_check=network_check,
        with_gpus=gpus,
        seconds=values.seconds(timeout),
        only=doctor.parse_areas(only),
    )
    report = doctor.diagnose(wanted, os.environ, say)
    return doctor.show(report, as_json=as_json, environ=os.environ)


@command.command(short_help="Write a job script for a scheduler or a cloud.")
@click.argument("target", metavar="TARGET")
@click.option("-f", "--file", "path", required=True, metavar="FILE", help="The job file.")
@click.option(
    "-o", "--output", default="-", metavar="FILE|DIR", help="Where to write it. [default: stdout]"
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def render(target: str, path: str, output: str, force: bool) -> None:
    """Write the script or manifest with which TARGET runs the job in FILE, a file for torshrun's
    --config with a section `cluster` (docs/render.md). TARGET is slurm, pbs, lsf, kubernetes,
    jobset, trainjob, raycluster, compose, aws, gcp or azure.
    """
    from torshrun.ctl.render import targets
    from torshrun.ctl.render.job import read_job
    from torshrun.ctl.render.output import write

    kind = targets.TARGETS[values.one_of(*targets.TARGETS)(target)]
    job = read_job(path)
    text = targets.render(target, job)
    if output == "-":
        click.echo(text, nl=False)
    else:
        name = f"{job.name}{kind.suffix}"
        click.echo(write(text, output, name, mode=kind.mode, force=force))


@command.command(short_help="Let torshrun stand in for torchrun here, or undo that.")
@click.argument("action", metavar="install|remove|status")
def shim(action: str) -> None:
    """Start torshrun wherever torchrun is called in this Python environment: by the command, python
    -m torch.distributed.run, elastic_launch, accelerate launch and others (docs/shim.md).
    TORSHRUN_AS_TORCHRUN=1 or 0 in the environment takes precedence.

    Exit codes: 0 done; 1 the file cannot be written or removed; 2 wrong usage, or not possible.
    """
    from torshrun.ctl.shim import carry_out

    click.echo(carry_out(values.one_of("install", "remove", "status")(action)))


for _each in COMMANDS:
    command.add_command(_each)


# ---- carrying out


def _carry_out(
    options: Options,
    act: Callable[[SteeredRun], Awaitable[str | None]],
    run_id: str | None,
    *,
    even_traces: bool = False,
) -> None:
    """Carry out `act` on the run and print its result. Without a run, list the runs."""
    import asyncio

    from torshrun.ctl.actions import SteeredRun
    from torshrun.ctl.run import reach, run_ids
    from torshrun.rendezvous.address import detach

    seconds = values.seconds(options.pop("timeout", "0"))
    timeout = None if options.pop("no_wait", False) else seconds
    config, patience = reach_of(options, run_id or "")

    async def visit() -> list[str]:
        detach()
        async with reach(config) as store:
            if run_id is None:
                return await run_ids(store)
            secret = config.secret.encode()
            run = SteeredRun(store, run_id, secret, patience, timeout, say)
            async with run.watched(even_traces=even_traces):
                return [await act(run) or ""]

    for line in filter(None, asyncio.run(visit())):
        click.echo(printable(line))


def run(argv: Sequence[str]) -> int:
    try:
        return int(command.main([*argv], prog_name="torshctl", standalone_mode=False) or 0)
    except click.UsageError as error:
        say(f"error: {error.format_message()}")
        click.echo("Try 'torshctl --help'.", err=True)
        return USAGE
    except TorshError as error:
        code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
        say(str(error) if code == NOT_DONE else f"error: {error}")
        return code
    except OSError as error:
        if error.filename or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        say(f"error: the output cannot be written: {error.strerror}")
        return NOT_DONE
