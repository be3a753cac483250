"""Sums over all processes of a JAX job, which needs no arguments to find its place.

    torshrun --nproc-per-node 2 examples/jax_psum.py

Needs jax.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.multihost_utils import process_allgather

jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("workers",))
shares = jax.NamedSharding(mesh, jax.P("workers"))


@jax.jit
@jax.shard_map(mesh=mesh, in_specs=jax.P("workers"), out_specs=jax.P())
def total(part: jax.Array) -> jax.Array:
    return jax.lax.psum(part.sum(), "workers")


def main() -> None:
    """Add up 0..n-1, of which each device holds its share."""
    per_process = 3 * jax.local_device_count()
    first = jax.process_index() * per_process
    part = jnp.arange(first, first + per_process, dtype=jnp.int32)
    whole = jax.make_array_from_process_local_data(shares, part)
    pids = process_allgather(jnp.int32(jax.process_index()))
    print(
        f"process {jax.process_index()} of {jax.process_count()}: holds {part.tolist()}, "
        f"the sum is {int(total(whole))}, peers {pids.tolist()}"
    )


if __name__ == "__main__":
    main()
    jax.distributed.shutdown()
