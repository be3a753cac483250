"""The corpus's heads, what is read from launchers' reports, and how it is judged."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.corpus import KINDS, Case, Culprit, HeadError, cases, parse, parse_culprit

from benchmarks import corpus_score
from benchmarks.corpus_reports import CERTAIN, LIKELY, UNDECIDED, Finding, finding, own_lines
from benchmarks.corpus_runs import Run, Said
from benchmarks.corpus_score import Verdict

HEAD = '''"""Rank 1 is at fault.

nproc: 3   # three of them
culprit: 1
kind: mismatch
hint: all_reduce, shape|bytes
needs: torch root
options: --max-restarts 1
options: --role trainer
torchrun: no
seconds: 7.5
"""
raise SystemExit(1)
'''


def case(**fields: object) -> Case:
    return replace(parse(HEAD, Path("area/name.py")), **fields)  # type: ignore[arg-type]


# ---- the cases


def test_every_case_can_be_read_and_runs_something() -> None:
    found = cases()
    assert len(found) > 20
    for each in found:
        text = each.path.read_text(errors="replace")
        assert each.title, each.name
        assert each.title.endswith("."), each.name
        assert each.kinds, each.name
        assert each.hints, each.name
        assert "RANK" in text or "import" in text, each.name
        assert "torch.distributed" not in text or "torch" in each.needs, each.name


def test_names_and_titles_are_unique() -> None:
    found = cases()
    for words in ([each.name for each in found], [each.title for each in found]):
        assert len(words) == len(set(words)), sorted(w for w in words if words.count(w) > 1)


def test_no_case_is_called_like_a_module_that_others_import() -> None:
    """Its folder comes first where workers look for modules."""
    stems = {each.path.stem for each in cases()}
    assert not stems & {*sys.stdlib_module_names, "numpy", "torch"}


def test_ranks_and_nodes_that_are_blamed_are_there() -> None:
    for each in cases():
        assert max(each.culprit.ranks, default=0) < each.nproc * each.nnodes, each.name
        assert each.culprit.nodes <= set(range(max(each.nnodes, 2))), each.name


def test_no_case_names_a_path_of_this_machine() -> None:
    home = str(Path(__file__).resolve().parents[3])
    for each in cases():
        assert home not in each.path.read_text(errors="replace"), each.name


# ---- heads


def test_a_head() -> None:
    found = case()
    assert (found.name, found.area, found.title) == ("area/name", "area", "Rank 1 is at fault.")
    assert (found.nproc, found.nnodes, found.seconds) == (3, 1, 7.5)
    assert found.culprit == Culprit(frozenset({1}))
    assert found.kinds == {"mismatch"}
    assert [hint.pattern for hint in found.hints] == ["all_reduce", "shape|bytes"]
    assert found.needs == {"torch", "root"}
    assert found.options == ("--max-restarts", "1", "--role", "trainer")
    assert not found.torchrun


@pytest.mark.parametrize(
    ("text", "ranks", "nodes", "undecided"),
    [
        ("none", (), (), False),
        ("1 2", (1, 2), (), False),
        ("1, 2", (1, 2), (), False),
        ("node 1", (), (1,), False),
        ("0 | 1", (0, 1), (), True),
        ("node 0 | node 1", (), (0, 1), True),
        ("0 | none", (0,), (), True),
    ],
)
def test_culprits(text: str, ranks: tuple[int], nodes: tuple[int], undecided: bool) -> None:
    assert parse_culprit(text) == Culprit(frozenset(ranks), frozenset(nodes), undecided)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("culprit: 1\n", "", "no culprit"),
        ("kind: mismatch", "kind: trouble", "unknown: trouble"),
        ("needs: torch", "needs: luck", "unknown: luck"),
        ("torchrun: no", "torchrun: perhaps", "neither yes nor no"),
        ("nproc: 3", "nproc: 0", "nproc is 0"),
        ("culprit: 1", "culprit: first", "first"),
        ("kind: mismatch", "kind: mismatch\nkind: nan", "twice"),
        ('"""', "", "no docstring"),
    ],
)
def test_a_wrong_head_is_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(HeadError, match=re.escape(said)) as caught:
        parse(HEAD.replace(old, new), Path("area/name.py"))
    assert "area/name.py" in str(caught.value)


# ---- what launchers say

TORSHRUN = """\
[1] ValueError: rank 0 is to blame
torshrun: rank 1 failed first: exit code 1, host n1, pid 5, after 1.0 s
  It asked for too much.
  its traceback:
  | ValueError: quoted
  after it: ranks 0, 3-4 in the same way
"""
TORCHRUN = """\
W1125 07:46:39.276000 139 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-25_07:46:39
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 14059)
  error_file: <N/A>
  traceback : Traceback (most recent call last):
    File "train.py", line 3
  MemoryError: quoted
============================================================
"""


def event(name: str, **facts: object) -> dict[str, object]:
    return {"event": name, "round": 0, **facts}


def said(stderr: str, *events: dict[str, object], code: int = 1) -> Run:
    return Run((Said(code, stderr, events),), 1.0)


def test_lines_of_workers_and_quoted_ones_are_not_torshruns() -> None:
    own = own_lines(TORSHRUN)
    assert "It asked for too much." in own
    assert "quoted" not in own
    assert "to blame" not in own


def test_a_report_without_root_cause() -> None:
    found = finding("torshrun", said(TORSHRUN, event("worker_failed", rank=1, kind="disk full")))
    assert found.ranks == {0, 1, 3, 4}
    assert (found.kinds, found.certainty) == ({"disk"}, CERTAIN)


def test_the_event_of_a_root_cause_comes_first() -> None:
    failed = event("worker_failed", rank=1, kind="exception")
    cause = event("root_cause", ranks=[2], kind="mismatch", hint="", certainty=LIKELY)
    found = finding("torshrun", said(TORSHRUN, failed, cause))
    assert (found.ranks, found.kinds, found.certainty) == ({2}, {"mismatch"}, LIKELY)


def test_only_the_last_round_counts() -> None:
    first = event("worker_failed", rank=1, kind="exception")
    last = {**event("worker_failed", rank=0, kind="exit code"), "round": 1}
    assert finding("torshrun", said("", first, last)).ranks == {0}


def test_of_several_nodes_the_one_that_did_not_only_lose_a_peer() -> None:
    lost = Said(1, "", (event("worker_failed", rank=0, kind="peer lost"),))
    died = Said(1, "", (event("worker_failed", rank=3, kind="crashed"),))
    assert finding("torshrun", Run((lost, died), 1.0)).ranks == {3}


def test_bad_usage_has_no_events() -> None:
    found = finding("torshrun", said("torshrun: error: no such option", code=2))
    assert (found.ranks, found.kinds, found.certainty) == (set(), {"usage"}, CERTAIN)


def test_a_job_that_went_well_says_nothing() -> None:
    ended = event("job_finished", outcome="succeeded")
    assert not finding("torshrun", said("", ended, code=0)).certainty
    assert not finding("torchrun", said("", code=0)).certainty


def test_torchruns_block() -> None:
    found = finding("torchrun", said(TORCHRUN))
    assert (found.ranks, found.kinds, found.certainty) == ({1}, {"memory"}, CERTAIN)
    assert "Sending process" in found.text
    assert "quoted" not in found.text


@pytest.mark.parametrize(
    ("exitcode", "kind"), [(-11, "crash"), (-9, "signal"), (-24, "limit"), (3, "exit_code")]
)
def test_torchruns_exit_codes(exitcode: int, kind: str) -> None:
    text = TORCHRUN.replace("exitcode  : 1 ", f"exitcode  : {exitcode} ")
    text = re.sub(r"Traceback \(.*quoted", "To enable traceback see: a page", text, flags=re.S)
    assert finding("torchrun", said(text)).kinds == {kind}


# ---- how it is judged


def judged(culprit: str, found: Finding, **fields: object) -> Verdict:
    return Verdict(case(nnodes=2, culprit=parse_culprit(culprit), **fields), False, found)


def blames(*ranks: int, certainty: str = CERTAIN, nodes: tuple[int, ...] = ()) -> Finding:
    return Finding("", certainty, frozenset(ranks), frozenset(nodes), frozenset({"mismatch"}))


@pytest.mark.parametrize(
    ("culprit", "found", "right"),
    [
        ("1", blames(1), True),
        ("1", blames(0), False),
        ("1", blames(0, 1), False),
        ("1 2", blames(2), True),
        ("1", blames(1, certainty=UNDECIDED), False),
        ("0 | 1", blames(0, 1, certainty=UNDECIDED), True),
        ("0 | 1", blames(0, certainty=LIKELY), False),
        ("none", blames(), True),
        ("none", blames(1), False),
        ("none", blames(0, 1, 2, 3, 4, 5), True),  # that is all of them
        ("0 1 2 3 4 5", blames(), True),
        ("0 1 2", blames(), False),
        ("none", Finding("nothing"), False),
        ("node 1", blames(nodes=(1,)), True),
        ("node 1", blames(3, 4), True),  # of node 1: it has ranks 3 to 5
        ("node 1", blames(2, 3), False),
        ("node 1", blames(), False),
    ],
)
def test_culprits_are_judged(culprit: str, found: Finding, right: bool) -> None:
    verdict = judged(culprit, found)
    assert verdict.culprit is right
    assert verdict.certain_and_wrong is (not right and found.certainty == CERTAIN)


def test_a_kind_must_be_the_only_one() -> None:
    assert judged("1", blames(1)).kind
    assert not judged("1", blames(1), kinds=frozenset({"nan"})).kind
    both = replace(blames(1), kinds=frozenset({"nan", "mismatch"}))
    assert not judged("1", both).kind
    assert judged("1", both, kinds=frozenset({"nan", "mismatch"})).kind


def test_all_key_words_must_be_there_in_any_case() -> None:
    assert judged("1", Finding("ALL_REDUCE of other bytes")).hint
    assert judged("1", Finding("all_reduce")).missing == ["shape|bytes"]


def test_the_table_and_the_bars() -> None:
    right, wrong = judged("1", blames(1)), judged("1", blames(0))
    shown = corpus_score.by_area([right, wrong])
    assert re.search(r"all +2 +50 +100 +0 +1 +0$", shown, re.M)
    checks = {check.what: check for check in corpus_score.checks([right, wrong])}
    assert checks["culprit %"].value == 50
    assert not checks["culprit %"].passed
    assert not checks["certain and wrong"].passed
    assert checks["kind %"].passed
    assert "area/name: culprit, hint" in corpus_score.misses([right, wrong])
    assert not any(check.passed for check in corpus_score.checks([]) if "%" in check.what)


def test_kinds_are_words_of_the_corpus() -> None:
    from benchmarks.corpus_reports import KINDS as TABLE
    from torshrun.failure.kinds import Kind

    assert {word for words in TABLE.values() for word in words.split()} <= KINDS
    assert {str(kind) for kind in Kind} <= TABLE.keys() | KINDS
