"""Command line, file, environment, defaults: for each option the first of them that has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torshrun.config.option import Option
from torshrun.config.options import BY_KEY, OPTIONS
from torshrun.config.setting import COMMAND_LINE, DEFAULT, TARGETS, JobFile, Setting, Settings

_OUTER_JOBS = frozenset({"TORSH_RUN_ID", "TORCHELASTIC_HEALTH_CHECK_PORT"})
"""Variables that workers find: in there they are about the job that the workers are of."""


def gather(
    given: Mapping[str, str | None],
    script: str | None,
    arguments: Sequence[str],
    environ: Mapping[str, str],
) -> Settings:
    """`given` are the options of the command line by key (None or missing if not given), `script`
    and `arguments` what follows them. Reads the file that --config or TORSH_CONFIG names, and
    raises ConfigError if that cannot be understood.
    """
    path = _first(BY_KEY["config"], given, {}, environ).text
    job = _read(path) if path else JobFile()
    if script is not None:  # takes the place of the file's, arguments included
        target: Setting | None = Setting(script, COMMAND_LINE, "SCRIPT")
        following = tuple(Setting(text, COMMAND_LINE, "ARGUMENTS") for text in arguments)
        from_file = job.settings
    else:
        target, following = job.target, job.arguments
        from_file = {**job.settings, **_implied(job)}
    return Settings(
        by_key={option.key: _first(option, given, from_file, environ) for option in OPTIONS},
        target=target,
        arguments=following,
        environment=job.environment,
    )


def _read(path: str) -> JobFile:
    from torshrun.config.file import read

    return read(path)


def _implied(job: JobFile) -> Mapping[str, Setting]:
    """The flag that module: or program: stands for."""
    flag = TARGETS[job.target_key]
    if not flag or job.target is None:
        return {}
    return {flag: Setting("true", job.target.origin, job.target.name)}


def _first(
    option: Option,
    given: Mapping[str, str | None],
    from_file: Mapping[str, Setting],
    environ: Mapping[str, str],
) -> Setting:
    spelling = option.spellings[-1]
    text = given.get(option.key)
    if text is not None:
        return Setting(text, COMMAND_LINE, spelling)
    if option.key in from_file:
        return from_file[option.key]
    inside_worker = "TORCHELASTIC_RUN_ID" in environ
    for variable in option.environment:
        if environ.get(variable) and not (inside_worker and variable in _OUTER_JOBS):
            return Setting(environ[variable], variable, variable)
    return Setting(option.default, DEFAULT, spelling)
