"""The torshctl command: argv to a request to a run, and its outcome to an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from torsh_runtime.errors import ConfigError, StoreError, TorshError
from torshrun.clusters.detection import RealMachine
from torshrun.config import values
from torshrun.config.options import BY_KEY
from torshrun.config.request import Request, gather
from torshrun.config.resolve import rendezvous
from torshrun.config.secret import read_secret
from torshrun.ctl.cluster_jobs import reachable
from torshrun.exit_codes import RENDEZVOUS, USAGE
from torshrun.text import printable

if TYPE_CHECKING:
    from torshrun.config.job import RendezvousConfig
    from torshrun.ctl.actions import SteeredRun
    from torshrun.ctl.picture import Picture
    from torshrun.ctl.places import Asking

Command = TypeVar("Command", bound=Callable[..., Any])
Options = dict[str, Any]

_MEETING = "rdzv_backend rdzv_endpoint rdzv_conf master_addr master_port secret_file config"
"""Those of torshrun's options, by key, that say where nodes meet."""
_ANY_JOB = {"nnodes": "2", "standalone": "false", "node_rank": "0", "require_secret": "false"}
"""What else the rules about such a job ask for, and nothing here depends on."""

NOT_DONE = 1
"""The exit code when there is no such run or node, or what was asked for is not done yet."""
_CODES = {ConfigError: USAGE, StoreError: RENDEZVOUS, TorshError: NOT_DONE}
_PATIENCE = 10.0
"""Seconds for which an etcd that has failed is tried again; a store of an agent does not return."""
SHORTEST_INTERVAL = 0.1
"""Seconds between two pictures of torshctl top, at the least."""
_CLEAR = "\x1b[H\x1b[2J"

_HELP = (
    "Look at a job of several nodes, change its size, take nodes out of it, or end it. RUN is its "
    "--rdzv-id. Or find what would keep jobs from running here (doctor), or write scripts that "
    "start one (render).\n\n"
    "Say where its nodes meet by the options that torshrun was given there, or by its variables: "
    "TORSH_RDZV_BACKEND, TORSH_RDZV_ENDPOINT, TORSH_RDZV_CONF, TORSH_SECRET_FILE (also as PET_*), "
    "TORSH_SECRET. Of a run of Slurm's, slurm-17.0, nothing need be said on the cluster.\n\n"
    "Exit codes: 0 done; 1 not done, or no such run or node; 2 wrong usage; 69 the store cannot be "
    "reached."
)


def _meeting(command: Command) -> Command:
    for key in reversed(_MEETING.split()):
        option = BY_KEY[key]
        add = click.option(*option.spellings, key, metavar=option.metavar, help=option.help)
        command = add(command)
    return command


def _waiting(command: Command) -> Command:
    """Add the options that say how long to wait."""
    timeout = click.option(
        "--timeout",
        default="30",
        metavar="SECONDS",
        help="How long to wait until it is done. [default: 30]",
    )
    no_wait = click.option("--no-wait", is_flag=True, help="Ask for it and do not wait.")
    return timeout(no_wait(_meeting(command)))


def _asking(command: Command) -> Command:
    """Add the options by which a run's agents are asked."""
    timeout = click.option(
        "--timeout",
        default="15",
        metavar="SECONDS",
        help="How long to wait for the nodes of a RUN. [default: 15]",
    )
    return timeout(_meeting(command))


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
    """See _HELP."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(USAGE)


@command.command(short_help="Show a run and its nodes.")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--watch", is_flag=True, help="Show each change, until it ends or no node is left.")
@click.option("--json", "as_json", is_flag=True, help="As one line of JSON, each time.")
@_meeting
def status(run_id: str | None, watch: bool, as_json: bool, **options: Any) -> None:
    """Show how RUN stands: its round, its nodes, and why those wait that do. Without RUN, list the
    runs that the store knows of; where no store is named, the jobs of this host, and where each of
    their ranks stands.
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
        raise click.UsageError("--watch and --json are of one run: name it")
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
@click.option("--undo", is_flag=True, help="Let them stay, if they have not been told yet.")
@click.option("--force", is_flag=True, help="Even if the job ends because too few are left.")
@_waiting
def drain(run_id: str, names: tuple[str, ...], undo: bool, force: bool, **options: Any) -> None:
    """Take each NODE (its id, host name, address or node rank) out of RUN: its workers are stopped,
    its agent ends with code 75, and the others go on at once.
    """

    async def act(run: SteeredRun) -> str:
        if undo:
            return await run.keep(names)
        return await run.drain(names, force=force)

    _carry_out(options, act, run_id)


@command.command(short_help="End it on all nodes.")
@click.argument("run_id", metavar="RUN")
@click.option("--reason", default="", metavar="TEXT", help="What its nodes tell about why.")
@_waiting
def stop(run_id: str, reason: str, **options: Any) -> None:
    """End RUN: on all nodes workers are stopped, and the agents end with code 130."""
    _carry_out(options, lambda run: run.stop(reason), run_id)


@command.command(short_help="Delete what is left of one that died.")
@click.argument("run_id", metavar="RUN")
@_meeting
def forget(run_id: str, **options: Any) -> None:
    """Delete what the store still holds of RUN, once no node of it is left: its rounds, its secret
    and how it ended. The next job of that name starts as if there had been none.
    """
    _carry_out(options, lambda run: run.forget(), run_id, even_traces=True)


@command.command(short_help="Show who never called what the others wait in.")
@click.argument("place", metavar="[RUN|DIR|PID]", required=False)
@click.option("--last", default="3", metavar="N", help="Show the last N calls. [default: 3]")
@click.option("--json", "as_json", is_flag=True, help="All calls that are held, as one line.")
@_asking
def flight(place: str | None, last: str, as_json: bool, **options: Any) -> int:
    """Show the last operations of each rank, as they were recorded, and which rank is out of step.

    DIR is a directory that torshrun has made in --log-dir, or in TMPDIR, or one above it: the
    newest attempt there that has failed or hung. Nodes that wrote to other disks are not seen: copy
    their directories into one. PID is that of a torshrun that runs on this host; without any, all
    of them. Of a RUN of several nodes all agents are asked: say where they meet, as to the others.

    Exit codes: 0 done; 1 there is nothing to show; 2 wrong usage.
    """
    from torshrun.ctl.flight import show

    if not last.isdecimal():
        raise click.UsageError(f"--last {last} must be a number, 0 or more")
    return show(place, int(last), _asking_of(options), as_json=as_json)


@command.command(short_help="Show the Python stacks of all ranks.")
@click.argument("place", metavar="[RUN|PID]", required=False)
@click.option("--json", "as_json", is_flag=True, help="As one line of JSON.")
@_asking
def stacks(place: str | None, as_json: bool, **options: Any) -> int:
    """Show where the Python of each rank stands, as py-spy sees it, of those that are stopped, too,
    and how those have ended that have. RUN is one of several nodes, whose agents are asked; PID is
    a torshrun's on this host; without either, all of them.

    Exit codes: 0 done; 1 there is nothing to show; 2 wrong usage; 69 the store cannot be reached.
    """
    from torshrun.ctl.stacks import show

    return show(place, _asking_of(options), as_json=as_json)


@command.command(short_help="Say what is wrong with a job, and why.")
@click.argument("place", metavar="RUN|DIR|PID")
@click.option("--json", "as_json", is_flag=True, help="As one line of JSON, 8 KiB at most.")
@_asking
def explain(place: str, as_json: bool, **options: Any) -> int:
    """Say what is wrong with a job, or that nothing is: which ranks, in which operation, since
    when, and where they stand. RUN, DIR and PID are as in flight.

    Exit codes: 0 nothing is wrong; 1 something is; 2 wrong usage or there is no such job; 69 the
    store cannot be reached.
    """
    from torshrun.ctl.explain import show

    return show(place, _asking_of(options), as_json=as_json)


@command.command(short_help="Show live how each rank spends its time.")
@click.argument("place", metavar="[PID|DIR|RUN]", required=False)
@click.option(
    "--at", default="0", metavar="-SECONDS", help="As it was so long before, such as -30s."
)
@click.option("--once", is_flag=True, help="Print one picture and end.")
@click.option(
    "--interval", default="1", metavar="SECONDS", help="Between two pictures. [default: 1]"
)
@_asking
def top(place: str | None, at: str, once: bool, interval: str, **options: Any) -> int:
    """Show how each rank spends its time, in what it is now and for whom it waits, in the terminal
    until q is pressed: by what workers have recorded, without an endpoint. Where stdout is no
    terminal, one picture is printed.

    PID is that of a torshrun that runs on this host; without any, all of them. DIR is a directory
    of --log-dir: the newest attempt there that has failed or hung, as it was at its end. Of a RUN
    of several nodes all agents are asked each time: say where they meet, as to the others.

    Exit codes: 0 done; 1 there is nothing to show; 2 wrong usage; 69 the store cannot be reached.
    """
    from torshrun.ctl.top import show

    if values.seconds(at.removeprefix("-")) and not at.startswith("-"):
        raise click.UsageError(f"--at {at} is not in the past: give it like -30s")
    pause = max(values.seconds(interval), SHORTEST_INTERVAL)
    asking = _asking_of(options)
    return show(place, -values.seconds(at.removeprefix("-")), pause, asking, once=once)


@command.command(short_help="Write the timeline of all ranks, for Perfetto.")
@click.argument("places", metavar="[RUN|DIR|FILE|PID]...", nargs=-1)
@click.option(
    "--steps", metavar="A:B", help="Of these steps, which a running job has yet to begin."
)
@click.option(
    "--seconds",
    metavar="N",
    help="For how long a running job is looked at, or waited for the steps; of a directory, the "
    "last N seconds. [default: 10; 300 for steps; all]",
)
@click.option(
    "-o", "--output", default="trace.json.gz", metavar="FILE", help="[default: trace.json.gz]"
)
@click.option(
    "--with",
    "others",
    multiple=True,
    metavar="[RANK=]FILE",
    help="Also what torch.profiler wrote there, or torshrun's --events.",
)
@_asking
def trace(
    places: tuple[str, ...],
    steps: str | None,
    seconds: str | None,
    output: str,
    others: tuple[str, ...],
    **options: Any,
) -> int:
    """Write what each rank did and when, in Chrome's trace format: open the file at
    https://ui.perfetto.dev. Steps, sections, collectives as waiting and moving, messages as arrows.

    PID is that of a torshrun that runs on this host; nothing given is the only one. Its workers
    do not notice. DIR is a directory that torshrun has made in --log-dir, or one above it: the
    newest attempt there that has failed or hung, with those before it. Ctrl-C ends it early. The
    agents of a RUN of several nodes are asked to follow their workers: say where they meet.

    Exit codes: 0 done; 1 there is nothing to show, or it cannot be written; 2 wrong usage; 69 the
    store cannot be reached.
    """
    from torshrun.ctl.trace.run import Wanted, parse_steps
    from torshrun.ctl.trace.run import run as write

    wanted = Wanted(
        places=places,
        steps=parse_steps(steps) if steps is not None else None,
        seconds=values.seconds(seconds) if seconds is not None else None,
        output=output,
        others=others,
    )
    return write(wanted, _asking_of(options), _say)


@command.command(short_help="Find what would keep jobs from running here.")
@click.option("--json", "as_json", is_flag=True, help="As one line of JSON.")
@click.option("--only", default="", metavar="AREA,...", help="Look at these areas alone.")
@click.option(
    "--peers",
    metavar="HOST:PORT,...",
    help="Measure the network to these, where torshctl doctor --serve runs.",
)
@click.option("--all-pairs", is_flag=True, help="Measure between all of them, too.")
@click.option(
    "--network-check", is_flag=True, help="Let each pair run a real all_reduce, under torshrun."
)
@click.option(
    "--serve",
    metavar="[HOST:]PORT",
    help="Do nothing but serve other doctors for an hour; needs the secret that they have.",
)
@click.option(
    "--timeout",
    default="30",
    metavar="SECONDS",
    help="What loading a library, a look-up or a driver may take. [default: 30]",
)
@_meeting
def doctor(
    as_json: bool,
    only: str,
    peers: str | None,
    all_pairs: bool,
    network_check: bool,
    serve: str | None,
    timeout: str,
    **options: Any,
) -> int:
    """Look at what jobs need of this host, its network and the store where nodes are to meet, if
    that is given. Each finding says what to do.

    Exit codes: 0 nothing is a problem; 1 something is; 2 wrong usage.
    """
    from torshrun.ctl.doctor import run as doctor

    rendezvous, secret, master_port = place_if_given(options, os.environ)
    if serve is not None:
        if as_json or peers or all_pairs or network_check:
            raise click.UsageError("--serve goes with none of the others: it only serves them")
        doctor.serve_peers(serve, secret, _say)
        return 0
    if (all_pairs or network_check) and not peers:
        raise click.UsageError("--all-pairs and --network-check are about --peers: name them")
    wanted = doctor.Wanted(
        rendezvous=rendezvous,
        secret=secret,
        master_port=master_port,
        peers=doctor.parse_peers(peers or ""),
        all_pairs=all_pairs,
        network_check=network_check,
        seconds=values.seconds(timeout),
        only=doctor.parse_areas(only),
    )
    report = doctor.diagnose(wanted, os.environ, _say)
    return doctor.show(report, as_json=as_json, environ=os.environ)


@command.command(short_help="Write a job script for a scheduler or a cloud.")
@click.argument("target", metavar="TARGET")
@click.option("-f", "--file", "path", required=True, metavar="FILE", help="The job file.")
@click.option("-o", "--output", default="-", metavar="FILE|DIR", help="Where to. [default: stdout]")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def render(target: str, path: str, output: str, force: bool) -> None:
    """Write the script or manifest by which TARGET runs the job of FILE, which is one that
    torshrun's --config takes, with a section `cluster` (docs/render.md). TARGET is slurm, pbs, lsf,
    kubernetes, compose, aws, gcp or azure.
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


# ---- carrying out


def place_if_given(
    given: Mapping[str, str | None], environ: Mapping[str, str]
) -> tuple[RendezvousConfig | None, str, int | None]:
    """Where nodes meet, if that is said; the secret ("" is none) and the master's port, too."""
    request = gather({**given, **_ANY_JOB}, None, (), environ)
    is_said = _says_where(request)
    secret = read_secret(request["secret_file"], request.name("secret_file"), environ)
    place = rendezvous(request, environ) if is_said else None
    return place, secret, request["master_port"] if request.has("master_port") else None


def is_place_given(given: Mapping[str, str | None], environ: Mapping[str, str]) -> bool:
    """Whether it is said where nodes meet."""
    return _says_where(gather({**given, **_ANY_JOB}, None, (), environ))


def _says_where(request: Request) -> bool:
    is_static = request["rdzv_backend"] == "static"
    return bool(request["rdzv_endpoint"]) or (is_static and request.has("master_addr"))


def meeting_place(
    given: Mapping[str, str | None], environ: Mapping[str, str], run_id: str = ""
) -> RendezvousConfig:
    """`given` are the options of the command line by key. Raises ConfigError."""
    request = gather({**given, **_ANY_JOB}, None, (), environ)
    request = reachable(request, run_id, environ, RealMachine())
    if not _says_where(request):
        raise ConfigError(
            "--rdzv-endpoint is missing: say where the job's nodes meet, with the same --rdzv-* "
            "options or variables (TORSH_RDZV_ENDPOINT) as torshrun has there"
        )
    return rendezvous(request, environ)


def _carry_out(
    options: Options,
    act: Callable[[SteeredRun], Awaitable[str | None]],
    run_id: str | None,
    *,
    even_traces: bool = False,
) -> None:
    """Carry it out, and print what it has to say in the end; without a run: which there are."""
    import asyncio

    from torshrun.ctl.actions import SteeredRun
    from torshrun.ctl.run import reach, run_ids
    from torshrun.rendezvous.address import detach

    seconds = values.seconds(options.pop("timeout", "0"))
    timeout = None if options.pop("no_wait", False) else seconds
    config, patience = _reach(options, run_id or "")

    async def visit() -> list[str]:
        detach()
        async with reach(config) as store:
            if run_id is None:
                return await run_ids(store)
            secret = config.secret.encode()
            run = SteeredRun(store, run_id, secret, patience, timeout, _say)
            async with run.watched(even_traces=even_traces):
                return [await act(run) or ""]

    for line in filter(None, asyncio.run(visit())):
        click.echo(printable(line))


def _reach(options: Options, run_id: str) -> tuple[RendezvousConfig, float]:
    """Where the nodes of a run meet, and how long a store that fails is tried again."""
    config = meeting_place(options, os.environ, run_id)
    return config, _PATIENCE if config.backend == "etcd" else 0.0


def _asking_of(options: Options) -> Asking:
    """How the run is reached that the command line may name."""
    from torshrun.ctl.places import Asking

    timeout = values.seconds(options.pop("timeout"))

    def is_given(run_id: str) -> bool:
        request = gather({**options, **_ANY_JOB}, None, (), os.environ)
        return _says_where(reachable(request, run_id, os.environ, RealMachine()))

    return Asking(is_given, partial(_reach, options), timeout)


def _say(text: str) -> None:
    click.echo(f"torshctl: {printable(text)}", err=True)


def run(argv: Sequence[str]) -> int:
    try:
        return int(command.main([*argv], prog_name="torshctl", standalone_mode=False) or 0)
    except click.UsageError as error:
        _say(f"error: {error.format_message()}")
        click.echo("Try 'torshctl --help'.", err=True)
        return USAGE
    except TorshError as error:
        code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
        _say(str(error) if code == NOT_DONE else f"error: {error}")
        return code
