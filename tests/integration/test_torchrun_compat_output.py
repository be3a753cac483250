"""Where the workers' output goes under torshrun, compared with where torchrun puts it."""

from __future__ import annotations

import importlib.util
import re

import pytest
from support.launchers import Bench, Run

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="compares with torch's own"),
]

TALK = """
for fd, word in (1, "out"), (1, "apple"), (2, "err"), (2, "pear, a"):
    os.write(fd, f"{word} {rank}\\n".encode())  # at once: torchrun tears what comes in pieces
"""
JOB = ("--rdzv-id=j", "--log-dir=LOGS", "probe.py")
PREFIX = re.compile(r"\[(?:default)?\d+\]:? ?")
NOISE = ("OMP_NUM_THREADS", "****", "torshrun: ")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


def plain(text: str) -> list[str]:
    """The workers' lines without prefixes, in any order."""
    lines = (PREFIX.sub("", line, count=1) for line in text.splitlines())
    return sorted(line for line in lines if line and not any(word in line for word in NOISE))


def talk(ranks: range | list[int]) -> tuple[list[str], list[str]]:
    """What `ranks` say on stdout and on stderr."""
    out = [f"{word} {rank}" for word in ("out", "apple") for rank in ranks]
    err = [f"{word} {rank}" for word in ("err", "pear, a") for rank in ranks]
    return sorted(out), sorted(err)


def console(run: Run) -> tuple[list[str], list[str]]:
    return plain(run.out), plain(run.err)


def both(bench: Bench, *options: str, workers: int = 3, **environ: str) -> tuple[Run, Run]:
    given = {"OMP_NUM_THREADS": "1", **environ}
    size = (f"--nproc-per-node={workers}", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
    runs = bench.both(*size, *options, *JOB, then=TALK, environ=given)
    assert [run.code for run in runs] == [0, 0], runs[0].err
    return runs


def test_without_options_everything_is_on_the_console(bench: Bench) -> None:
    runs = bench.both("--nproc-per-node=2", "probe.py", then=TALK, environ={"OMP_NUM_THREADS": "1"})
    for run in runs:
        assert console(run) == talk(range(2))
    assert sorted(runs[0].out.splitlines()) == [
        "[0] apple 0",
        "[0] out 0",
        "[1] apple 1",
        "[1] out 1",
    ]


@pytest.mark.parametrize(
    "rules", [("-r", "3"), ("-t", "3"), ("-r=0:1,1:2", "-t=2:3"), ("-r1", "-t2")]
)
def test_redirects_and_tee(bench: Bench, rules: tuple[str, ...]) -> None:
    options = [rule.replace("-r=", "--redirects=").replace("-t=", "--tee=") for rule in rules]
    ours, theirs = both(bench, *options)
    assert console(ours) == console(theirs)
    kept = {name: text for name, text in theirs.logs.items() if "filtered" not in name}
    assert {name: text for name, text in ours.logs.items() if text} == kept
    assert "attempt_0/0/stdout.log" in ours.logs or rules[0] == "-r=0:1,1:2"


def test_a_log_directory_keeps_everything(bench: Bench) -> None:
    ours, theirs = both(bench)
    assert console(ours) == console(theirs) == talk(range(3))
    assert theirs.logs == {}
    assert ours.logs["attempt_0/2/stdout.log"] == "out 2\napple 2\n"
    assert ours.logs["attempt_0/0/stderr.log"] == "err 0\npear, a 0\n"


def test_the_job_has_a_directory_of_its_own(bench: Bench) -> None:
    both(bench, "-r", "3", "--role=named")
    made = [folder for folder in bench.folder.glob("tor*/*_*") if folder.is_dir()]
    assert made
    assert all(folder.name.startswith("j_") for folder in made)


def test_local_ranks_filter(bench: Bench) -> None:
    for options in (("--tee", "3"), ()):
        for run in both(bench, "--local-ranks-filter", "0,2", *options):
            assert console(run) == talk([0, 2])


def test_filtered_lines_are_kept_apart(bench: Bench) -> None:
    filters = ("--duplicate-stdout-filters=apple", "--duplicate-stderr-filters=pear,, a,none")
    ours, theirs = both(bench, "--tee=3", *filters)
    for name, word in (("filtered_stdout.log", "apple"), ("filtered_stderr.log", "pear, a")):
        for run in (ours, theirs):
            assert plain(run.logs[f"attempt_0/{name}"]) == [f"{word} {rank}" for rank in range(3)]


def test_filters_need_no_tee(bench: Bench) -> None:
    ours, theirs = both(bench, "--duplicate-stdout-filters=apple")
    name = "attempt_0/filtered_stdout.log"
    assert (plain(ours.logs[name]), plain(theirs.logs[name])) == (
        [f"apple {n}" for n in range(3)],
        [],
    )


def test_the_prefix_template(bench: Bench) -> None:
    template = "<${role_name} ${local_rank}/${rank}> "
    given = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": template}
    ours, theirs = both(bench, "--tee=3", **given)
    assert sorted(ours.out.splitlines()) == sorted(theirs.out.splitlines())
    assert "<default 2/2> out 2" in ours.out.splitlines()


def test_output_options_from_the_environment(bench: Bench) -> None:
    given = {"PET_REDIRECTS": "0:3,1:1", "PET_TEE": "1:2", "PET_LOCAL_RANKS_FILTER": "1,2"}
    ours, theirs = both(bench, **given)
    assert console(ours) == console(theirs)
    assert {name for name, text in ours.logs.items() if text} == {*theirs.logs} - {
        "attempt_0/filtered_stdout.log",
        "attempt_0/filtered_stderr.log",
    }


@pytest.mark.parametrize("bad", ["4", "0:9", "a:1", "0:1;1:1"])
def test_a_bad_rule_starts_nothing(bench: Bench, bad: str) -> None:
    run = bench.run("torshrun", "--redirects", bad, "probe.py")
    assert (run.code, run.seen) == (2, {})
    assert "--redirects" in run.err


def test_each_attempts_output_is_kept(bench: Bench) -> None:
    then = "print('attempt', restart)\nif restart == 0: sys.exit(3)"
    options = (
        "--max-restarts=1",
        "--redirects=3",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",
    )
    ours, theirs = bench.both(*options, *JOB, then=then)
    kept = {name: text for name, text in ours.logs.items() if text and name.endswith(".log")}
    assert kept == {f"attempt_{n}/0/stdout.log": f"attempt {n}\n" for n in range(2)}
    assert kept == {name: text for name, text in theirs.logs.items() if text}
