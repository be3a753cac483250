"""Judges from the measurements of many links which link or node is slow. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from torshrun.ctl.doctor.finding import Finding, note, ok, problem, warning
from torshrun.ctl.doctor.links.orders import Checked
from torshrun.text import rate

SLOW = 0.5
"""The fraction of the median rate of all directions below which a direction is slow."""
_LATE, _LATE_BY = 3.0, 0.0002
"""A round trip is late if it exceeds the median by this factor and by these seconds."""
_OF_TCP = 0.25
"""The fraction of the rate of plain TCP below which an all_reduce is slow for its network."""


class Link(NamedTuple):
    """Holds a measurement from one node to another."""

    source: str
    target: str
    rate: float
    """Bytes per second."""
    latency: float
    """Seconds of a round trip."""

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


class Broken(NamedTuple):
    """Names two nodes between which nothing could be measured."""

    pair: tuple[str, str]
    why: str


class Reduced(NamedTuple):
    """Holds the result of an all_reduce between two nodes."""

    pair: tuple[str, str]
    checked: Checked
    tcp_rate: float
    """Bytes per second of plain TCP in its slower direction, or 0 if not measured."""


def rounds(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return all pairs, in rounds in which no node is in two pairs (the circle method)."""
    circle: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        facing = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(a, b) for a, b in facing if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def judge(links: Sequence[Link], broken: Sequence[Broken]) -> Iterator[Finding]:
    for each in broken:
        yield problem(
            " - ".join(each.pair),
            each.why,
            "See that `torshctl doctor --serve` of this version runs there with the same secret, "
            "and that no firewall is between them: jobs need all ports above 1024.",
        )
    if not links:
        return
    typical, usual = median(link.rate for link in links), median(link.latency for link in links)
    slow = [link for link in links if link.rate < SLOW * typical]
    for link in links:
        yield _link(link, typical, usual, is_slow=link in slow)
    yield from _common(slow, links)


def _link(link: Link, typical: float, usual: float, *, is_slow: bool) -> Finding:
    value = f"{rate(link.rate)}, round trip {1e6 * link.latency:.0f} µs"
    if is_slow:
        return warning(
            f"slow link {link}",
            f"{value}; the median of all is {rate(typical)}",
            "Jobs run at the pace of the slowest link: see its cable, port, speed (ethtool) and "
            "route, or leave that node out.",
        )
    if link.latency > _LATE * usual and link.latency > usual + _LATE_BY:
        return note(
            f"late link {link}",
            f"{value}; the median of all is {1e6 * usual:.0f} µs",
            "See whether its route leads through more switches, a tunnel or another site.",
        )
    return ok(str(link), value)


def _common(slow: Sequence[Link], links: Sequence[Link]) -> Iterator[Finding]:
    """Yield nodes whose several links in one direction are all slow while others' are not."""
    for node in dict.fromkeys(name for link in links for name in link[:2]):
        for way, end in (("from", 0), ("to", 1)):
            own = [link for link in links if link[end] == node]
            rest = [link for link in links if node not in link[:2]]
            if len(own) > 1 and all(link in slow for link in own) and rest:
                yield warning(
                    f"slow node {node}",
                    f"all links {way} it are slow, those between others are not",
                    "The cause is in that node: its interface, cable, port or load.",
                )


def judge_reduced(reduced: Sequence[Reduced]) -> Iterator[Finding]:
    """Judge the all_reduces, compared to each other and to plain TCP."""
    rates = [each.checked.rate for each in reduced if not each.checked.failure]
    typical = median(rates) if rates else 0.0
    for each in reduced:
        yield _reduced(each, typical)
    yield from _faulty(reduced)


def _faulty(reduced: Sequence[Reduced]) -> Iterator[Finding]:
    """Yield nodes that failed with several others, while a pair without them works."""
    failed = [each.pair for each in reduced if each.checked.failure]
    worked = [each.pair for each in reduced if not each.checked.failure]
    for node in dict.fromkeys(name for pair in failed for name in pair):
        alone = not any(node in pair for pair in worked)
        if alone and worked and sum(node in pair for pair in failed) > 1:
            yield problem(
                f"faulty node {node}",
                "its all_reduces fail with every other node, those between others work",
                "Leave it out of the job, and see what torshrun says there.",
            )


def _reduced(each: Reduced, typical: float) -> Finding:
    names, checked = " - ".join(each.pair), each.checked
    if checked.failure:
        return problem(
            f"all_reduce {names}",
            f"fails: {checked.failure}",
            "A job of these two nodes fails as well: see what torshrun says there, the ports above "
            "1024 between them, and leave out the node that fails with others as well.",
        )
    value = f"{rate(checked.rate)}, 8 bytes take {1e6 * checked.latency:.0f} µs"
    if checked.rate < SLOW * typical:
        return warning(
            f"slow all_reduce {names}",
            f"{value}; the median of all pairs is {rate(typical)}",
            "See the link between them, and the load of both (top).",
        )
    if each.tcp_rate:
        value += f"; {checked.rate / each.tcp_rate:.2f} of plain TCP"
    if checked.rate < _OF_TCP * each.tcp_rate:
        return note(
            f"all_reduce {names}",
            value,
            "The workers may use another interface (TORSH_SOCKET_IFNAME), or too few processors; "
            "within one host the memory is the limit, not TCP.",
        )
    return ok(f"all_reduce {names}", value)
