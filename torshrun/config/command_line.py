"""The command line as people type it: names abbreviated, with _ or -. Pure: argv in, texts out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from torsh_runtime.errors import ConfigError
from torshrun.config.options import BY_NAME, OPTIONS, Option
from torshrun.config.other_launchers import hint
from torshrun.config.values import nearest

EAGER = ("help", "version")
"""Options that are carried out at once, without a job."""
TORCHRUNS = """
    duplicate_stderr_filters duplicate_stdout_filters event_log_handler help local_addr
    local_ranks_filter log_dir logs_specs master_addr master_port max_restarts module
    monitor_interval nnodes no_python node_rank nproc_per_node numa_binding rdzv_backend rdzv_conf
    rdzv_endpoint rdzv_id redirects role run_path shutdown_timeout signals_to_handle standalone
    start_method tee virtual_local_rank
"""
"""torchrun's own options: an abbreviation that is unambiguous there is so here."""
_BY_LETTER = {word[1]: option for option in OPTIONS for word in option.spellings if word[1] != "-"}


class CommandLine(NamedTuple):
    """Holds the parts of the command line."""

    given: dict[str, str]
    """The options by key; a flag, and what of EAGER there is, is "true"."""
    script: str | None
    arguments: tuple[str, ...]
    """Words that follow the script, without the -- that may stand between them."""


def parse(argv: Sequence[str]) -> CommandLine:
    """Split the command line. SCRIPT is the first word that is not an option, or the one after --.

    As in torchrun, one -- is nobody's word: if it does not stand before SCRIPT, it may stand after
    it. Raise ConfigError if there is no such option, or its value is missing.
    """
    words, given = deque(argv), dict[str, str]()
    is_parted = False
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.popleft()
        if word == "--":
            is_parted = True
            break
        if word.startswith("--"):
            _take_long(word, words, given)
        else:
            _take_letters(word, words, given)
    script = words.popleft() if words else None
    if words and words[0] == "--" and not is_parted:
        words.popleft()
    return CommandLine(given, script, tuple(words))


def _take_long(word: str, words: deque[str], given: dict[str, str]) -> None:
    typed, equals, value = word.partition("=")
    name = _full_name(typed)
    option = BY_NAME.get(name)
    if option and not option.is_flag:
        given[option.key] = value if equals else _following(typed, option, words)
    elif equals:
        raise ConfigError(f"{typed} takes no value")
    else:
        given[option.key if option else name] = "true"


def _take_letters(word: str, words: deque[str], given: dict[str, str]) -> None:
    """Take one letter or several: -m, -mr 3, -r3, -r=3."""
    for place, letter in enumerate(word[1:], start=2):
        option = _BY_LETTER.get(letter)
        if option and not option.is_flag:
            value = word[place:].removeprefix("=")
            given[option.key] = value or _following(f"-{letter}", option, words)
            return
        if not option and letter != "h":
            raise _no_letters(word, letter)
        given[option.key if option else "help"] = "true"


def _no_letters(word: str, letter: str) -> ConfigError:
    """Return the error about a letter of `word` that is no option."""
    typed = word.partition("=")[0]
    if typed[1:].replace("-", "_") in BY_NAME:
        return ConfigError(f"there is no option {typed}; write -{typed}")
    called = word if hint(word) else f"-{letter}"  # -np is one option of mpiexec's
    return ConfigError(f"there is no option {called}{hint(called)}")


def _following(typed: str, option: Option, words: deque[str]) -> str:
    if not words:
        raise ConfigError(f"{typed} needs a value: {option.metavar}")
    return words.popleft()


def _full_name(typed: str) -> str:
    """Return the full name of the only option that this is, or begins."""
    start = typed[2:].replace("-", "_")
    names = (*BY_NAME, *EAGER)
    if start in names:
        return start
    fitting = [name for name in names if start and name.startswith(start)]
    fitting = [name for name in fitting if name in TORCHRUNS.split()] or fitting
    if not fitting:
        spelled_out = [name.replace("_", "-") for name in names]
        known = hint(typed) or nearest(typed[2:], spelled_out, "--")
        raise ConfigError(f"there is no option {typed}{known}")
    if len({BY_NAME[name].key if name in BY_NAME else name for name in fitting}) > 1:
        spelled = ", ".join(f"--{name.replace('_', '-')}" for name in fitting)
        raise ConfigError(f"{typed} could be {spelled}: write more of it")
    return fitting[0]
