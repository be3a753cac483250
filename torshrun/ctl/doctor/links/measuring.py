"""Measures links from here to each peer, or between all, and lets pairs run an all_reduce."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from torshrun.config.job import Address
from torshrun.ctl.doctor.deadlines import all_within
from torshrun.ctl.doctor.finding import Finding, ok, problem, warning
from torshrun.ctl.doctor.links import all_reduce, orders
from torshrun.ctl.doctor.links.judgement import (
    Broken,
    Link,
    Reduced,
    judge,
    judge_reduced,
    rounds,
)
from torshrun.ctl.doctor.links.orders import About, Checked, LinkError, Measured, Port

HERE = "here"
Pair = tuple[str, str]


@dataclass(eq=False)
class Measuring:
    """Measures the links of this node and its peers. After `run` it holds the results."""

    peers: Sequence[Address]
    key: bytes
    say: Callable[[str], None]
    """Receives a line about the progress."""
    with_gpus: bool = False
    """True if GPUs do the all_reduces, over NCCL."""
    links: list[Link] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    reduced: list[Reduced] = field(default_factory=list)
    about: list[Finding] = field(default_factory=list)

    def run(self, *, all_pairs: bool, network_check: bool) -> tuple[Finding, ...]:
        """Measure the links, then run all_reduces if wanted. Each step has a deadline."""
        self._by_name = {str(peer): peer for peer in self.peers}
        there = self._introduce()
        plan = rounds([HERE, *there]) if all_pairs else [[(HERE, name)] for name in there]
        for number, pairs in enumerate(plan, 1):
            self.say(f"measuring links, step {number} of {len(plan)}")
            self._measure(pairs)
        if network_check:
            for number, pairs in enumerate(plan, 1):
                self.say(f"all_reduce between nodes, step {number} of {len(plan)}")
                self._reduce(pairs)
        return (*self.about, *judge(self.links, self.broken), *judge_reduced(self.reduced))

    def _introduce(self) -> list[str]:
        """Return the peers that answer, and record their versions."""
        seconds, there = orders.CONNECT_SECONDS, []
        calls = {
            name: partial(orders.ask, peer, self.key, About, seconds, "about")
            for name, peer in self._by_name.items()
        }
        for name, answer in all_within(3 * seconds, calls).items():
            if isinstance(answer, Exception):
                self.broken.append(Broken((HERE, name), str(answer)))
            else:
                there.append(name)
                self.about.append(_introduced(name, answer, About.this_node()))
        return there

    # ---- plain TCP

    def _measure(self, pairs: Sequence[Pair]) -> None:
        calls = {pair: partial(self._measure_one, pair) for pair in pairs}
        for pair, found in all_within(2 * orders.MEASURE_SECONDS, calls).items():
            if isinstance(found, Exception):
                self.broken.append(Broken(pair, str(found)))
            else:
                self.links += _both_ways(pair, found)

    def _measure_one(self, pair: Pair) -> Measured:
        one, other = pair
        peer = self._by_name[other]
        if one == HERE:
            return orders.measure(peer, self.key)
        seconds = orders.MEASURE_SECONDS
        return orders.ask(self._by_name[one], self.key, Measured, seconds, "measure", *peer)

    # ---- all_reduce

    def _reduce(self, pairs: Sequence[Pair]) -> None:
        calls = {pair: partial(self._reduce_one, pair) for pair in pairs}
        for pair, found in all_within(2 * orders.CHECK_SECONDS, calls).items():
            tcp = [link.rate for link in self.links if {link.source, link.target} == {*pair}]
            self.reduced.append(Reduced(pair, _checked(found), min(tcp, default=0.0)))

    def _reduce_one(self, pair: Pair) -> Checked:
        """Run an all_reduce between two nodes.

        The second node of the pair serves the store. It is never this node, whose address the
        others do not know.
        """
        node, master = pair
        peer = self._by_name[master]
        seconds = orders.CONNECT_SECONDS
        (port,) = orders.ask(peer, self.key, Port, seconds, "port")
        meet, run_id = Address(peer.host, port), f"doctor-{os.urandom(4).hex()}"
        parts = {
            name: partial(
                self._take_part, name, all_reduce.Place(rank, meet, run_id, self.with_gpus)
            )
            for rank, name in enumerate((master, node))
        }
        found = all_within(orders.CHECK_SECONDS + orders.CONNECT_SECONDS, parts)
        return _worse(found[master], found[node])

    def _take_part(self, name: str, place: all_reduce.Place) -> Checked:
        if name == HERE:
            return all_reduce.take_part(place, self.key)
        order = ("all_reduce", place.node_rank, *place.master, place.run_id, place.with_gpus)
        try:
            return orders.ask(self._by_name[name], self.key, Checked, orders.CHECK_SECONDS, *order)
        except LinkError as error:
            raise LinkError(f"{name}: {error}") from None


def _introduced(name: str, peer: About, here: About) -> Finding:
    value = f"{peer.host}, torshrun {peer.torshrun}, Python {peer.python}"
    if peer.torshrun != here.torshrun:
        advice = f"Install the same version on all nodes; here it is {here.torshrun}."
        return problem(name, value, advice)
    if peer.python.split(".")[:2] != here.python.split(".")[:2]:
        advice = (
            f"Use the same on all nodes, or objects may be unreadable; here it is {here.python}."
        )
        return warning(name, value, advice)
    return ok(name, value)


def _both_ways(pair: Pair, found: Measured) -> Iterator[Link]:
    one, other = pair
    yield Link(one, other, found.out_rate, found.latency)
    yield Link(other, one, found.in_rate, found.latency)


def _worse(*parts: Checked | Exception) -> Checked:
    """Return the first failure, or the slower of the two."""
    checked = [*map(_checked, parts)]
    failed = [each for each in checked if each.failure]
    return failed[0] if failed else min(checked, key=lambda each: each.rate)


def _checked(part: Checked | Exception) -> Checked:
    return Checked(str(part), 0.0, 0.0) if isinstance(part, Exception) else part
