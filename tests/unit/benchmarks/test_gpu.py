"""What benchmarks/gpu.py makes of figures, and what it does without a GPU."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.bars import summary
from benchmarks.gpu import CASES, Bar, checks, command, measure_all, parse, report, table
from benchmarks.processes import INTERRUPTED, RunError

PROGRAM = Path(gpu.__file__)
DDP = {"ddp": {"ours step": 0.08, "torch step": 0.1}}


def test_options() -> None:
    assert parse([]).cases == tuple(CASES)
    assert parse(["--cases", "ddp,held"]).cases == ("ddp", "held")
    assert parse([]).budget <= 9 * 60
    with pytest.raises(SystemExit):
        parse(["--cases", "none"])


def test_a_bar_limits_a_figure_or_a_ratio() -> None:
    figures = {"ours step": 3.0, "torch step": 2.0, "ours growth": 4.0}
    assert Bar("ours step", 1.0, "torch step").value(figures) == 1.5
    assert Bar("ours growth", 8.0).value(figures) == 4.0
    assert Bar("ours step", 1.0, "none").value(figures) is None
    assert Bar("none", 1.0).value(figures) is None


def test_what_was_not_measured_is_no_pass() -> None:
    [check] = checks({"ddp": {}})
    assert check.passed is None
    assert [check.passed for check in checks(DDP)] == [True]
    assert [check.passed for check in checks({"ddp": {"ours step": 2.0, "torch step": 1.0}})] == [
        False
    ]


def test_the_table_has_a_line_for_each_bar() -> None:
    header, line = table(DDP).splitlines()
    assert header.split() == ["case", "what", "ours", "beside", "ratio", "limit"]
    assert line.split() == ["ddp", "step", "0.08", "0.1", "0.80", "1"]


def test_the_bars_are_those_of_the_guide() -> None:
    rows = [(name, bar) for name, case in CASES.items() for bar in case.bars]
    guide = (PROGRAM.parents[1] / "docs/gpus.md").read_text()
    for name, bar in rows:
        assert f"| `{name}` |" in guide, name
        assert bar.what.startswith("ours "), bar


def test_a_rank_that_dies_is_not_started_by_an_agent() -> None:
    assert "torshrun" not in command("death", Path("x"))
    assert "torshrun" in command("late", Path("x"))


def test_a_case_that_fails_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_first(name: str, limit: float, options: object) -> dict[str, float]:
        if name == "fsdp":
            raise RunError("exit status 1: out of memory")
        return dict(DDP["ddp"])

    monkeypatch.setattr(gpu, "measured", fail_first)
    given = parse(["--cases", "fsdp,ddp", "--bars", "--json", str(tmp_path / "out.json")])
    figures: dict[str, gpu.Figures] = {}
    failures: dict[str, str] = {}
    measure_all(given, figures, failures)
    assert report(given, figures, failures) == 1
    printed = capsys.readouterr().out
    assert "fsdp: failed: exit status 1: out of memory" in printed
    assert "DDP, 6 x Linear(2048): pass" in printed
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["figures"] == {"fsdp": {}, **DDP}
    assert record["failures"] == {"fsdp": "exit status 1: out of memory"}
    assert [each["passed"] for each in record["checks"]] == [None] * 4 + [True]
    assert {"machine", "versions"} <= record.keys()


@pytest.mark.parametrize("case", ["ddp", "death"])
def test_a_rank_without_figures_fails_its_case(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    script = "import sys; open(sys.argv[1], 'w').write('{}')"
    monkeypatch.setattr(
        gpu, "command", lambda _, folder, __: [sys.executable, "-c", script, folder / "rank-0.json"]
    )
    with pytest.raises(RunError, match="1 of 2 ranks left figures"):
        gpu.measured(case, 20)


def test_the_budget_ends_what_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "measured", lambda *_: pytest.fail("it was started"))
    figures: dict[str, gpu.Figures] = {}
    failures: dict[str, str] = {}
    given = argparse.Namespace(cases=("ddp",), budget=0, quick=True, json=None)
    measure_all(given, figures, failures)
    assert (figures, failures) == ({"ddp": {}}, {"ddp": "the budget is spent"})


def test_what_was_measured_before_an_interrupt_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str, *_: object) -> dict[str, float]:
        if name == "held":
            raise KeyboardInterrupt
        return {"ours step": math.nan, "torch step": 0.1}

    monkeypatch.setattr(gpu, "measured", interrupted)
    monkeypatch.setattr(gpu, "refusal", str)
    monkeypatch.setattr(gpu, "interrupt_on_term", lambda: None)
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--cases", "ddp,held", "--json", str(out)])
    assert gpu.main() == INTERRUPTED
    record = json.loads(out.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert record["figures"] == {"ddp": {"ours step": "NaN", "torch step": 0.1}}
    assert [each["passed"] for each in record["checks"]] == [False]
    assert "ddp" in capsys.readouterr().out


@pytest.mark.parametrize("told", [[1.0, math.nan], [math.nan, 1.0]])
def test_no_rank_hides_the_nan_of_another(
    monkeypatch: pytest.MonkeyPatch, told: list[float]
) -> None:
    _leave(monkeypatch, [{"ours error": each} for each in told])
    assert math.isnan(gpu.measured("ddp", 20)["ours error"])


def test_ranks_that_measured_different_things_fail_the_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _leave(monkeypatch, [{"ours step": 1.0}, {"torch step": 1.0}])
    with pytest.raises(RunError, match=r"different figures.*ours step.*torch step"):
        gpu.measured("ddp", 20)


def _leave(monkeypatch: pytest.MonkeyPatch, figures: list[dict[str, float]]) -> None:
    """Have a program in place of the ranks leave these figures."""
    script = "import json, sys\nfor i, each in enumerate(json.loads(sys.argv[2])):\n"
    script += "    open(f'{sys.argv[1]}/rank-{i}.json', 'w').write(json.dumps(each))"
    monkeypatch.setattr(
        gpu,
        "command",
        lambda _, folder, __: [sys.executable, "-c", script, folder, json.dumps(figures)],
    )


def test_a_run_without_failures_and_bars_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(parse([]), DDP, {}) == 0
    assert report(parse(["--bars"]), DDP, {}) == 0
    assert summary(checks(DDP)) in capsys.readouterr().out


def test_without_a_gpu_it_refuses_by_name() -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("there is a GPU here")
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "benchmarks/gpu.py: it needs an NVIDIA GPU" in done.stderr
