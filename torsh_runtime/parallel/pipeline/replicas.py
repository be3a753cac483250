"""Finds ranks that have the same stages, and different batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework import Module
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.pipeline.stage import HOLDS, REDUCES, Wrapper

DATA_AXES = ("dp", "cp")
"""Axes along which batches differ."""


def data_group(mesh: DeviceMesh | None) -> ProcessGroup | None:
    """Return the ranks of a mesh whose batches differ; None if there is only one."""
    names = [] if mesh is None else [name for name in DATA_AXES if name in mesh.mesh_dim_names]
    if mesh is None or not names:
        return None
    view = mesh[tuple(names)]
    group = view.flatten().get_group() if len(names) > 1 else view.get_group()
    return None if group.world_size == 1 else group


def unreduced(stages: Mapping[int, Module], data: ProcessGroup | None, is_wrapped: bool) -> str:
    """Return what is wrong if batches differ between ranks and gradients are not averaged.

    Returns "" if nothing is wrong.
    """
    if data is None:
        return ""
    ranks = f"ranks {', '.join(map(str, data.ranks))} have different batches"
    if not is_wrapped:
        return (
            f"{ranks}, and nothing averages their gradients: pass wrap=, which puts a "
            f"DistributedDataParallel over them around a stage, or returns it where you do it"
        )
    whole = [s for s in stages.values() if hasattr(s, REDUCES) and not hasattr(s, HOLDS)]
    averaged = [cast(Wrapper, stage).process_group.ranks for stage in whole]
    wrong = next((over for over in averaged if {*over} != {*data.ranks}), None)
    if wrong is None:
        return ""
    return (
        f"{ranks}, and gradients are averaged over {', '.join(map(str, wrong))}: wrap stages over "
        f"mesh['dp'], or mesh['dp', 'cp'] where the mesh has both"
    )
