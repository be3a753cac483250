from pathlib import Path

import pytest

from benchmarks import launch_bars
from benchmarks.launch import parse
from benchmarks.launchers import TORCHRUN, TORSHRUN, Attempts, launchers
from benchmarks.output import Sample
from benchmarks.processes import RunError

GOOD = {
    ("pipe, 80 B", TORSHRUN): [Sample(300.0, 26.0, 1.0, 0, 0)],
    ("pipe, 20 B", TORSHRUN): [Sample(200.0, 26.0, 1.0, 0, 0)],
    ("pipe, 20 B", TORCHRUN): [Sample(1.0, 260.0, 1.0, 7, 7)],
}


def test_options_go_before_the_script_and_only_where_they_are_known() -> None:
    ours, theirs, *others = launchers()
    assert ours.command(2, "--tee", "3")[-4:] == ("--nproc-per-node", "2", "--tee", "3")
    assert theirs.command(2)[-2:] == ("--nproc-per-node", "2")
    assert all(not launcher.start and "2" in launcher.command(2) for launcher in others)


def test_what_failed_is_remembered_and_not_tried_again() -> None:
    attempts, folders = Attempts(), list[Path]()

    def fails(folder: Path) -> None:
        folders.append(folder)
        raise RunError("no")

    assert attempts.take("it", fails) is attempts.take("it", fails) is None
    assert attempts.failures == {"it": "no"}
    assert len(folders) == 1
    assert not folders[0].exists()


def test_another_measurement_goes_on() -> None:
    attempts = Attempts()
    attempts.failures["it"] = "no"
    assert attempts.take("other", lambda folder: folder.is_dir()) is True


def test_the_bars_hold_ours_alone() -> None:
    checks = [*launch_bars.of_start(100.0, 1000.0, 50.0), *launch_bars.of_output(GOOD)]
    assert all(check.passed for check in checks)


@pytest.mark.parametrize(
    ("sample", "failing"),
    [
        (Sample(99.0, 26.0, 1.0, 0, 0), "pipe, 80 B, MB/s 99 >= 100: FAIL"),
        (Sample(300.0, 65.0, 1.0, 0, 0), "agent's peak in any of these, MiB 65 <= 64: FAIL"),
        (Sample(300.0, 26.0, 1.0, 1, 2), "lines lost or wrong in all of these 3 <= 0: FAIL"),
    ],
)
def test_a_bar_that_is_missed_is_named(sample: Sample, failing: str) -> None:
    checks = launch_bars.of_output({**GOOD, ("pipe, 80 B", TORSHRUN): [sample]})
    assert [str(check) for check in checks if not check.passed] == [failing]


def test_what_was_not_measured_does_not_pass() -> None:
    checks = [*launch_bars.of_start(100.0, None, None), *launch_bars.of_output({})]
    assert {check.passed for check in checks} == {None}
    assert str(checks[1]) == "--help, ms - <= 150: no data"


def test_parts_and_numbers_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--parts", "output"]).parts == ("output",)
    assert parse(["--quick"]).mib < parse([]).mib
    for wrong in (["--parts", "x"], ["--launchers", "x"], ["--rounds", "0"], ["--mib", "-1"]):
        with pytest.raises(SystemExit):
            parse(wrong)
        assert wrong[1] in capsys.readouterr().err
