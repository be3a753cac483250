"""The doctor's report in words and in JSON, and areas that hang or fail."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest
from support.blocks import blocks_of

from torsh_runtime.errors import ConfigError
from torshrun.config.job import Address
from torshrun.ctl.command import command
from torshrun.ctl.doctor.examination import examination, examine
from torshrun.ctl.doctor.finding import note, ok, problem, warning
from torshrun.ctl.doctor.links.judgement import Link, Reduced
from torshrun.ctl.doctor.links.orders import Checked
from torshrun.ctl.doctor.report import Report, in_json, in_words
from torshrun.ctl.doctor.run import AREAS as AREA_NAMES
from torshrun.ctl.doctor.run import parse_areas, parse_peers

GUIDE = Path(__file__).parents[5] / "docs" / "doctor.md"
AREAS = {
    "first": [ok("fine", "yes"), note("known", "so", "Know it.")],
    "second": [problem("broken", "no", "Mend it."), warning("slow", "\x1b[2Jx\n", "Wait.")],
}
REPORT = Report("host", "1.0", AREAS)


def test_what_is_wrong_comes_first() -> None:
    lines = in_words(REPORT, color=False).splitlines()
    assert lines[0] == "host: 1 problem, 1 warning, 1 note"
    told = [line.split(":")[0].strip() for line in lines if line.startswith("  ") and ": " in line]
    assert told[:3] == ["problem", "warning", "note"]
    assert "      Mend it." in lines


def test_columns_are_aligned() -> None:
    rows = in_words(REPORT, color=False).splitlines()
    assert "  fine    yes" in rows
    assert "x broken  no" in rows
    assert "! slow    x" in rows


def test_nothing_commands_the_terminal() -> None:
    hostile = Report("h\x1b]0;t\x07", "1.0", {"env": [note("a\x9b31m", "b\x1b[2J", "c\x1b[H")]})
    text = in_words(hostile, color=False)
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert all(line.isprintable() for line in text.splitlines())
    assert "\x1b" not in in_json(hostile)


def test_colours_only_where_they_are_wanted() -> None:
    assert "\x1b" not in in_words(REPORT, color=False)
    assert "\x1b[31m" in in_words(REPORT, color=True)


def test_json() -> None:
    link, reduced = Link("here", "p:1", 1e9, 1e-4), Reduced(("here", "p:1"), Checked("", 1, 2), 3)
    told = json.loads(in_json(Report("host", "1.0", AREAS, (link,), (reduced,))))
    assert told["schema"] == 1
    assert told["worst"] == "problem"
    assert told["findings"][0] == {
        "area": "first",
        "what": "fine",
        "value": "yes",
        "severity": "ok",
        "advice": "",
    }
    assert told["links"][0]["bytes_per_second"] == 1e9
    assert told["all_reduces"][0]["nodes"] == ["here", "p:1"]


def test_an_area_that_hangs_and_one_that_fails() -> None:
    never = threading.Event()

    def fail() -> None:
        raise PermissionError("/proc/net")

    found = examine(
        [
            examination("slow", lambda: never.wait(30), lambda _: []),
            examination("bad", fail, lambda _: []),
            examination("good", lambda: 7, lambda facts: [ok("number", str(facts))]),
        ],
        0.2,
    )
    never.set()
    assert found["good"] == (ok("number", "7"),)
    assert found["slow"][0].severity == "warning"
    assert "no answer within 0.2 s" in found["slow"][0].value
    assert "PermissionError: /proc/net" in found["bad"][0].value


def test_peers() -> None:
    assert parse_peers("a:1,[::1]:2") == (Address("a", 1), Address("::1", 2))
    assert parse_peers("") == ()
    for wrong in ("a", "http://a:1", "a:1,a:1", "a:0"):
        with pytest.raises(ConfigError):
            parse_peers(wrong)


def test_areas() -> None:
    assert parse_areas("kernel, links") == {"kernel", "links"}
    with pytest.raises(ConfigError, match="'kernal' is not one of"):
        parse_areas("kernal")


def test_the_guide_knows_the_options_the_areas_and_the_keys() -> None:
    guide = GUIDE.read_text()
    blocks = "".join(block.text for block in blocks_of("docs/doctor.md"))
    calls = re.findall(r"^\S* ?torshctl doctor(.*)", blocks, re.MULTILINE)
    known = {name for each in command.commands["doctor"].params for name in each.opts}
    used = {option for call in calls for option in re.findall(r"--[a-z-]+", call)}
    assert used - known == set()
    assert {"--peers", "--serve", "--json", "--network-check", "--all-pairs"} <= used
    link, reduced = Link("here", "p:1", 1e9, 1e-4), Reduced(("here", "p:1"), Checked("", 1, 2), 3)
    told = json.loads(in_json(Report("host", "1.0", AREAS, (link,), (reduced,))))
    keys = {*told, *(key for name in ("findings", "links", "all_reduces") for key in told[name][0])}
    assert {*keys, *AREA_NAMES} - set(re.findall(r"`([a-z_0-9]+)`", guide)) == set()
