"""Defines TorshGroup, a group of Ray actors with the interface that ray.util.collective calls."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import msgpack
import ray
from ray.experimental import internal_kv
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp as RayOp

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.bootstrap import open_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.timeouts import DEFAULT_TIMEOUT
from torsh_runtime.errors import CommTimeout
from torsh_runtime.integrations.placed import Place, Rendezvous, await_ranks, serve
from torsh_runtime.store.hosted import HostedStore

MEET = 60.0
"""Seconds within which the ranks of a group must connect."""
_PAUSE = 0.02
_OPS = {
    RayOp.SUM: ReduceOp.SUM,
    RayOp.PRODUCT: ReduceOp.PRODUCT,
    RayOp.MIN: ReduceOp.MIN,
    RayOp.MAX: ReduceOp.MAX,
}


class TorshGroup(BaseGroup):
    """Represents one actor's end of a group.

    Tensors are numpy arrays or torch's. Each is passed in a list.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        """Connect to the other ranks. Raises CommTimeout naming the ranks that did not connect in
        time.
        """
        super().__init__(world_size, rank, group_name)
        self._hosted: HostedStore | None = None
        job = ray.get_runtime_context().get_job_id()
        key = f"torsh/collective/{job}/{group_name}"
        with self._rendezvous(key) as rendezvous:
            address = str(ray.util.get_node_ip_address())
            places = [Place(address, "", 0, 1)] * world_size  # the ranks find out who is where
            env = replace(rendezvous.environments(places)[rank], local_world_size=0)
            await_ranks(env, MEET)
            self._group = open_group(None, env, DEFAULT_TIMEOUT)

    @contextmanager
    def _rendezvous(self, key: str) -> Iterator[Rendezvous]:
        """Yield the rendezvous, which rank 0 publishes under this key until the ranks have
        connected.
        """
        if self.rank > 0:
            yield _made_known(key, self.world_size)
            return
        rendezvous, self._hosted = serve(str(ray.util.get_node_ip_address()))
        told = msgpack.packb([rendezvous.endpoint, rendezvous.secret])
        internal_kv._internal_kv_put(key, told, overwrite=True)
        try:
            yield rendezvous
        except BaseException:
            self._hosted.close()
            raise
        finally:
            internal_kv._internal_kv_del(key)

    @property
    def process_group(self) -> ProcessGroup:
        """Return the underlying process group."""
        return self._group

    def destroy_group(self) -> None:
        """Leave the group. A peer that still needs this rank gets PeerLost."""
        try:
            self._group.close()
        finally:
            if self._hosted is not None:
                self._hosted.close()

    @classmethod
    def backend(cls) -> str:
        """Return the backend's name for Ray."""
        return "TORSH"

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Return True: the backend is available wherever this module is."""
        return True

    def allreduce(self, tensor: list[Any], allreduce_options: Any = None) -> None:
        """Reduce in place over all ranks."""
        self._group.all_reduce(tensor[0], _op(allreduce_options))

    def barrier(self, barrier_options: Any = None) -> None:
        """Wait until all ranks have called this."""
        self._group.barrier()

    def reduce(self, tensor: list[Any], reduce_options: Any) -> None:
        """Reduce into the root's tensor. The other ranks' tensors are not changed."""
        self._group.reduce(tensor[0], reduce_options.root_rank, _op(reduce_options))

    def allgather(
        self, tensor_list: list[Sequence[Any]], tensor: list[Any], allgather_options: Any = None
    ) -> None:
        """Copy rank r's tensor into tensor_list[0][r], for each r."""
        self._group.all_gather(tensor_list[0], tensor[0])

    def broadcast(self, tensor: list[Any], broadcast_options: Any) -> None:
        """Copy the root's tensor to all ranks."""
        self._group.broadcast(tensor[0], broadcast_options.root_rank)

    def reducescatter(
        self, tensor: list[Any], tensor_list: list[Sequence[Any]], reducescatter_options: Any = None
    ) -> None:
        """Reduce all ranks' tensor_list[0][r] into rank r's tensor."""
        self._group.reduce_scatter(tensor[0], tensor_list[0], _op(reducescatter_options))

    def send(self, tensor: list[Any], send_options: Any) -> None:
        """Send a tensor to a rank."""
        self._group.send(tensor[0], send_options.dst_rank)

    def recv(self, tensor: list[Any], recv_options: Any) -> None:
        """Receive a tensor from a rank."""
        self._group.recv(tensor[0], recv_options.src_rank)


def _op(options: Any) -> ReduceOp:
    return ReduceOp.SUM if options is None else _OPS[options.reduceOp]


def _made_known(key: str, world_size: int) -> Rendezvous:
    """Return the rendezvous that rank 0 published under this key, once it is served.

    The check is needed because a rank 0 that was killed may have left its key. Raises CommTimeout
    if there is none in time.
    """
    deadline = time.monotonic() + MEET
    while time.monotonic() < deadline:
        told = internal_kv._internal_kv_get(key)
        if told is not None:
            endpoint, secret = msgpack.unpackb(told)
            if _is_served(endpoint):
                return Rendezvous(endpoint, secret)
        time.sleep(_PAUSE)
    raise CommTimeout("init_collective_group", 0, MEET, [0])


def _is_served(endpoint: str) -> bool:
    where = urlsplit(endpoint.replace("tcp:", "tcp://", 1))
    with suppress(OSError), socket.create_connection((where.hostname or "", where.port or 0), 1.0):
        return True
    return False
