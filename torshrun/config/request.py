"""What was asked for, before it means anything: texts, each with the place that it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from torsh_runtime.errors import ConfigError
from torshrun.clusters.hints import Hints
from torshrun.config.options import BY_KEY, OPTIONS, Option

COMMAND_LINE = "command line"
DEFAULT = "default"
TARGETS: Mapping[str, str] = MappingProxyType(
    {"script": "", "module": "module", "program": "no_python"}
)
"""The keys of a file that say what to run, and the flag that each one stands for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One text and where it came from."""

    text: str | None
    """As it would stand on the command line; None is what holds when nothing is given."""
    origin: str
    """ "command line", "job.yaml:7", "PET_NNODES" or "default"."""
    name: str
    """What an error or a note calls it: "--nnodes", "job.yaml:7: nnodes", "PET_NNODES"."""
    is_hint: bool = False
    """Whether a cluster tells it, and nobody has asked for it."""

    @property
    def is_given(self) -> bool:
        """Whether the user has said it, be it that the default is to hold."""
        return self.origin != DEFAULT and not self.is_hint


Entries = Mapping[str, Entry]
Given = Entry | tuple[Entry, ...]
Section = Mapping[str, "Given | Mapping[str, Given]"]
"""Keys with a text or a list of texts, or such keys below them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """All that was asked for; complete, but nothing is checked yet."""

    entries: Entries = field(default_factory=lambda: MappingProxyType({}))
    """By option: one for each; in what is of a file alone, those that it mentions."""
    target: Entry | None = None
    """The script, module or program; None if none was named."""
    arguments: tuple[Entry, ...] = ()
    """What follows the target."""
    environment: Entries = field(default_factory=lambda: MappingProxyType({}))
    """Extra variables for workers."""
    hints: Hints | None = None
    """What the scheduler or launcher around torshrun tells, as far as it counts."""
    cluster: Section = field(default_factory=lambda: MappingProxyType({}))
    """What schedulers are told about the job; only `torshctl render` knows its keys."""

    def __getitem__(self, key: str) -> Any:
        """What the option's text means; None if there is none. Raises ConfigError."""
        entry = self.entries[key]
        try:
            return None if entry.text is None else BY_KEY[key].kind.parse(entry.text)
        except ConfigError as error:
            raise self.refused(key, str(error)) from None

    def refused(self, key: str, why: str) -> ConfigError:
        """The error to raise for what the option says."""
        return ConfigError(f"{self.name(key)}: {why}")

    def name(self, key: str) -> str:
        return self.entries[key].name

    def has(self, key: str) -> bool:
        """Whether the user has given it."""
        entry = self.entries[key]
        return entry.is_given and entry.text is not None

    def knows(self, key: str) -> bool:
        """Whether the user or the cluster has given it."""
        return self.has(key) or self.entries[key].is_hint


def gather(
    given: Mapping[str, str | None],
    script: str | None,
    arguments: Sequence[str],
    environ: Mapping[str, str],
) -> Request:
    """For each option the first of command line, file, environment and default that has it.

    `given` are the options of the command line by key (None or missing if not given), `script` and
    `arguments` what follows them. ConfigError if the file that --config names is not understood.
    """
    path = _first(BY_KEY["config"], given, {}, environ).text
    job = Request()
    if path:
        from torshrun.config.yaml_file import read

        job = read(path)
    from_file = job.entries
    if script is not None:  # takes the place of the file's, with arguments and what module: implies
        replaced = job.target and job.target.name
        from_file = {key: entry for key, entry in from_file.items() if entry.name != replaced}
        job = replace(
            job,
            target=Entry(script, COMMAND_LINE, "SCRIPT"),
            arguments=tuple(Entry(text, COMMAND_LINE, "ARGUMENTS") for text in arguments),
        )
    entries = {option.key: _first(option, given, from_file, environ) for option in OPTIONS}
    return replace(job, entries=entries)


def _first(
    option: Option, given: Mapping[str, str | None], from_file: Entries, environ: Mapping[str, str]
) -> Entry:
    spelling = option.spellings[-1]
    text = given.get(option.key)
    if text is not None:
        return Entry(text, COMMAND_LINE, spelling)
    if option.key in from_file:
        return from_file[option.key]
    for variable in option.environment:
        if environ.get(variable):
            return Entry(environ[variable], variable, variable)
    return Entry(option.default, DEFAULT, spelling)
