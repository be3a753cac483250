"""Gathers what was requested, before it is interpreted: texts, each with its origin."""

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
"""Keys of a file that say what to run, with the flag for each."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Holds a text and where it came from."""

    text: str | None
    """Text in the form of the command line; None stands for the value when nothing is given."""
    origin: str
    """ "command line", "job.yaml:7", "PET_NNODES" or "default"."""
    name: str
    """Name in errors and notes: "--nnodes", "job.yaml:7: nnodes", "PET_NNODES"."""
    is_hint: bool = False
    """True if it comes from a cluster, and nobody has asked for it."""

    @property
    def is_given(self) -> bool:
        """Return whether the user has given it, even if it is the default."""
        return self.origin != DEFAULT and not self.is_hint


Entries = Mapping[str, Entry]
Given = Entry | tuple[Entry, ...]
Section = Mapping[str, "Given | Mapping[str, Given]"]
"""Keys with a text or a list of texts, or such keys below them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Holds everything that was requested; it is complete, but nothing is checked yet."""

    entries: Entries = field(default_factory=lambda: MappingProxyType({}))
    """Entries by option: one for each; of a file alone, those that it mentions."""
    target: Entry | None = None
    """The script, module or program; None if none was named."""
    arguments: tuple[Entry, ...] = ()
    """Words that follow the target."""
    environment: Entries = field(default_factory=lambda: MappingProxyType({}))
    """Extra variables for workers."""
    hints: Hints | None = None
    """Hints of the scheduler or launcher around torshrun, as far as they count."""
    cluster: Section = field(default_factory=lambda: MappingProxyType({}))
    """Settings for schedulers; only `torshctl render` knows its keys."""

    def __getitem__(self, key: str) -> Any:
        """Return the value of the option's text; None if there is none.

        Raise ConfigError if it is invalid.
        """
        entry = self.entries[key]
        try:
            return None if entry.text is None else BY_KEY[key].kind.parse(entry.text)
        except ConfigError as error:
            raise self.refused(key, str(error)) from None

    def refused(self, key: str, why: str) -> ConfigError:
        """Return the error to raise for the value of the option."""
        return ConfigError(f"{self.name(key)}: {why}")

    def name(self, key: str) -> str:
        return self.entries[key].name

    def has(self, key: str) -> bool:
        """Return whether the user has given the option."""
        entry = self.entries[key]
        return entry.is_given and entry.text is not None

    def knows(self, key: str) -> bool:
        """Return whether the user or the cluster has given the option."""
        return self.has(key) or self.entries[key].is_hint


def gather(
    given: Mapping[str, str | None],
    script: str | None,
    arguments: Sequence[str],
    environ: Mapping[str, str],
) -> Request:
    """Return for each option the first of command line, file, environment and default that has it.

    `given` are the options of the command line by key (None or missing if not given), `script` and
    `arguments` what follows them. Raise ConfigError if the file that --config names is not
    understood.
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
