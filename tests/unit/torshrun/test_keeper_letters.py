"""The keeper and the agent mean the same by the letters of their frames."""

from __future__ import annotations

import re
from pathlib import Path

from torshrun.keeper.refusal import STEPS
from torshrun.workers.keeper import _STAGES

KEEPER = Path(__file__).parents[3] / "torshrun" / "keeper"
AGENT = (Path(__file__).parents[3] / "torshrun/workers/keeper.py").read_text()


def test_each_stage_that_the_keeper_reports_has_a_name() -> None:
    text = (KEEPER / "keeper.c").read_text() + (KEEPER / "start.h").read_text()
    reported = re.findall(r"(?:report_failed|fail_child)\([^;]*'(.)'\)", text)
    assert {"k", "h", "x", "r"} <= set(reported)
    assert set(reported) <= _STAGES.keys()
    stages = set(re.findall(r"'([a-z])'", (KEEPER / "namespace.h").read_text().split("*/")[-1]))
    assert stages <= STEPS.keys()


def test_each_request_and_report_is_known_at_both_ends() -> None:
    text = (KEEPER / "keeper.c").read_text()
    handled = set(re.findall(r"\*frame == '([A-Z])'", text))
    assert handled == set(re.findall(r'b"([A-Z])"', AGENT))
    reported = set(re.findall(r"report\(&k->channel, '(.)'", text))
    assert reported - {"n"} == set(re.findall(r'kind == b"([a-z])"', AGENT)) - {"l"}
