"""--print-completion: a script by which a shell completes torshrun's options."""

from __future__ import annotations

import re
import shlex

from torshrun.config.options import OPTIONS, Option

_FILES = ("FILE", "FILE|-", "DIRECTORY")
"""Placeholders of values that are paths."""


def completion(shell: str) -> str:
    """Return the completion script for bash, zsh or fish."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _choices(option: Option) -> list[str]:
    """Return the words that the option's value may be, if there are such."""
    words = option.metavar.split("|")
    return words if len(words) > 1 and option.metavar not in _FILES and words[0].islower() else []


def _bash() -> str:
    cases = ""
    for option in (each for each in OPTIONS if not each.is_flag):
        names, words = "|".join(option.spellings), " ".join(_choices(option))
        action = (
            "" if option.metavar in _FILES else f'COMPREPLY=($(compgen -W "{words}" -- "$now")); '
        )
        cases += f"    {names}) {action}return ;;\n"
    names = " ".join(name for option in OPTIONS for name in option.spellings)
    return f"""# torshrun's options for bash: eval "$(torshrun --print-completion bash)"
_torshrun() {{
  local now=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  COMPREPLY=()
  case $before in
{cases}  esac
  [[ $now != -* ]] || COMPREPLY=($(compgen -W "{names} --help --version" -- "$now"))
}}
complete -o default -F _torshrun torshrun
"""


def _zsh() -> str:
    lines = []
    for option in OPTIONS:
        text = re.sub(r"([\[\]:\\])", r"\\\1", option.help)
        words = f"({' '.join(_choices(option))})" if _choices(option) else ""
        action = "_files" if option.metavar in _FILES else words or " "
        metavar = re.sub(r"([:\\])", r"\\\1", option.metavar)
        value = "" if option.is_flag else f":{metavar}:{action}"
        lines += [shlex.quote(f"{name}[{text}]{value}") for name in option.spellings]
    specs = " \\\n    ".join([*lines, "'*::script:_files'"])
    return f"""#compdef torshrun
# torshrun's options for zsh: torshrun --print-completion zsh > a directory of $fpath/_torshrun
_torshrun() {{
  _arguments -S \\
    {specs}
}}
if [ "$funcstack[1]" = _torshrun ]; then _torshrun "$@"; else compdef _torshrun torshrun; fi
"""


def _fish() -> str:
    lines = ["# torshrun's options for fish: torshrun --print-completion fish | source"]
    for option in OPTIONS:
        names = [
            f"-l {name[2:]}" if name[:2] == "--" else f"-s {name[1]}" for name in option.spellings
        ]
        takes = "" if option.is_flag else " -r" if option.metavar in _FILES else " -x"
        words = f" -a {shlex.quote(' '.join(_choices(option)))}" if _choices(option) else ""
        text = option.help.replace("\\", "\\\\").replace("'", "\\'")
        lines.append(f"complete -c torshrun {' '.join(names)}{takes}{words} -d '{text}'")
    return "\n".join(lines) + "\n"
