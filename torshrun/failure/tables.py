"""Reads tables of what each rank has, as ranks print them that compare themselves. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SPEAKS_OF_RANKS = re.compile(r"\b(?:[Rr]anks?|[Pp]rocesses|[Ww]orkers)\b")
_OF_RANK = re.compile(
    r"\b[Rr]ank[ #=_]?(\d{1,7})(?: (?:has|is|had|uses|got|runs)|[ =:]+) *([^,;|\n]+)"
)
_DICT = re.compile(r"\{(\d{1,7}: [^{}\n]{1,4000})\}")
_ENTRY = re.compile(r"(\d{1,7}): *('[^']*'|\"[^\"]*\"|\([^()]*\)|[^,'\"()]+)(?:, *|$)")
_ITEM = r"(?:'[^']{0,200}'|[\w.+-]{1,80})"
_LIST = re.compile(rf"\[({_ITEM}(?:, *{_ITEM})+)\]")
_BRACKETS = re.compile(r"[()\[\]{}. ]+$")


def table_in(said: str, num_ranks: int) -> Mapping[int, str]:
    """What each of so many ranks has by these words, if they tell it of all; else nothing."""
    if not _SPEAKS_OF_RANKS.search(said):
        return {}
    for found in (_of_ranks(said), _of_dict(said), _of_list(said, num_ranks)):
        if found.keys() == {*range(num_ranks)}:
            return found
    return {}


def _of_ranks(said: str) -> dict[int, str]:
    return {int(rank): _BRACKETS.sub("", what) for rank, what in _OF_RANK.findall(said)}


def _of_dict(said: str) -> dict[int, str]:
    found = _DICT.search(said)
    return {int(rank): what for rank, what in _ENTRY.findall(found[1])} if found else {}


def _of_list(said: str, num_ranks: int) -> dict[int, str]:
    lists = ([each.strip() for each in found[1].split(",")] for found in _LIST.finditer(said))
    return next((dict(enumerate(each)) for each in lists if len(each) == num_ranks), {})
