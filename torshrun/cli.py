"""The torshrun command: argv to LaunchConfig, and nothing else until that is valid."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

import click

from torsh_runtime.errors import ConfigError, TorshError
from torshrun import config
from torshrun.config.option import Option
from torshrun.config.options import HEADINGS
from torshrun.config.spelling import complete
from torshrun.exit_codes import USAGE

_HELP = (
    "Start SCRIPT once per worker, give each its rank through the environment, and watch over "
    "them: if one fails the others are stopped and, if restarts are left, all start again.\n\n"
    "Names may be abbreviated, and written with _ or -. Every option can also be set by a "
    "variable, TORSH_NPROC_PER_NODE or PET_NPROC_PER_NODE for example, and in the file of "
    "--config: the command line wins over the file, and that over the environment. SECONDS are "
    "plain seconds or like 90s, 5m or 1h. Options after SCRIPT are SCRIPT's."
)


_SPACE = "\N{NO-BREAK SPACE}"


class BadUsage(click.UsageError):
    """A mistake on the command line, told as all errors are."""

    def show(self, file: IO[Any] | None = None) -> None:
        """One line, and where help is."""
        click.echo(f"torshrun: error: {self.format_message()}", file=file, err=True)
        click.echo("Try 'torshrun --help' for the options.", file=file, err=True)


class GroupedOption(click.Option):
    """An option that is listed under a heading of its own in --help."""

    def __init__(self, *args: Any, heading: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.heading = heading


class GroupedCommand(click.Command):
    """A command whose options may be abbreviated, and stand under their headings in --help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it, with names completed and errors in the one style."""
        try:
            return super().parse_args(ctx, complete(args))
        except (click.UsageError, ConfigError) as error:
            text = error.format_message() if isinstance(error, click.UsageError) else str(error)
            raise BadUsage(text, ctx) from None

    def get_help(self, ctx: click.Context) -> str:
        """The text of --help."""
        return super().get_help(ctx).replace(_SPACE, " ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options by heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                heading = getattr(parameter, "heading", "Other")
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _parameter(heading: str, option: Option) -> click.Option:
    return GroupedOption(
        [*option.spellings, option.key],
        heading=heading,
        metavar=option.metavar or None,
        is_flag=option.is_flag or None,
        help=option.help + _default(option),
    )


def _default(option: Option) -> str:
    """What stands behind the help: in one piece, so that no line ends within it."""
    default = option.unset if option.default is None else option.default
    if option.is_flag or not default:
        return ""
    return " " + f"[default: {default}]".replace(" ", _SPACE)


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"torshrun {version('torshrun')}")
    ctx.exit()


_PARAMETERS: list[click.Parameter] = [
    *(_parameter(heading, option) for heading, options in HEADINGS.items() for option in options),
    GroupedOption(
        ["--version"],
        heading="Other",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Print the version and exit.",
    ),
    click.Argument(["script"], required=False, metavar="SCRIPT"),
    click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]..."),
]


def _main(script: str | None, arguments: tuple[str, ...], **options: str | bool | None) -> None:
    given = {
        key: "true" if value is True else value
        for key, value in options.items()
        if value is not None and value is not False
    }
    try:
        code = _run(config.gather(given, script, arguments, os.environ))
    except BrokenPipeError:
        raise
    except (TorshError, OSError) as error:  # a place one may not look at, a name too long
        click.echo(f"torshrun: error: {error}", err=True)
        code = USAGE
    sys.exit(code)


def _run(settings: config.Settings) -> int:
    """Do what was asked for; the exit code."""
    if settings.value("print_config"):
        from torshrun.config.show import show

        _tell(config.validate(settings, os.environ))
        click.echo(show(settings), nl=False)
        return 0
    if settings.value("dry_run"):
        from torshrun.launch_plan import CHOSEN_AT_START, plan

        resolution = config.resolve(settings, os.environ, new_id=lambda: CHOSEN_AT_START)
        _tell(resolution.notes)
        click.echo(plan(resolution.job, os.environ), nl=False)
        return 0
    resolution = config.resolve(settings, os.environ)
    _tell(resolution.notes)
    from torshrun.launch import launch

    return launch(resolution.job)


def _tell(notes: tuple[str, ...]) -> None:
    for note in notes:
        click.echo(f"torshrun: {note}", err=True)


command = GroupedCommand(
    "torshrun",
    params=_PARAMETERS,
    callback=_main,
    help=_HELP,
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
