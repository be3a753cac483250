"""Quotes texts for scripts and manifests, so that no text is taken for syntax.

Templates can write only numbers, and texts that one of these functions has quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_BREAK = " \\\n  "


class Quoted(str):
    """Marks a text as quoted for the place where it is written."""

    __slots__ = ()


def sh(text: str) -> Quoted:
    """Quote one word of a POSIX shell, which expands nothing in it."""
    return Quoted(shlex.quote(text))


def literal(text: str) -> Quoted:
    """Quote one word of a POSIX shell, even if it needs no quotes."""
    return Quoted("'" + text.replace("'", "'\"'\"'") + "'")


def words(texts: Iterable[str]) -> Quoted:
    """Quote several words, on one line unless they contain line breaks."""
    return Quoted(shlex.join(texts))


def lines(commands: Iterable[Iterable[str]]) -> Quoted:
    """Quote the words of one command, with a line for each group. Empty groups are left out."""
    return Quoted(_BREAK.join(shlex.join(group) for group in commands if group))


def yaml(text: str) -> Quoted:
    """Return a scalar on one line that every YAML parser reads as this text."""
    from yaml import safe_dump

    dumped = safe_dump(text, default_style='"', width=1 << 30, allow_unicode=True)
    return Quoted(dumped.removesuffix("\n"))


def block(text: str, indent: int) -> Quoted:
    """Return a YAML block scalar, indented by `indent` spaces, if the text allows it.

    Otherwise returns a scalar on one line.
    """
    if not re.fullmatch(r"[\t\n\x20-\x7e]*[\x21-\x7e]", text):
        return yaml(text)
    pad = "\n" + " " * indent
    return Quoted(f"|2-{pad}" + text.replace("\n", pad))


def deeper(text: str, indent: int) -> Quoted:
    """Indent lines that templates have written by `indent` more spaces, except empty ones."""
    pad = " " * indent
    return Quoted("\n".join(pad + line if line else line for line in text.split("\n")))


def unexpanded(text: str) -> str:
    """Escape a text so that Kubernetes and compose do not expand it.

    Both expand what follows a $, and both read $$ as one. Kubernetes does so in commands and
    variables, compose everywhere.
    """
    return text.replace("$", "$$")


def comment(text: str) -> Quoted:
    """Return the text as one line that may follow a #."""
    return Quoted("".join(c if c.isprintable() else "?" for c in text))


def shell_code(text: str) -> Quoted:
    """Mark lines of the user's own shell code, which are to be executed, as quoted."""
    return Quoted(text)


def heredoc(text: str) -> Quoted:
    """Return a here-document from its delimiter on, in which the shell expands nothing."""
    end = "END"
    while re.search(rf"^{end}$", text, re.MULTILINE):
        end += "_"
    return Quoted(f"<<'{end}'\n{text.rstrip()}\n{end}")


def checked(value: object) -> object:
    """Return the value if a template may write it.

    Raises TypeError if it is not quoted: the template lacks a filter there.
    """
    if isinstance(value, Quoted) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise TypeError(f"{value!r} is not quoted")
