"""The heads of the corpus's cases: what fails in each, and what a report should say of it.

tests/corpus/README.md describes the format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "corpus"
_KINDS = (
    "crash exception import usage syntax encoding memory disk limit port mismatch missing deadlock "
    "slow stopped stuck nan signal early_exit version network agent store clock file permission "
    "exit_code"
)
_NEEDS = "torch root disk shm cgroup freezer netns etcd faketime"
KINDS = frozenset(_KINDS.split())
NEEDS = frozenset(_NEEDS.split())
_DEFAULTS = {
    "nproc": "2",
    "nnodes": "1",
    "needs": "",
    "options": "",
    "torchrun": "yes",
    "seconds": "20",
}
_REQUIRED = ("culprit", "kind", "hint")
_HEAD = re.compile(r'"""(.*?)"""', re.DOTALL)
_FIELD = re.compile(r"(\w+):(?: +|$)(.*)")
_COMMENT = re.compile(r"(?:^|\s+)# .*")


class HeadError(ValueError):
    """A case's head is not as it should be; says which case, and what is wrong."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """Whose fault it is. Empty: no rank's and no node's."""

    ranks: frozenset[int] = frozenset()
    nodes: frozenset[int] = frozenset()
    undecided: bool = False
    """Whether nobody could tell which of them it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One failing job."""

    path: Path
    name: str
    """Area and name: "memory/refused"."""
    title: str
    nproc: int
    nnodes: int
    culprit: Culprit
    kinds: frozenset[str]
    """Words of KINDS, each of which is right."""
    hints: tuple[re.Pattern[str], ...]
    """All of them should be found in a report."""
    needs: frozenset[str]
    options: tuple[str, ...]
    torchrun: bool
    """Whether torchrun can run it."""
    seconds: float
    """How long it may take to fail."""

    @property
    def area(self) -> str:
        return self.name.partition("/")[0]


def cases(folder: Path = FOLDER) -> list[Case]:
    """All of them, by name. Raises HeadError."""
    return [load(path) for path in sorted(folder.glob("*/*.py"))]


def load(path: Path) -> Case:
    """The case in this file, which need not be valid Python, or UTF-8. Raises HeadError."""
    return parse(path.read_text(errors="replace"), path)


def parse(text: str, path: Path) -> Case:
    """The case whose script this is. Raises HeadError."""
    try:
        return _parse(text, path)
    except ValueError as error:
        raise HeadError(f"{path}: {error}") from None


def _parse(text: str, path: Path) -> Case:
    found = _HEAD.search(text)
    if found is None:
        raise ValueError("it has no docstring")
    title, _, rest = found[1].strip().partition("\n")
    fields = {**_DEFAULTS, **_fields(rest)}
    return Case(
        path=path,
        name=f"{path.parent.name}/{path.stem}",
        title=title.strip(),
        nproc=_positive(fields, "nproc"),
        nnodes=_positive(fields, "nnodes"),
        culprit=parse_culprit(fields["culprit"]),
        kinds=_known(fields, "kind", re.split(r"\s*\|\s*", fields["kind"]), KINDS),
        hints=tuple(re.compile(hint, re.I) for hint in re.split(r",\s*", fields["hint"]) if hint),
        needs=_known(fields, "needs", re.split(r",?\s+", fields["needs"]), NEEDS),
        options=tuple(fields["options"].split()),
        torchrun=_yes(fields, "torchrun"),
        seconds=float(fields["seconds"]),
    )


def _fields(text: str) -> Mapping[str, str]:
    """The lines "name: value"; what stands between them is for readers."""
    found = {}
    for line in text.splitlines():
        match = _FIELD.fullmatch(_COMMENT.sub("", line.strip()))
        if match and match[1] in (*_DEFAULTS, *_REQUIRED):
            if match[1] in found and match[1] != "options":
                raise ValueError(f"{match[1]} is there twice")
            found[match[1]] = f"{found.get(match[1], '')} {match[2]}".strip()
    missing = [name for name in _REQUIRED if not found.get(name)]
    if missing:
        raise ValueError(f"there is no {' and no '.join(missing)}")
    return found


def parse_culprit(text: str) -> Culprit:
    """Of "1", "1 2", "node 1", "none", and any of them with "|" in between. Raises ValueError."""
    either = [re.split(r"[,\s]+", part.strip()) for part in text.split("|")]
    ranks: set[int] = set()
    nodes: set[int] = set()
    for first, *others in either:
        if first in ("node", "nodes"):
            nodes |= set(map(int, others))
        elif [first, *others] != ["none"]:
            ranks |= set(map(int, [first, *others]))
    return Culprit(frozenset(ranks), frozenset(nodes), len(either) > 1)


def _known(
    fields: Mapping[str, str], name: str, words: list[str], known: frozenset[str]
) -> frozenset[str]:
    found = frozenset(filter(None, words))
    if found - known:
        raise ValueError(f"{name}: unknown: {', '.join(sorted(found - known))}")
    return found


def _positive(fields: Mapping[str, str], name: str) -> int:
    if int(fields[name]) < 1:
        raise ValueError(f"{name} is {fields[name]}")
    return int(fields[name])


def _yes(fields: Mapping[str, str], name: str) -> bool:
    if fields[name] not in ("yes", "no"):
        raise ValueError(f"{name} is {fields[name]!r}, neither yes nor no")
    return fields[name] == "yes"
