"""Meshes over ranks that are processes: the groups of axes and of views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.ports import free_address

import torsh_runtime as tr

World = Callable[..., list[Any]]


def check(results: Sequence[Any]) -> None:
    for rank, result in enumerate(results):
        assert result is None, f"rank {rank}: {getattr(result.error, 'trace', result)}"


def members(group: tr.ProcessGroup) -> list[int]:
    """Who is in the group, as an all_gather over it tells."""
    found = np.empty(tr.get_world_size(group), np.int64)
    tr.all_gather_into_tensor(found, np.array([tr.get_rank()]), group)
    ranks: list[int] = found.tolist()
    return ranks


def test_three_axes_and_views_of_them(process_world: World) -> None:
    def body(rank: int) -> None:
        mesh = tr.init_device_mesh((2, 2, -1), ("pp", "dp", "tp"))
        pp, dp, tp = mesh.get_coordinate()
        table = np.arange(8).reshape(2, 2, 2)
        assert (mesh.mesh == table).all()
        assert (mesh.shape, mesh.ndim, mesh.size(), mesh.size("dp")) == ((2, 2, 2), 3, 8, 2)
        assert table[pp, dp, tp] == rank == mesh.get_rank()
        assert tr.get_pg_count() == 1  # none is made before it is asked for
        assert members(mesh.get_group("tp")) == table[pp, dp, :].tolist()
        assert members(mesh.get_group(1)) == table[pp, :, tp].tolist()
        assert tr.get_pg_count() == 3
        inner = mesh["dp", "tp"]
        assert (inner.mesh == table[pp]).all()
        assert inner.get_group("tp") is mesh["tp"].get_group() is mesh.get_group(-1)
        flat = inner.flatten()
        assert flat.mesh_dim_names == ("dp_tp",)
        assert members(flat.get_group()) == table[pp].ravel().tolist()
        assert flat.get_local_rank() == tr.get_rank(flat.get_group()) == 2 * dp + tp
        across = mesh["tp", "pp"].flatten("outer")
        assert members(across.get_group()) == table[:, dp, :].T.ravel().tolist()
        assert across.get_local_rank() == 2 * tp + pp
        assert mesh.flatten().get_group() is tr.group.WORLD
        assert [tr.get_process_group_ranks(group) for group in mesh.get_all_groups()] == [
            table[:, dp, tp].tolist(),
            table[pp, :, tp].tolist(),
            table[pp, dp, :].tolist(),
        ]
        tr.barrier()

    check(process_world(8, body, 60.0))


def test_meshes_do_not_share_and_axes_of_one_meet_nobody(process_world: World) -> None:
    def body(rank: int) -> None:
        mesh = tr.init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", "cp", "tp"))
        alone = mesh.get_group("cp")
        assert (alone.world_size, members(alone)) == (1, [rank])
        assert mesh["dp", "cp"].flatten().get_group() is mesh.get_group("dp")
        other = tr.DeviceMesh((2, 2))
        assert other.mesh_dim_names == ("dim_0", "dim_1")
        assert other.get_group(0) is not mesh.get_group("dp")
        assert members(other.get_group(0)) == members(mesh.get_group("dp"))
        assert mesh["dp"] == mesh["dp"] != other["dim_0"]
        gloo = tr.init_device_mesh((4,), ("dp",), backend_override={"dp": "native"})
        assert gloo.get_group() is tr.group.WORLD
        tr.barrier()

    check(process_world(4, body, 60.0))


def test_of_a_group_in_its_own_order(process_world: World) -> None:
    def body(rank: int) -> None:
        group = tr.new_group([3, 1, 2, 0], sort_ranks=False)
        mesh = tr.DeviceMesh((2, 2), ("a", "b"), group)
        assert mesh.mesh.tolist() == [[3, 1], [2, 0]]
        a, b = mesh.get_coordinate()
        assert mesh.mesh[a, b] == rank
        assert members(mesh.get_group("b")) == [[3, 1], [2, 0]][a]
        if rank:
            with pytest.raises(tr.ConfigError, match="is not in the group"):
                tr.DeviceMesh((1,), group=tr.new_group([0]))
        tr.barrier()

    check(process_world(4, body, 60.0))


def test_axes_asked_for_by_several_threads_in_any_order(process_world: World) -> None:
    def body(rank: int) -> None:
        mesh = tr.init_device_mesh((2, 2), ("dp", "tp"))
        names = ("dp", "tp") if rank in (1, 2) else ("tp", "dp")  # each waits for the next
        with ThreadPoolExecutor(4) as pool:
            groups = dict(zip(names * 2, pool.map(mesh.get_group, names * 2), strict=True))
        assert groups["dp"] is mesh.get_group("dp")
        assert members(groups["dp"]) == [rank % 2, rank % 2 + 2]
        tr.barrier()

    check(process_world(4, body, 60.0))


def test_one_rank() -> None:
    tr.init_process_group("native", "tcp://127.0.0.1:1", 10.0, 1, 0)
    mesh = tr.init_device_mesh((1, -1), ("dp", "tp"))
    value = np.ones(2)
    for group in (*mesh.get_all_groups(), mesh.flatten().get_group()):
        tr.all_reduce(value, group=group)
    assert value.tolist() == [1, 1]
    assert repr(mesh["tp"]) == "DeviceMesh(tp=1; cpu)"
    with pytest.raises(tr.ConfigError, match="dp, tp"):
        mesh.get_group()
    with pytest.raises(KeyError, match="dp, tp"):
        mesh["pp"]
    with pytest.raises(KeyError, match="no axis 2"):
        mesh.get_group(2)
    for wrong in (
        {"device_type": "xpu"},
        {"backend_override": {"pp": "native"}},
        {"backend_override": {"dp": object()}},
    ):
        with pytest.raises(tr.ConfigError):
            tr.DeviceMesh((1, 1), ("dp", "tp"), **wrong)  # type: ignore[arg-type]
    tr.destroy_process_group()


def test_a_mesh_ends_with_its_group(process_world: World) -> None:
    address = free_address()

    def body(rank: int) -> None:
        mesh = tr.init_device_mesh((2, -1), ("dp", "tp"))
        tr.destroy_process_group()
        with pytest.raises(tr.CommAborted, match="make another with init_process_group"):
            mesh.get_group("dp")
        tr.init_process_group("native", address, 20.0, 4, rank)

    check(process_world(4, body, 60.0))
