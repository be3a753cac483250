"""Options as people type them: abbreviated, with _ or -. Pure: argv in, argv out."""

from __future__ import annotations

from collections.abc import Sequence

from torsh_runtime.errors import ConfigError
from torshrun.config.options import BY_NAME, OPTIONS

_OTHERS = ("help", "version")
_NOT_TORCHRUNS = frozenset(
    (
        "agent_timeout",
        "color",
        "config",
        "dry_run",
        "events",
        "hang_timeout",
        "log_rotate",
        "log_timestamps",
        "metrics_port",
        "pid_namespace",
        "print_config",
        "ranks_filter",
        "restart_backoff",
        "run_id",
        "status_line",
        "version",
    )
)
"""Where an abbreviation fits several options, those that torchrun does not have stand back: what
is unambiguous there must be so here.
"""
_SHORT_WITH_VALUE = frozenset(option.short for option in OPTIONS if option.short and option.metavar)


def complete(argv: Sequence[str]) -> list[str]:
    """argv with its long options spelled out, as far as they are torshrun's: up to SCRIPT or --.

    Raises ConfigError naming the candidates where an abbreviation fits several options.
    """
    words = list(argv)
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] not in ("-", "--"):
        if words[place].startswith("--"):
            words[place], value_follows = _long(words[place])
        else:
            value_follows = _short(words[place])
        place += 2 if value_follows else 1
    return words


def _long(word: str) -> tuple[str, bool]:
    """The option in full, and whether the next word is its value."""
    typed, equals, value = word.partition("=")
    name = _full_name(typed[2:].replace("-", "_"))
    takes_value = name in BY_NAME and not BY_NAME[name].is_flag
    full = "--" + name.replace("_", "-")
    return f"{full}{equals}{value}", takes_value and not equals


def _full_name(typed: str) -> str:
    """The name that this begins; as it is if it begins none."""
    names = (*BY_NAME, *_OTHERS)
    if typed in names or not typed:
        return typed
    fitting = [name for name in names if name.startswith(typed)]
    fitting = [name for name in fitting if name not in _NOT_TORCHRUNS] or fitting
    if len({BY_NAME[name].key if name in BY_NAME else name for name in fitting}) > 1:
        spelled = ", ".join(f"--{name.replace('_', '-')}" for name in fitting)
        raise ConfigError(f"--{typed.replace('_', '-')} could be {spelled}: write more of it")
    return fitting[0] if fitting else typed


def _short(word: str) -> bool:
    """Whether the next word is the value of the last of these letters, as in -mr 3."""
    for place, letter in enumerate(word[1:], start=2):
        if f"-{letter}" in _SHORT_WITH_VALUE:
            return place == len(word)
    return False
