import pytest

from benchmarks.machine import NEAR
from benchmarks.rounds import WrongResultError
from benchmarks.samples import Case, Cell, Row, Sample
from benchmarks.torch_steps import MODELS, TUNED, checks, compare_losses, contenders, details, parse


def sample(library: str, *losses: list[float]) -> Sample:
    return Sample(
        library=library, case=Case("DDP"), nbytes=4, round=0, median_us=1.0, mean_us=1.0,
        before_ns=None, after_ns=None, per_rank=tuple({"losses": mine} for mine in losses),
    )  # fmt: skip


def test_the_models_have_the_parameters_that_they_should() -> None:
    millions = {name: round(model.nbytes(name) / 4e6) for name, model in MODELS.items()}
    assert millions == {"DDP": 26, "GPT": 3, "alone": 26, "FSDP2": 102}


def test_only_the_peers_are_tuned_from_outside() -> None:
    tuned = {peer.name: TUNED.items() <= peer.env.items() for peer in contenders(here=False)}
    assert tuned == {
        "ours": False, "horovod": False, "torsh": False, "unedited": False, "gloo": False,
        "bare": False,
        "gloo tuned": True, "bare tuned": True,
    }  # fmt: skip


def test_all_contenders_share_the_one_environment() -> None:
    assert {peer.home.name for peer in contenders(here=False)} == {"gloo"}
    assert {peer.requirements for peer in contenders(here=True)} == {()}


def test_losses_must_agree_rank_by_rank_but_not_those_of_the_bare_model() -> None:
    gloo = sample("gloo", [1.0, 0.5], [2.0, 1.5])
    compare_losses([gloo, sample("torsh", [1.0, 0.500001], [2.0, 1.5])])
    compare_losses([gloo, sample("bare tuned", [1.0, 0.4], [2.0, 1.4])])
    with pytest.raises(WrongResultError, match="torsh, rank 1"):
        compare_losses([gloo, sample("torsh", [1.0, 0.5], [2.0, 1.4])])


def test_the_bar_is_on_what_users_find() -> None:
    times = {"ours": 4.0, "horovod": 4.8, "torsh": 6.0, "unedited": 5.0, "gloo": 10.0}
    times["bare"] = 3.0
    cells = {name: Cell(us, us, 5) for name, us in times.items()}
    assert [str(check) for check in checks(Row(Case("DDP"), 4, NEAR, cells))] == [
        "DDP, 2 ranks, 4, near: torsh/gloo 0.6 <= 0.58: FAIL",
        "DDP, 2 ranks, 4, near: unedited/gloo 0.5 <= 0.58: pass",
        "DDP, 2 ranks, 4, near: ours/gloo 0.4 <= 0.5: pass",
        "DDP, 2 ranks, 4, near: ours/bare 1.333 <= 1.15: FAIL",
        "DDP, 2 ranks, 4, near: horovod/ours 1.2 <= 1.1: FAIL",
    ]


def test_a_quick_model_is_small() -> None:
    assert details(Case("FSDP2"), quick=True)["shape"]["width"] < MODELS["FSDP2"].width
    assert parse(["--quick", "--models", "DDP"]).models == ("DDP",)
