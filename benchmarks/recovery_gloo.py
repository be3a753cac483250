"""The training of `benchmarks/recovery.py` by Gloo with torch's reconfigure functions, and a small
agent that replaces workers and tells all of them when to meet: `recovery_gloo.py WIDTH RANKS`.

The agent gets each worker's handle and its number of committed steps, and gives all workers the
handles of all once it has them. Then the worker that is furthest gives its state to the others.
"""

import random
import socket
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection, wait


def agent(width: int, ranks: int) -> None:
    """Start the workers, replace those that end, and let them meet."""
    with tempfile.NamedTemporaryFile() as store:
        place = [str(width), str(ranks), store.name]
        workers = {rank: start(rank, place) for rank in range(ranks)}
        told: dict[int, object] = {}
        known: set[int] = set()
        uuid = 0
        while True:
            for ready in wait([*workers.values()]):
                rank = next(rank for rank, each in workers.items() if each is ready)
                try:
                    told[rank] = ready.recv()  # type: ignore[union-attr]
                    known.add(rank)
                except (EOFError, ConnectionError):
                    if rank not in known:
                        raise SystemExit(f"rank {rank} ended before it could meet others") from None
                    told.pop(rank, None)
                    known.discard(rank)
                    workers[rank] = start(rank, place)
            if len(told) == ranks:
                uuid += 1
                for connection in workers.values():
                    connection.send((uuid, [told[rank] for rank in range(ranks)]))
                told = {}


def start(rank: int, place: list[str]) -> Connection:
    """Return the connection to a new worker."""
    own, other = socket.socketpair()
    command = [sys.executable, __file__, *place, str(rank), str(other.fileno())]
    subprocess.Popen(command, pass_fds=[other.fileno()])
    other.close()
    return Connection(own.detach())


def worker(width: int, ranks: int, store: str, rank: int, descriptor: int) -> None:
    """Train, and meet the others again when a collective fails."""
    import torch
    import torch.distributed as dist
    from recovery_training import say_commit, say_start, training

    connection = Connection(descriptor)
    model, optimizer, inputs = training(width, rank, ranks)
    parameters = [*model.parameters()]
    for each in parameters:
        optimizer.state[each]["momentum_buffer"] = torch.zeros_like(each)
    number, is_met = 0, False

    def meet() -> int:
        connection.send((dist._get_reconfigure_handle(), number))
        uuid, told = connection.recv()
        handles, numbers = [each[0] for each in told], [each[1] for each in told]
        dist._reconfigure(uuid, handles).wait()
        newest = max(numbers)
        if min(numbers) < newest:
            for each in parameters:
                dist.broadcast(each.data, numbers.index(newest))
                dist.broadcast(optimizer.state[each]["momentum_buffer"], numbers.index(newest))
        return newest

    say_start(rank)
    store_of_all = dist.FileStore(store, ranks)
    named = {"store": store_of_all, "rank": rank, "world_size": ranks}
    dist.init_process_group("gloo", enable_reconfigure=True, **named)
    while True:
        try:
            if not is_met:
                number, is_met = meet(), True
            optimizer.zero_grad()
            (model(inputs) ** 2).mean().backward()
            for each in parameters:
                dist.all_reduce(each.grad)
                each.grad /= ranks
        except RuntimeError as error:
            print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
            is_met = False
            # Alone, as that closes the connections, by which those notice that wait for this one.
            dist._reconfigure(random.getrandbits(31), [dist._get_reconfigure_handle()]).wait()
            continue
        optimizer.step()
        say_commit(number)
        number += 1


if __name__ == "__main__":
    if len(sys.argv) == 3:
        agent(int(sys.argv[1]), int(sys.argv[2]))
    else:
        width, ranks, store, rank, descriptor = sys.argv[1:]
        worker(int(width), int(ranks), store, int(rank), int(descriptor))
