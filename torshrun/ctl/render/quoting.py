"""Texts as they have to stand in a script or manifest, so that nothing breaks out of its place.

Templates can write numbers, and texts that one of these functions has quoted; nothing else.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_BREAK = " \\\n  "


class Quoted(str):
    """A text that may stand where it is to be written."""

    __slots__ = ()


def sh(text: str) -> Quoted:
    """One word of a POSIX shell, which expands nothing in it."""
    return Quoted(shlex.quote(text))


def literal(text: str) -> Quoted:
    """The same, in quotes even where it needs none."""
    return Quoted("'" + text.replace("'", "'\"'\"'") + "'")


def words(texts: Iterable[str]) -> Quoted:
    """Several words, on one line unless there are line breaks in them."""
    return Quoted(shlex.join(texts))


def lines(commands: Iterable[Iterable[str]]) -> Quoted:
    """Words of one command, on a line for each group; empty groups are left out."""
    return Quoted(_BREAK.join(shlex.join(group) for group in commands if group))


def yaml(text: str) -> Quoted:
    """A scalar that is this text to every YAML parser, on one line."""
    from yaml import safe_dump

    dumped = safe_dump(text, default_style='"', width=1 << 30, allow_unicode=True)
    return Quoted(dumped.removesuffix("\n"))


def block(text: str, indent: int) -> Quoted:
    """The same over several lines, each behind so many spaces, if the text allows it."""
    if not re.fullmatch(r"[\t\n\x20-\x7e]*[\x21-\x7e]", text):
        return yaml(text)
    pad = "\n" + " " * indent
    return Quoted(f"|2-{pad}" + text.replace("\n", pad))


def deeper(text: str, indent: int) -> Quoted:
    """Lines that templates have written, behind so many more spaces; empty ones stay empty."""
    pad = " " * indent
    return Quoted("\n".join(pad + line if line else line for line in text.split("\n")))


def unexpanded(text: str) -> str:
    """What Kubernetes, in commands and variables, and compose, everywhere, take for the text: both
    expand what follows a $, and both read $$ as one.
    """
    return text.replace("$", "$$")


def comment(text: str) -> Quoted:
    """What may stand behind a #: one line."""
    return Quoted("".join(c if c.isprintable() else "?" for c in text))


def shell_code(text: str) -> Quoted:
    """Lines of the user's own shell, which are meant to do what they say."""
    return Quoted(text)


def heredoc(text: str) -> Quoted:
    """A here-document, from its delimiter on, of which the shell expands nothing."""
    end = "END"
    while re.search(rf"^{end}$", text, re.MULTILINE):
        end += "_"
    return Quoted(f"<<'{end}'\n{text.rstrip()}\n{end}")


def checked(value: object) -> object:
    """The value, if a template may write it. TypeError: a filter is missing there."""
    if isinstance(value, Quoted) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise TypeError(f"{value!r} is not quoted")
