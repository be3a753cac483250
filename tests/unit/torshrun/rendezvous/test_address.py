"""Which address others are told."""

from __future__ import annotations

import pytest
from support.localhost import needs_localhost

from torsh_runtime.errors import ConfigError
from torshrun.rendezvous.address import resolve, routable


def test_loopback_is_told_only_where_it_is_asked_for() -> None:
    assert routable([("127.0.0.1", 1)]) == "127.0.0.1"
    assert routable([("127.0.0.2", 1)]).startswith("127.")


@needs_localhost
def test_loopback_is_not_told_to_other_hosts_that_may_come() -> None:
    told = routable([("localhost", 1)], may_be_private=False)
    assert told == routable([("192.0.2.1", 1)]) or told.startswith(
        "127."
    )  # where there is no way out


def test_the_next_endpoint_counts_if_the_first_is_unknown() -> None:
    assert routable([("no-such-host.invalid", 1), ("127.0.0.1", 1)]) == "127.0.0.1"


def test_unknown_hosts_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"no way .* to no-such-host\.invalid.*--local-addr"):
        routable([("no-such-host.invalid", 1)])


def test_addresses_come_once() -> None:
    found = resolve("127.0.0.1", 80)
    assert found == [*dict.fromkeys(found)]
    assert [address for _, address in found] == [("127.0.0.1", 80)]
    assert resolve("no-such-host.invalid", 80) == []
