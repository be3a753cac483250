"""Makes a mesh of the ranks of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from torsh_runtime.comm.default import default_group
from torsh_runtime.mesh.groups import Overrides, Strategies
from torsh_runtime.mesh.mesh import DeviceMesh


@overload
def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Overrides | None = None,
    comm_strategy: Strategies | None = None,
) -> DeviceMesh: ...


@overload
def init_device_mesh(
    device_type: Sequence[int] | Mapping[str, int],
    mesh_shape: Sequence[str] | None = None,
    *,
    backend_override: Overrides | None = None,
    comm_strategy: Strategies | None = None,
) -> DeviceMesh: ...


def init_device_mesh(
    device_type: Any,
    mesh_shape: Any = None,
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Overrides | None = None,
    comm_strategy: Strategies | None = None,
) -> DeviceMesh:
    """Create a mesh of all ranks of the default group, as torch's function of this name.

    There are shorter forms for arrays on CPUs: `init_device_mesh({"pp": 2, "dp": -1, "tp": 2})`, or
    `init_device_mesh((2, -1), ("dp", "tp"))`.

    Every rank calls this with the same arguments, and in the same order if there are several
    meshes.

    Args:
        device_type: "cpu" or "cuda", where arrays are stored; in the shorter forms the sizes of the
            axes, or a mapping of their names to sizes.
        mesh_shape: The sizes of the axes, which multiply to the number of ranks; one may be -1. In
            the shorter form, the names.
        mesh_dim_names: The names of the axes; None is dim_0, dim_1 and so on.
        backend_override: A different backend for some axes, by name or number.
        comm_strategy: How ranks of several nodes carry out collectives; see DeviceMesh.

    Returns:
        The mesh.

    Raises:
        ConfigError: If there is no default group, or for arguments that do not fit, on all ranks if
            they differ.
        CommError: If the exchange among the ranks fails.

    Example:
        ```python
        mesh = tr.init_device_mesh("cpu", (2, -1), mesh_dim_names=("dp", "tp"))
        tr.all_reduce(gradient, group=mesh.get_group("dp"))
        ```
    """
    if isinstance(device_type, Mapping):
        device_type, mesh_shape = tuple(device_type.values()), tuple(device_type)
    if not isinstance(device_type, str):
        device_type, mesh_shape, mesh_dim_names = "cpu", device_type, mesh_dim_names or mesh_shape
    group = default_group()
    return DeviceMesh(
        mesh_shape, mesh_dim_names, group, device_type, backend_override, comm_strategy
    )
