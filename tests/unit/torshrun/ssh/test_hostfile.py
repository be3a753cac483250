"""Hostfiles in the formats that people have, and what is wrong with others."""

from __future__ import annotations

import pytest

from torsh_runtime.errors import ConfigError
from torshrun.ssh.hostfile import Host, parse, select


def hosts(*lines: str) -> tuple[Host, ...]:
    return parse("\n".join(lines), "hosts")


def test_formats() -> None:
    found = hosts(
        "# DeepSpeed's",
        "node1 slots=4",
        "",
        "node2 slots=2 max_slots=8 # Open MPI's",
        "node3:3",
        "me@node4 port=2222",
        "fd77::5 slots=2",
        "me@[fd77::6]:4",
        "10.0.0.7 max-slots=1",
        "DOMAIN\\me@10.0.0.8:2#a comment",
        "fe80::1%eth0",
        "fe80::1%eth1\r",
        "knöten.example.",
    )
    facts = [(h.name, h.user, h.port, h.slots, h.max_slots) for h in found]
    assert facts == [
        ("node1", "", 0, 4, 0),
        ("node2", "", 0, 2, 8),
        ("node3", "", 0, 3, 0),
        ("node4", "me", 2222, 0, 0),
        ("fd77::5", "", 0, 2, 0),
        ("fd77::6", "me", 0, 4, 0),
        ("10.0.0.7", "", 0, 0, 1),
        ("10.0.0.8", "DOMAIN\\me", 0, 2, 0),
        ("fe80::1%eth0", "", 0, 0, 0),
        ("fe80::1%eth1", "", 0, 0, 0),
        ("knöten.example.", "", 0, 0, 0),
    ]
    assert found[1].place == "hosts:4"
    assert [found[3].address, found[4].address] == ["me@node4", "fd77::5"]


def test_one_name_with_several_ports_is_several_hosts() -> None:
    found = hosts("localhost port=2201", "localhost port=2202", "other port=2203", "localhost")
    labels = [host.label for host in found]
    assert labels == ["localhost:2201", "localhost:2202", "other", "localhost"]
    assert [host.is_here for host in found] == [False, False, False, True]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "hosts lists no host"),
        (["# nothing"], "hosts lists no host"),
        (["a", "b slots=2", "a slots=1"], "hosts:3: a is already listed at hosts:1"),
        (["a slots=0"], "hosts:1: slots is a number from 1 to"),
        (["a slots=x"], "hosts:1: slots is a number from 1 to"),
        (["a:"], "hosts:1: slots is a number"),
        (["a:2 slots=2"], "hosts:1: the number of slots is given twice"),
        (["a slots=2 slots=2"], "hosts:1: slots is given twice"),
        (["a cpus=2"], "hosts:1: 'cpus=2' is not slots=N"),
        (["a b"], "hosts:1: 'b' is not slots=N"),
        (["a port=70000"], "hosts:1: port is a number from 1 to 65535"),
        (["a", "-oProxyCommand=x"], "hosts:2: '-oProxyCommand=x' is not a host's name"),
        (["-l@a"], "hosts:1: '-l@a' is not a host's name"),
        (["a;id"], "hosts:1: 'a;id' is not a host's name"),
        (["[fd77::1"], "hosts:1: '[fd77::1' is not a host's name or address, like node1"),
        (["fd77::1]"], "hosts:1: 'fd77::1]' is not"),
        (["[node1]:4"], "hosts:1: '[node1]:4' is not"),
        (["[10.0.0.7]"], "hosts:1: '[10.0.0.7]' is not"),
        (["[fd77::1]4"], "hosts:1: '[fd77::1]4' is not"),
        (["[fd77::1]:"], "hosts:1: slots is a number from 1 to"),
        (["node1:4:5"], "hosts:1: 'node1:4:5' is not"),
        (["fd77::g"], "hosts:1: 'fd77::g' is not"),
        (["10.0.0.300"], "hosts:1: '10.0.0.300' is not"),
        (["fe80::1%;id"], "hosts:1: 'fe80::1%;id' is not"),
        (["4"], "hosts:1: '4' is not"),
        (["slots=4"], "hosts:1: 'slots=4' is not"),
        (["a,b"], "hosts:1: 'a,b' is not"),
        (["me@"], "hosts:1: 'me@' is not"),
        (["@a"], "hosts:1: '@a' is not"),
        (["me@you@a"], "hosts:1: 'me@you@a' is not"),
        (["m;e@a"], "hosts:1: 'm;e@a' is not"),
        (["$HOME@a"], "hosts:1: '$HOME@a' is not"),
        (["a\x0bb"], "hosts:1: 'b' is not"),
        (["a slots = 4"], "hosts:1: 'slots' is not slots=N, max_slots=N or port=N"),
        (["a slots=4 max_slots=2"], "hosts:1: max_slots=2 is less than the 4 slots"),
        (["a:4 max-slots=2"], "hosts:1: max_slots=2 is less than the 4 slots"),
        (["a max-slots=2 max_slots=2"], "hosts:1: max_slots is given twice"),
        (["a", "A."], "hosts:2: A. is already listed at hosts:1 as a"),
        (["a", "me@a"], "hosts:2: a is already listed at hosts:1"),
        (["fd77::1", "[fd77:0::1]:2"], "hosts:2: fd77:0::1 is already listed at hosts:1"),
        (["localhost", "", "127.0.0.1"], "hosts:3: 127.0.0.1 is already listed at hosts:1"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(lines: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        hosts(*lines)
    assert said in str(error.value)


THREE = hosts("a slots=4", "b slots=4", "c", "[fd77::1]:2")


@pytest.mark.parametrize(
    ("include", "exclude", "chosen"),
    [
        ("", "", [("a", ()), ("b", ()), ("c", ()), ("fd77::1", ())]),
        ("b@a", "", [("a", ()), ("b", ())]),
        ("b:0,2-3@c", "", [("b", (0, 2, 3)), ("c", ())]),
        ("fd77::1:1", "", [("fd77::1", (1,))]),
        ("", "a@fd77::1", [("b", ()), ("c", ())]),
        ("", "a:0,1@c", [("a", (2, 3)), ("b", ()), ("fd77::1", ())]),
        ("", "a:0-3", [("b", ()), ("c", ()), ("fd77::1", ())]),
    ],
)
def test_some_of_them(include: str, exclude: str, chosen: list[tuple[str, object]]) -> None:
    assert [(h.name, h.chosen) for h in select(THREE, include, exclude)] == chosen


@pytest.mark.parametrize(
    ("include", "exclude", "said"),
    [
        ("a", "b", "exclude each other"),
        ("z", "", "'z' is not a host of the file: it lists a, b, c, fd77::1"),
        ("a@a", "", "a is named twice"),
        ("a:", "", "a: is not a list of slots"),
        ("a:x", "", "a:x is not a list of slots"),
        ("a:4", "", "a has no slot 4: hosts:1 gives it slots 0 to 3"),
        ("c:0", "", "c has no slot 0: hosts:3 gives it no slots=N"),
        ("", "a@b@c@fd77::1", "leaves no host"),
    ],
)
def test_what_cannot_be_chosen(include: str, exclude: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        select(THREE, include, exclude)
    assert said in str(error.value)
