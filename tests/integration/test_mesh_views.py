"""Views of a mesh, what its groups are told and measure, and meshes that are made anew."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.forked import Raised
from support.worlds import run_in_one_world, run_processes

import torsh_runtime as tr
from torsh_runtime.comm.default import default_group


def check(results: Sequence[Any], dead: Sequence[int] = ()) -> None:
    for rank, result in enumerate(results):
        told = isinstance(result, Raised) and rank not in dead
        assert not told, f"rank {rank}: {result.error.trace}"


def names_and_views(rank: int) -> None:
    mesh = tr.init_device_mesh({"pp": 1, "dp": -1, "tp": 2})
    assert repr(mesh) == "DeviceMesh(pp=1, dp=2, tp=2; cpu)"
    experts = mesh.view({"ep": -1}, over=("dp", "tp"))
    again = mesh.view({"edp": 2, "ep": -1}, over=("tp", "dp"))
    assert experts.shape == mesh.shape
    assert experts.coordinate == {"pp": 0, "dp": rank // 2, "tp": rank % 2, "ep": rank}
    assert experts["ep"].get_group() is experts.get_group("ep") is tr.group.WORLD
    assert again.size("ep") == 2
    assert again["ep"].mesh.tolist() == [rank % 2, rank % 2 + 2]  # dp goes fastest in it
    assert again.get_group("ep") is mesh.get_group("dp")
    assert again.get_group("edp") is mesh.get_group("tp")
    assert again["tp"].alike(["ep"]) is again["dp", "tp"].alike(["ep"]) is mesh.get_group("tp")
    assert again["dp"].alike(["ep"]).world_size == 1
    with pytest.raises(KeyError, match="no axis 'ep'; this mesh has pp, dp, tp"):
        mesh["dp"].alike(["ep"])
    assert mesh != experts
    assert mesh["dp"] == experts["dp"]
    for wrong in ({"dp": 4}, {"ep": 3}):
        with pytest.raises(tr.ConfigError):
            mesh.view(wrong, over=("dp", "tp"))
    with pytest.raises(tr.ConfigError, match="a part of a mesh"):
        mesh["dp"].anew()


def measured(rank: int) -> None:
    mesh = tr.init_device_mesh({"dp": 2, "tp": 2})
    group, values = mesh.get_group("dp"), np.ones(100)
    tr.all_reduce(values, group=group)
    mesh.measure()
    assert mesh.stats() == {"dp": {}}
    tr.all_reduce(values, group=group)
    tr.all_reduce(values, group=group, async_op=True).wait()
    with tr.coalesce(group):
        tr.all_reduce(np.ones(10), group=group)
        tr.all_reduce(np.ones(10), group=group)
    tr.all_gather_into_tensor(np.empty(8), np.ones(4), group=mesh.get_group("tp"))
    tr.barrier(group=mesh.get_group("tp"))
    reduced = mesh.stats()["dp"]["all_reduce"]
    tr.barrier()
    assert (reduced.calls, reduced.bytes) == (3, 1760)  # two small ones are one
    assert reduced.latency > 0
    assert reduced.bandwidth == pytest.approx(reduced.bytes / reduced.seconds)
    gathered = mesh.stats()["tp"]
    assert gathered["all_gather"].bytes == 64
    assert (gathered["barrier"].calls, gathered["barrier"].bytes) == (1, 0)
    number, sent = mesh.get_local_rank("dp"), [bytes(1000)]
    there = tr.get_process_group_ranks(group)[1 - number]
    move = tr.recv_object_list if number else tr.send_object_list
    move(sent, there, group=group)
    objects = mesh.stats()["dp"]["recv_object" if number else "send_object"]
    assert objects.calls == 1
    assert objects.bytes > 1000
    mesh.measure(False)
    tr.all_reduce(values, group=group)
    assert mesh.stats() == {"dp": {}, "tp": {}}


def strategies(rank: int) -> None:
    mesh = tr.init_device_mesh({"dp": 2, "tp": 2}, comm_strategy={"dp": "ring", "tp": "tree"})
    for name in ("dp", "tp"):
        tr.all_reduce(value := np.ones(1), group=mesh.get_group(name))
        assert value == 2
    whole = tr.init_device_mesh({"all": 4}, comm_strategy="standard")
    assert whole.get_group() is not tr.group.WORLD
    for wrong in ({"dp": "star"}, {"cp": "ring"}, "best"):
        with pytest.raises(tr.ConfigError, match="comm_strategy"):
            tr.init_device_mesh({"dp": 2, "tp": 2}, comm_strategy=wrong)
    with pytest.raises(tr.ConfigError, match="chooses its own"):
        tr.DeviceMesh((4,), ("x",), backend_override={"x": "gloo"}, comm_strategy="ring")


def three_dimensions(rank: int) -> None:
    config = tr.ThreeDParallelismConfig(dp_size=1, tp_size=2, pp_size=2, comm_strategy="tree")
    manager = tr.ProcessGroupManager(config)
    place = manager.rank_mapping
    assert (place.pp_rank, place.dp_rank, place.tp_rank) == (rank // 2, 0, rank % 2)
    assert manager.group_ids.get_dp_group_id(tp_rank=1, pp_rank=0) == "dp_group_tp1_pp0"
    assert tr.RankMapping.from_3d_coords(config, 0, place.tp_rank, place.pp_rank) == rank
    assert manager.get_pp_process_group().ranks == (rank % 2, rank % 2 + 2)
    own = np.full(2, rank, np.float32)
    manager.all_reduce_dp(own)
    assert manager.all_gather_tp(own).tolist() == [rank // 2 * 2.0] * 2 + [rank // 2 * 2 + 1.0] * 2
    assert manager.reduce_scatter_tp(own).tolist() == [rank // 2 * 4 + 1.0]
    manager.all_reduce_tp(own)
    for number in range(2):
        if place.pp_rank == 0:
            manager.send_to_next_stage(own + number, 1, number)
            assert manager.receive_from_next_stage((2,), 1, number).tolist() == [9.0 + number] * 2
        else:
            there = manager.receive_from_prev_stage((2,), 0, number)
            assert there.tolist() == [1.0 + number] * 2
            manager.send_to_prev_stage(there + 8, 0, number)
    stats = manager.get_communication_stats()
    assert stats.total_communications == 8
    assert stats.total_bytes_communicated == 8 + 16 + 8 + 8 + 4 * 8
    assert stats.average_latency_ms > 0
    ids = tr.ProcessGroupIds(config)
    assert ids.get_dp_group_id(1, 0) == "dp_group_tp1_pp0"
    assert ids.get_dp_group_id(2, 0) is None
    for call in (
        lambda: tr.RankMapping(config, 4),
        lambda: tr.RankMapping.from_3d_coords(config, 1, 0, 0),
        lambda: tr.RankMapping(tr.ThreeDParallelismConfig(-1), 0),
        lambda: tr.ProcessGroupIds(tr.ThreeDParallelismConfig(-1)),
    ):
        with pytest.raises(tr.ConfigError):
            call()
    for wrong in ((2, 2, 2), (0, 2, 2)):
        with pytest.raises(tr.ConfigError):
            tr.ProcessGroupManager(tr.ThreeDParallelismConfig(*wrong))


def disagreements(rank: int) -> None:
    sizes = {"dp": 2, "tp": 2} if rank else {"dp": 4, "tp": 2}
    for comm_strategy in (None, "ring" if rank else "tree"):
        with pytest.raises(tr.ConfigError, match=r"DeviceMesh differs .* rank.s. 1, 2, 3"):
            tr.init_device_mesh(sizes, comm_strategy=comm_strategy)
        sizes = {"dp": 2, "tp": 2}
    with pytest.raises(tr.ConfigError, match="multiply"):
        tr.init_device_mesh({"dp": 4, "tp": 2})


def test_of_four_ranks() -> None:
    bodies = {
        each: each
        for each in (names_and_views, measured, strategies, three_dimensions, disagreements)
    }
    for results in run_in_one_world(4, bodies, 60.0).values():
        check(results)


def test_after_a_failure_the_mesh_is_made_anew_of_who_is_left() -> None:
    def body(rank: int) -> None:
        mesh = tr.init_device_mesh({"dp": -1, "tp": 2}).view({"ep": -1}, over=("dp", "tp"))
        tr.all_reduce(np.ones(1), group=mesh.get_group("tp"))
        tr.barrier()
        if rank in (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(tr.CommError):
            tr.barrier()
        default_group().configure(tr.get_store(), "", rank % 2 ^ rank // 2 ^ (rank == 3), 2, 1, 20)
        with pytest.raises(tr.CommAborted):
            mesh.get_group("dp")
        mesh = mesh.anew()
        assert mesh.shape == (1, 2)
        assert mesh.size("ep") == 2
        tr.all_reduce(value := np.ones(1), group=mesh.get_group("tp"))
        assert value == 2
        tr.barrier()

    check(run_processes(4, body, 20.0), dead=(1, 2))
