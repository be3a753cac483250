"""What a leader remembers: each event makes another value, and changes none that was there."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace

import pytest
from support.led_nodes import decide, header, node, settings, view

from torshrun.rendezvous.sight import Sight
from torshrun.rendezvous.state import decide as decide_purely

START = Sight.at_start(settings(), 1.0)


def test_it_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        START.claimed = 3  # type: ignore[misc]


def test_another_round_begins_with_the_nodes_that_were_given_places_in_it() -> None:
    formed = START.with_places("t", ["a", "b"]).with_enough(2.0)
    seen = formed.with_header(header(), 3.0)
    assert (seen.seated, seen.opened_at, seen.enough_since) == ({"a", "b"}, 3.0, math.inf)
    assert (seen.forming, seen.claimed) == ({}, 0)
    assert formed.forming == {"t": ("a", "b")}
    again = seen.with_header(header(fence=9), 4.0)
    assert (again.seated, again.opened_at) == ({"a", "b"}, 3.0)


def test_a_round_is_idle_from_when_it_closes_and_is_to_be_listed_anew() -> None:
    seen = replace(START.with_header(header(), 2.0), listed_since_close=True)
    closing = seen.with_header(header(phase="closing"), 5.0)
    assert (closing.idle_since, closing.listed_since_close) == (5.0, False)
    assert closing.with_header(header(phase="closing"), 6.0).idle_since == 5.0
    assert closing.with_header(None, 7.0).idle_since == 7.0


def test_bounds_only_come_nearer_but_for_strangers() -> None:
    seen = replace(START, blind_until=50.0, inherited_until=60.0)
    assert seen.with_bound(70.0) is seen
    nearer = seen.with_bound(55.0)
    assert (nearer.blind_until, nearer.inherited_until) == (50.0, 55.0)
    assert nearer.with_stranger(58.0).blind_until == 58.0
    assert nearer.with_stranger(40.0).blind_until == 50.0


def test_a_loss_counts_once_for_a_round() -> None:
    seen = START.with_header(header(), 0.0).with_loss("h", 1.0)
    assert seen.with_loss("h", 2.0) is seen
    assert START.hosts.free_at("h", needed=False) == -math.inf


def test_to_decide_changes_nothing_of_what_is_known() -> None:
    seen = view(node("a"), node("b"))
    before = seen.sight
    sight, decision = decide_purely(seen, 4.0)
    assert (seen.sight, before.enough_since) == (before, math.inf)
    assert (sight.enough_since, decision) == (4.0, decide(seen, 4.0))
    assert seen.sight == sight
