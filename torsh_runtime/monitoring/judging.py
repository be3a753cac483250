"""Judges which ranks have become slow, and why, from summaries of all nodes. Pure.

A rank is slow if its own work takes longer than that of the other ranks that do the same, and
longer than its own did before; or, for longer, only the former: it may have been slow from the
start. Both its beginning and its end take several steps in a row, nearly all of which say so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torsh_runtime.monitoring.excess import Excess, common_variance
from torsh_runtime.monitoring.findings import Cause, Finding
from torsh_runtime.monitoring.peers import Peers, median_of, median_without
from torsh_runtime.monitoring.summaries import (
    NodeSummary,
    RankSummary,
    figures_of,
    with_figures,
)

THRESHOLD = 1.2
"""The default quotient of a rank's time and the others' from which on it is slow."""
ENOUGH, SURE = 10, 20
"""Steps that have to be slow: where others and the past agree, and where only others say so."""
LOOKS = 3
"""Looks that have to find a resource used up, or free again."""
_MOST = 5 / 4
"""The multiple of these steps that is remembered."""
_EXPLAINS = 0.4
"""The part of the time lost that a cause has to account for."""
_A_FAULT = 100e-6
"""Seconds that reading a page takes at least, on fast disks."""
_LEARNS = 0.2
"""The weight of the newest summary in what is known of the past."""
_LASTING = 100
"""Steps after which a rank has been slow for long."""
_SLOWER = 1.25
"""Quotient of the rate of any other link and that of a slow one."""
_Change = Literal["", "begin", "lasting", "end"]


@dataclass
class _Evidence:
    """Steps in a row, and whether they are evidence for something."""

    enough: int
    held: deque[tuple[int, bool]] = field(default_factory=deque)

    def add(self, steps: int, speaks: bool) -> bool:
        """Add steps, and return whether there is enough evidence now."""
        most = int(self.enough * _MOST)
        self.held.append((min(steps, most), speaks))
        while sum(steps for steps, _ in self.held) - self.held[0][0] >= most:
            self.held.popleft()
        return sum(steps for steps, spoke in self.held if spoke) >= self.enough and speaks


@dataclass
class _Past:
    """A rank's steps before it was slow, in summary."""

    summary: RankSummary
    steps: int

    def learn(self, now: RankSummary) -> None:
        """Mix in a little of the present summary."""
        weight = max(_LEARNS, now.steps / (self.steps + now.steps))
        mixed = [
            before + weight * (after - before)
            for before, after in zip(figures_of(self.summary), figures_of(now), strict=True)
        ]
        before = dict(self.summary.sections)
        sections = [
            (name, before.get(name, 0.0) + weight * (seconds - before.get(name, 0.0)))
            for name, seconds in now.sections
        ]
        self.steps += now.steps
        self.summary = with_figures(now, mixed, sections)


@dataclass
class _Standing:
    """The state of one rank, or of one node's link."""

    past: _Past | None = None
    excess: Excess = field(default_factory=Excess)
    """Excess of a rank."""
    looks: int = 0
    """Number of looks that it took to find it slow."""
    slow: _Evidence = field(default_factory=lambda: _Evidence(ENOUGH))
    from_start: _Evidence = field(default_factory=lambda: _Evidence(SURE))
    well: _Evidence = field(default_factory=lambda: _Evidence(ENOUGH))
    is_slow: bool = False
    steps: int = 0
    """Number of steps since it is slow."""

    @classmethod
    def of_looks(cls) -> _Standing:
        """Return the standing of something that is counted in looks at it."""
        return cls(slow=_Evidence(LOOKS), well=_Evidence(LOOKS))

    def begin(self, looks: int = 0) -> None:
        self.is_slow, self.steps, self.looks = True, 0, looks
        self.excess.forget()
        self.well.held.clear()

    def end(self) -> None:
        self.is_slow = False
        self.excess.forget()
        self.slow.held.clear()
        self.from_start.held.clear()


class Judge:
    """Takes summaries and reports what has changed."""

    def __init__(
        self, threshold: float = THRESHOLD, limits: Mapping[str, float] | None = None
    ) -> None:
        """Create a judge. `threshold` is more than 1; see THRESHOLD. `limits` has the used part
        from which on a resource (cpu, memory, network, gpu) counts as used up. With None, resources
        are not judged."""
        self._threshold = threshold
        self._well = 1 + (threshold - 1) / 2
        self._limits = limits or {}
        self._ranks: dict[int, _Standing] = {}
        self._links = _Standing()
        self._slow_link = -1
        self._resources: dict[tuple[int, str], _Standing] = {}
        self._seen: dict[int, int] = {}
        self._common = common_variance(())
        self._growth: list[float] = []

    def observe(self, summaries: Iterable[NodeSummary]) -> list[Finding]:
        """Take the newest summary of each node, and return the findings. Summaries that were seen
        before are only compared with."""
        nodes = {each.node: each for each in summaries}
        fresh = [each for each in nodes.values() if self._seen.get(each.node) != each.number]
        self._seen = {each.node: each.number for each in nodes.values()}
        ranks = {rank.rank: rank for node in nodes.values() for rank in node.ranks if rank.steps}
        self._common = common_variance(each.excess.spread for each in self._ranks.values())
        self._growth = self._growths(ranks.values())
        found, peers = [], Peers(ranks.values())
        for node in fresh:
            for rank in node.ranks:
                if rank.steps:
                    found += self._observe_rank(node, rank, peers)
            found += self._observe_resources(node)
        if len(nodes) > 1 and fresh and ranks:
            found += self._observe_links(nodes, ranks)
        return found

    # ---- ranks

    def _observe_rank(self, node: NodeSummary, now: RankSummary, peers: Peers) -> list[Finding]:
        standing = self._ranks.setdefault(now.rank, _Standing())
        usual = peers.own_of_others(now)
        has_others = usual is not None
        ratio = (
            self._quotient_of_past(standing, now) if usual is None else _quotient(now.own, usual)
        )
        change = self._change(standing, now, ratio, has_others=has_others)
        if not change:
            return []
        others = peers.others(now)
        past = standing.past.summary if standing.past else now
        reference = median_of(others) if others else past
        is_gone = change == "end"
        return [
            Finding(
                "straggler",
                is_gone,
                node.node,
                (now.rank,),
                now.step,
                ratio,
                1.0 if is_gone else _speedup(now, reference, others),
                "" if is_gone else _cause(node, now, reference),
                is_lasting=change == "lasting",
            )
        ]

    def _quotient_of_past(self, standing: _Standing, now: RankSummary) -> float:
        """Return how many times as long the rank's own work takes as it did, divided by how much
        that of other ranks has grown since."""
        past = standing.past
        if past is None or not past.steps:
            return 1.0
        growth = _quotient(now.own, past.summary.own)
        usual = median_without(self._growth, growth)
        return growth / max(usual or 1.0, 1.0)

    def _growths(self, ranks: Iterable[RankSummary]) -> list[float]:
        """Return by how much the own work of each rank has grown, ascending."""
        pairs = (
            (each.own, self._ranks[each.rank].past) for each in ranks if each.rank in self._ranks
        )
        return sorted(_quotient(own, past.summary.own) for own, past in pairs if past)

    def _change(
        self, standing: _Standing, now: RankSummary, ratio: float, *, has_others: bool
    ) -> _Change:
        """Update the rank's standing by its newest summary, and return the change."""
        excess, past = standing.excess, standing.past
        excess.add(now.steps, ratio)
        if standing.is_slow:
            is_well = excess.is_below(self._well, ENOUGH, standing.looks)
            return self._while_slow(standing, now.steps, is_well=is_well)
        is_known = past is not None and past.steps >= ENOUGH
        has_grown = past is None or now.own >= self._well * past.summary.own
        steps = ENOUGH if is_known and has_grown else SURE
        looks = excess.looks_above(self._threshold, steps, self._common)
        if looks and ((is_known and has_grown) or has_others):
            standing.begin(looks)
            return "begin"
        if past is None:  # the first steps say little: programs warm up
            standing.past = _Past(now, 0)
        elif ratio < self._threshold or not has_grown:
            past.learn(now)
        return ""

    def _while_slow(self, standing: _Standing, steps: int, *, is_well: bool) -> _Change:
        if is_well:
            standing.end()
            return "end"
        was_short = standing.steps < _LASTING
        standing.steps += steps
        return "lasting" if was_short and standing.steps >= _LASTING else ""

    # ---- links between nodes

    def _observe_links(
        self, nodes: Mapping[int, NodeSummary], ranks: Mapping[int, RankSummary]
    ) -> list[Finding]:
        """Find whether operations take longer than they did, on all ranks, while none works longer.
        The rank that came last has waited for nobody, so time that the others do not wait less is
        the network's. The signal that all have come uses the network, too."""
        now = min(ranks.values(), key=_communication)
        links, past = self._links, self._links.past
        if past is None or not past.steps or any(each.is_slow for each in self._ranks.values()):
            links.past = past or _Past(now, 0)
            links.past.learn(now)
            return []
        before = past.summary
        more = _communication(now) - _communication(before)
        ratio = 1 + more / before.seconds if before.seconds > 0 else 1.0
        if links.is_slow:
            is_well = links.well.add(now.steps, ratio < self._well)
            change = self._while_slow(links, now.steps, is_well=is_well)
        else:
            change = self._begin_link(links, now, ratio, _slowest_link(nodes))
        if not change:
            return []
        node = nodes.get(self._slow_link)
        of_node = tuple(sorted(rank.rank for rank in node.ranks)) if node else ()
        speedup = _quotient(now.seconds, now.seconds - more) if change != "end" else 1.0
        where = self._slow_link, of_node, now.step, ratio, speedup, "link"
        return [Finding("link", change == "end", *where, is_lasting=change == "lasting")]

    def _begin_link(
        self, links: _Standing, now: RankSummary, ratio: float, slowest: int
    ) -> _Change:
        """Return whether links are slow from now on. It may take a few more steps to see whose link
        it is."""
        is_over = ratio >= self._threshold
        is_enough = links.slow.add(now.steps, is_over)
        is_sure = links.from_start.add(now.steps, is_over)
        if is_sure or (is_enough and slowest >= 0):
            links.begin()
            self._slow_link = slowest
            return "begin"
        if not is_over and links.past:
            links.past.learn(now)
        return ""

    # ---- resources

    def _observe_resources(self, node: NodeSummary) -> list[Finding]:
        found = []
        for name, limit in self._limits.items():
            used = getattr(node, name)
            if used is None:
                continue
            standing = self._resources.setdefault((node.node, name), _Standing.of_looks())
            is_over = used > limit
            if standing.is_slow:
                has_changed = standing.well.add(1, not is_over)
                standing.end() if has_changed else None
            else:
                has_changed = standing.slow.add(1, is_over)
                standing.begin() if has_changed else None
            if has_changed:
                ranks = tuple(sorted(rank.rank for rank in node.ranks))
                step = max((rank.step for rank in node.ranks), default=-1)
                is_gone = not standing.is_slow
                found.append(Finding("resource", is_gone, node.node, ranks, step, used, 1.0, name))
        return found


def _quotient(one: float, other: float) -> float:
    return one / other if other > 0 else 1.0


def _speedup(now: RankSummary, reference: RankSummary, others: Sequence[RankSummary]) -> float:
    """Return how many times as fast steps would be. No more is gained than the others wait for
    it."""
    gain = now.own - reference.own
    if others:
        gain = min(gain, max(reference.waiting - now.waiting, 0.0))
    return _quotient(now.seconds, now.seconds - gain) if 0 < gain < now.seconds else 1.0


def _cause(node: NodeSummary, now: RankSummary, reference: RankSummary) -> Cause:
    """Return the most fundamental of the causes that explain enough of the lost time."""
    lost = (now.own - reference.own) * _EXPLAINS
    usual = dict(reference.sections)
    grown = [(seconds - usual.get(name, 0.0), name) for name, seconds in now.sections]
    section = max(grown, default=(0.0, ""))
    disk = max(now.read - reference.read, (now.faults - reference.faults) * _A_FAULT)
    explained: Sequence[tuple[float, Cause]] = (
        (now.throttled - reference.throttled, "quota"),
        (now.queued - reference.queued, "processor"),
        (disk, "disk"),
        (lost * node.gpu_is_throttled, "gpu"),
        (section[0], f"section {section[1]}"),
    )
    return next((cause for seconds, cause in explained if seconds >= lost > 0), "")


def _communication(rank: RankSummary) -> float:
    return rank.waiting + rank.moving


def _slowest_link(nodes: Mapping[int, NodeSummary]) -> int:
    """Return the node whose connections deliver much less than those of any other; -1 is none."""
    rates = sorted((each.rate, number) for number, each in nodes.items() if each.rate is not None)
    if len(rates) < 2 or rates[0][0] * _SLOWER > rates[1][0]:
        return -1
    return rates[0][1]
