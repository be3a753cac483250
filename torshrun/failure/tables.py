"""Reads tables of what each rank has, as ranks print them that compare themselves. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torshrun.text import format_ranks, parse_ranges

_SPEAKS_OF_RANKS = re.compile(r"\b(?:[Rr]anks?|[Pp]rocess(?:es)?|[Ww]orkers?)\b")
_WITHIN = r"\([^()\n]*\)|\[[^\[\]\n]*\]"
_OF_RANK = re.compile(
    r"\b(?:[Rr]anks?|[Pp]rocess|[Ww]orker)[ #=_]?(\d{1,7}(?:(?:-|, ?)\d{1,7})*)"
    rf"(?: (?:has|is|had|uses|got|runs)|[ =:]+) *((?:{_WITHIN}|[^,;|\n])+)"
)
_ROW = re.compile(r"^[\W_]*(?:[Rr]ank|[Pp]rocess|[Ww]orker)[ #=_]?\d{1,7} *[:=]")
_DICT = re.compile(r"\{(\d{1,7}: [^{}\n]{1,4000})\}")
_ENTRY = re.compile(r"(\d{1,7}): *('[^']*'|\"[^\"]*\"|\([^()]*\)|[^,'\"()]+)(?:, *|$)")
_ITEM = r"(?:'[^']{0,200}'|[\w.+-]{1,80})"
_LIST = re.compile(rf"\[({_ITEM}(?:, *{_ITEM})+)\]")
_IN_WHOLE = re.compile(rf"(?:{_WITHIN})$")
_BRACKETS = re.compile(r"[()\[\]{}. ]+$")


def table_in(said: str, num_ranks: int) -> Mapping[int, str]:
    """Return what each of `num_ranks` ranks has by these words, if they tell it of all; else {}."""
    if not _SPEAKS_OF_RANKS.search(said):
        return {}
    for found in (_of_ranks(said), _of_dict(said), _of_list(said, num_ranks)):
        if found.keys() == {*range(num_ranks)}:
            return found
    return {}


def in_a_line(error: str) -> str:
    """Return the first line of an error, then what each rank has, if further lines tell that."""
    first, rows = error.split("\n")[0][:_TOLD_CHARS], rows_in(error)[: 2 * _TOLD_CHARS]
    return f"{first[: _TOLD_CHARS // 2]} … {rows}" if rows else first


_TOLD_CHARS = 200


def rows_in(error: str) -> str:
    """Return the lines below the first one of an error that each tell what one rank has, in one
    line in which ranks that have the same are grouped; "" if there are none.
    """
    rows = "; ".join(line for line in error.split("\n")[1:] if _ROW.match(line))
    alike: dict[str, list[int]] = {}
    for rank, what in _of_ranks(rows).items():
        alike.setdefault(what, []).append(rank)
    return "; ".join(f"{format_ranks(ranks)}: {what}" for what, ranks in alike.items())


def _of_ranks(said: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for named, text in _OF_RANK.findall(said):
        what = text.strip()
        what = what if _IN_WHOLE.search(what) else _BRACKETS.sub("", what)
        found |= dict.fromkeys(_numbers(named), what)
    return found


def _numbers(named: str) -> Iterable[int]:
    """Return the ranks of runs like "0-2, 5"; none if too many: a worker may write anything."""
    try:
        return () if _FAR.search(named) else parse_ranges(named)
    except ValueError:
        return ()


_FAR = re.compile(r"-\d{5}")


def _of_dict(said: str) -> dict[int, str]:
    found = _DICT.search(said)
    return {int(rank): what for rank, what in _ENTRY.findall(found[1])} if found else {}


def _of_list(said: str, num_ranks: int) -> dict[int, str]:
    lists = ([each.strip() for each in found[1].split(",")] for found in _LIST.finditer(said))
    return next((dict(enumerate(each)) for each in lists if len(each) == num_ranks), {})
