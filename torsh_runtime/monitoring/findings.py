"""Reports of a rank, a link or a resource that slows the job down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Cause = str
"""quota, processor, disk, gpu, link, "section NAME", or "" for unknown."""
_WORDS: Mapping[str, str] = {
    "quota": "its control group's CPU quota is used up",
    "processor": "other processes take its processor",
    "disk": "it waits for pages from a disk",
    "gpu": "its GPU is throttled",
    "link": "data to or from its node moves slowly",
    "": "the cause is not known",
}


class Finding(NamedTuple):
    """A rank that has become slow, or is no longer so; or a resource that is used up, or is not."""

    kind: Literal["straggler", "link", "resource"]
    is_gone: bool
    """True if it is over."""
    node: int
    ranks: tuple[int, ...]
    """Ranks of the job: the slow one, or those of the node."""
    step: int
    """The last step that was seen; -1 is unknown."""
    ratio: float
    """Quotient of its own work and the others', or its own before if there are none. For a
    resource, the part that is used."""
    speedup: float
    """Quotient of the present time of steps and that without the cause; 1 is unknown."""
    cause: Cause
    """The cause; for a resource its name: cpu, memory, network or gpu."""
    is_lasting: bool = False
    """True if the finding is only repeated because it has lasted for long."""

    @property
    def text(self) -> str:
        """Return one line for people."""
        who = f"node {self.node}" if self.kind != "straggler" else f"rank {self.ranks[0]}"
        if self.node < 0:
            who = "the network between nodes"
        if self.kind == "resource":
            told = f"{self.ratio:.0%} of its {self.cause} is used"
            return f"{who}: {'no longer ' if self.is_gone else ''}{told}"
        if self.is_gone:
            return f"{who} is no longer slow (step {self.step})"
        gain = f"; without that steps would be {self.speedup:.2f} times as fast"
        since = "is still slow" if self.is_lasting else "is slow"
        if self.kind == "link":
            return f"{who} {since} to send (step {self.step}): {in_words(self.cause)}{gain}"
        return (
            f"{who} (node {self.node}) {since} at step {self.step}: its own work takes "
            f"{self.ratio:.2f} times as long as that of the others; {in_words(self.cause)}{gain}"
        )

    def event(self, sequel: str = "") -> tuple[str, dict[str, Any]]:
        """Return the name of the event that reports it, and its facts. `sequel`: what is done about
        it, or proposed, in a sentence."""
        text = f"{self.text}. {sequel}" if sequel else self.text
        facts: dict[str, Any] = {"node": self.node, "ranks": list(self.ranks), "text": text}
        if self.kind == "resource":
            name = "resource_available" if self.is_gone else "resource_exhausted"
            return name, facts | {"resource": self.cause, "used": self.ratio}
        facts |= {"kind": self.kind, "step": self.step, "ratio": self.ratio}
        if self.is_gone:
            return "straggler_gone", facts
        more = {"speedup": self.speedup, "cause": self.cause, "lasting": self.is_lasting}
        return "straggler_found", facts | more | {"sequel": sequel}


def in_words(cause: Cause) -> str:
    """Return a phrase for the cause, to be used in a sentence."""
    name = cause.removeprefix("section ")
    return f'section "{name}" takes longer' if name != cause else _WORDS.get(cause, cause)
