"""torshrun --torch-backend torsh: unmodified scripts that ask for gloo train on torsh, alike."""

from __future__ import annotations

import importlib.util
from datetime import timedelta
from typing import Any

import pytest
from support.launchers import Bench
from support.torch_ranks import passed, run_ranks
from support.torch_scripts import SAID, SCRIPTS, alike_here, found

from torsh_runtime.errors import CommTimeout

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]

FACTS = """
import torch, torch.distributed as dist
store, rank, ranks = next(dist.rendezvous("env://"))
for asked in ("gloo", "cpu:gloo", None):
    own_keys = dist.PrefixStore(str(asked), store)
    dist.init_process_group(asked, store=own_keys, rank=rank, world_size=ranks)
    own = dist.new_group(backend="gloo")
    for group in (dist.group.WORLD, own):
        dist.all_reduce(tensor := torch.ones(1), group=group)
        names = [dist.get_backend(group), dist.get_backend_config(group), group.group_desc]
        is_ours = type(group).__module__.startswith("torsh_runtime")
        print("found", asked, tensor.item(), *names, is_ours)
    dist.monitored_barrier(own)
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Of all tests, as some look at the same runs."""
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.mark.parametrize("asked", ["gloo", "cpu:gloo", "None"])
def test_groups_are_torshs_and_keep_the_names_asked_for(bench: Bench, asked: str) -> None:
    command = ("--nproc-per-node=2", "--preload=torch", "--standbys=0", "probe.py")
    plain = bench.run("torshrun", *command, then=FACTS)
    torsh = bench.run("torshrun", "--torch-backend=torsh", *command, then=FACTS)
    lines = found(torsh, f"found {asked}")
    assert len(lines) == 4
    assert lines == [line.replace("False", "True") for line in found(plain, f"found {asked}")]
    assert all(line.endswith("True") for line in lines)
    assert (plain.err.count(SAID), torsh.err.count(SAID)) == (0, 1)


def test_the_variable_and_the_file_do_what_the_option_does(bench: Bench) -> None:
    (bench.folder / "job.yaml").write_text("torch_backend: torsh\nscript: probe.py\n")
    then = "print('found', os.environ.get('TORSH_TORCH_BACKEND'))"
    for argv, environ in (
        (["--torch-backend", "torsh", "probe.py"], {}),
        (["--config", "job.yaml"], {}),
        (["probe.py"], {"PET_TORCH_BACKEND": "torsh"}),
    ):
        run = bench.run("torshrun", *argv, then=then, environ=environ)
        assert found(run, "found") == ["found torsh"]
    assert found(bench.run("torshrun", "probe.py", then=then), "found") == ["found None"]
    refused = bench.run("torshrun", "--torch-backend", "nccl", "probe.py")
    assert refused.code == 2
    assert "--torch-backend" in refused.err


@pytest.fixture(scope="module")
def losses_of_gpts(bench: Bench) -> list[str]:
    return alike_here(bench, 2, SCRIPTS / "gpt.py", "ddp", "compiled", "fsdp")


@pytest.mark.parametrize("kind", ["ddp", "compiled", "fsdp"])
def test_a_gpt_trains_alike(losses_of_gpts: list[str], kind: str) -> None:
    assert len([line for line in losses_of_gpts if line.split()[1] == kind]) == 10


def test_three_kinds_of_parallelism_on_one_mesh_train_alike(bench: Bench) -> None:
    assert len(alike_here(bench, 4, SCRIPTS / "mesh.py")) == 8


def stand_in(ranks: int, body: Any) -> list[Any]:
    """body(rank) where torsh stands in for gloo, and another backend for tensors on "meta"."""

    def prepared(rank: int) -> Any:
        import torch.distributed as dist
        from torch.testing._internal.distributed import fake_pg  # noqa: F401

        from torsh_runtime.integrations.torch import patches

        patches.put_in_gloos_stead()
        dist.Backend.default_device_backend_map["meta"] = "fake"
        return body(rank)

    return passed(run_ranks(ranks, prepared))


def test_other_devices_have_the_backend_that_was_asked_for() -> None:
    def body(rank: int) -> None:
        import torch
        import torch.distributed as dist

        both = dist.new_group(backend="cpu:gloo,meta:fake", group_desc="two")
        assert dist.get_backend(both) == "cpu:gloo,meta:fake"
        assert dist.get_backend_config(both) == "cpu:gloo,meta:fake"
        assert both.group_desc == "two"
        assert dist.get_process_group_ranks(both) == [0, 1]
        dist.all_reduce(tensor := torch.ones(1), group=both)
        assert tensor.item() == 2
        meta = torch.device("meta")
        assert {device.type for device in both._device_types} == {"cpu", "meta"}
        assert type(both._get_backend(meta)).__name__ == "FakeProcessGroup"
        assert dist.distributed_c10d._resolve_process_group(both.group_name) is both
        dist.all_reduce(torch.empty(1, device=meta), group=both)  # which torsh itself refuses
        dist.destroy_process_group(both)
        for ranks in ([0], [1]):
            alone = dist.new_group(ranks, backend="cpu:gloo,meta:fake")
            if rank in ranks:
                dist.all_reduce(tensor, group=alone)
                assert dist.get_world_size(alone) == 1
        assert tensor.item() == 2

    stand_in(2, body)


def test_backends_other_than_gloo_are_left_alone() -> None:
    def body(rank: int) -> None:
        import torch.distributed as dist

        group = dist.new_group(backend="fake")
        assert dist.get_backend(group) == "fake"
        assert not hasattr(group, "is_torsh")
        torsh = dist.new_group(backend="torsh")
        assert dist.get_backend(torsh) == "torsh"

    stand_in(2, body)


def test_a_group_makes_gloos_devices_for_who_asks() -> None:
    def body(rank: int) -> None:
        import torch
        import torch.distributed as dist

        group = dist.new_group(backend="gloo")
        assert group._get_backend(torch.device("cpu")).create_device(interface="lo")

    stand_in(1, body)


@pytest.mark.parametrize(
    ("timeout", "everyone", "said"),
    [
        (0.5, False, "Rank 1 failed to pass monitoredBarrier"),
        (0.5, True, "Ranks 1, 3 failed to pass monitoredBarrier"),
        (0.0, False, "Rank 0 timed out in monitoredBarrier"),
    ],
)
def test_a_barrier_that_fails_says_it_in_gloos_words_too(
    timeout: float, everyone: bool, said: str
) -> None:
    def body(rank: int) -> str:
        import torch.distributed as dist

        group, store = dist.new_group(backend="gloo"), dist.group.WORLD.get_group_store()
        if rank in (1, 3):
            store.wait(["over0", "over2"])
            return ""
        with pytest.raises(CommTimeout, match=r"waiting for rank\(s\) ") as caught:
            dist.monitored_barrier(group, timedelta(seconds=timeout), everyone)
        store.set(f"over{rank}", "")
        store.wait(["over0", "over2"])
        return str(caught.value)

    root, _, other, _ = stand_in(4, body)
    assert said in root
    assert "Rank 2 successfully reached monitoredBarrier, but received errors" in other
    assert "waiting for send/recv from rank 0" in other


def test_what_gloo_does_itself_is_counted_and_said(capfd: pytest.CaptureFixture[str]) -> None:
    def body(rank: int) -> int:
        import torch
        import torch.distributed as dist

        from torsh_runtime.integrations.torch import stand_in

        group = dist.new_group(backend="gloo")
        assert group._for([[torch.ones(1)]]) is None
        gloo = group._gloo("cuda")
        assert gloo is group._gloo("cuda")
        assert type(gloo._get_backend(torch.device("cuda"))).__name__ == "ProcessGroupGloo"
        stand_in._say_at_the_end(rank)
        dist.barrier()  # who left now would keep the other from connecting
        return stand_in._elsewhere["cuda"]

    assert stand_in(2, body) == [2, 2]
    said = "torsh: gloo itself did these operations, which torsh can't: 2 on cuda\n"
    assert capfd.readouterr().err.count(said) == 1
