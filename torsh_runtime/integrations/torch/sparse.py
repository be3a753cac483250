"""Reduces sparse tensors with all_reduce, such as the gradients of embeddings."""

from __future__ import annotations

import torch

from torsh_runtime.backends.base import Backend, Reduce, ReduceOp


def all_reduce(backend: Backend, tensor: torch.Tensor, op: Reduce, timeout: float) -> None:
    """Sum sparse COO tensors of one shape into all ranks' tensors. Complete when it returns.

    All ranks' entries are gathered, and added in rank order. Raises NotImplementedError for other
    layouts and reductions.
    """
    if tensor.layout is not torch.sparse_coo or op is not ReduceOp.SUM:
        raise NotImplementedError(
            f"the torsh backend sums sparse COO tensors; it cannot reduce a {tensor.layout} one "
            f"by {op!r}. Use tensor.to_dense()."
        )
    own = tensor.coalesce()
    counts = torch.empty(backend.world_size, dtype=torch.int64)
    backend.all_gather(counts, torch.tensor([own._nnz()]), timeout)
    sizes = counts.tolist()
    places = [own.indices().new_empty(own.sparse_dim(), size) for size in sizes]
    backend.all_gather(places, own.indices().contiguous(), timeout)
    values = [own.values().new_empty(size, *own.values().shape[1:]) for size in sizes]
    backend.all_gather(values, own.values().contiguous(), timeout)
    total = torch.sparse_coo_tensor(torch.cat(places, 1), torch.cat(values), tensor.shape)
    tensor.copy_(total.coalesce())
