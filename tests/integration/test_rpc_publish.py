"""Weights that one worker publishes and others read, in real processes that come, go and die."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from support.hosts import needs_hosts, plugged
from support.launcher import Launcher
from support.processes import soon
from support.rpc_workers import RpcWorker, RpcWorkers

PUBLISH = """
def publish(first, last, size=1 << 18):
    for n in range(first, last + 1):
        version = tr.rpc.publish("policy", {"w": np.full(size, n), "n": n})
    return version
"""
FOLLOW = """
def follow(last):
    seen = []
    while not seen or seen[-1] < last:
        with sub.wait() as weights:
            n = weights["n"]
            assert (weights["w"] == n).all(), (n, weights["w"])
            seen.append(n)
    assert seen == sorted(set(seen)), seen
    return seen[-1]
def error_of(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__ + ": " + str(error)
"""
AWAY = """
from torsh_runtime.rpc.publishing import feeds
feeds.node_here = lambda: None
"""
"""The worker takes itself for one of another node, which fetches by calls."""


@pytest.fixture(scope="module")
def workers() -> Iterator[RpcWorkers]:
    with RpcWorkers() as found:
        yield found


def started(workers: RpcWorkers, *names: str) -> list[RpcWorker]:
    """They publish and follow."""
    found = [workers.start(name) for name in names]
    for worker in found:
        worker.ask(PUBLISH + FOLLOW)
    return found


def slots(trainer: RpcWorker) -> tuple[int, list[str]]:
    """How many there are, and the names of those that hold one."""
    trainer.ask("from torsh_runtime.rpc.current import current_agent")
    trainer.ask("own = current_agent().publications().find('policy')")
    found: tuple[int, list[str]] = trainer.ask(
        "(own._slots.count, [who for _, who, _ in own._slots.holders()])"
    )
    return found


def test_readers_come_read_whole_versions_and_die(workers: RpcWorkers) -> None:
    trainer, *readers = started(workers, "trainer", "a", "b", "c", "far")
    readers[3].ask(AWAY)
    trainer.ask("publish(1, 1)")
    for reader in readers:
        assert reader.ask("follow(1)") == 1
    for reader in readers[:2]:
        reader.tell("follow(10 ** 9)")
    for reader in readers[2:]:
        reader.tell("follow(400)")
    trainer.tell("publish(2, 200)")
    readers[0].kill()
    assert trainer.answer() == 200
    readers[1].signal(signal.SIGSTOP)
    trainer.ask("publish(201, 300)")
    late = workers.start("late")
    late.ask(FOLLOW)
    assert late.ask("follow(300)") == 300
    trainer.ask("publish(301, 400)")
    assert [reader.answer() for reader in readers[2:]] == [400, 400]
    readers[1].signal(signal.SIGCONT)
    readers[1].kill()
    trainer.ask("publish(401, 410)")
    count, holders = slots(trainer)
    assert count <= 4
    assert not {"a", "b"} & {*holders}
    for reader in readers[2:]:
        reader.tell("error_of(lambda: follow(10 ** 9))")
    trainer.tell("publish(411, 10 ** 9)")
    assert late.ask("follow(430)") >= 430
    trainer.kill()  # while it writes
    for reader in readers[2:]:
        assert "PeerLost" in reader.answer()
    assert late.ask("(lambda weights: (weights['w'] == weights['n']).all().item())(sub.latest())")
    for worker in (trainer, late, *readers):
        worker.close()


def test_a_writers_death_is_told_and_another_one_is_followed(workers: RpcWorkers) -> None:
    trainer, near, far = started(workers, "trainer", "near", "far")
    far.ask(AWAY)
    trainer.ask("publish(1, 3)")
    for reader in (near, far):
        reader.ask("kept = sub.latest()")
        assert reader.ask("(kept.version > 0, int(kept['w'][0]))") == (True, 3)
        reader.tell("error_of(sub.wait)")
    trainer.kill()
    for reader in (near, far):
        told = reader.answer()
        assert "PeerLost: rank " in told
        assert "'trainer'" in told
    assert near.ask("(int(kept['w'].min()), sub.latest().version == kept.version)") == (3, True)
    assert "PeerLost" in far.ask("error_of(lambda: sub.latest(timeout=0.2))")
    for reader in (near, far):
        assert "PeerLost" in reader.ask("error_of(lambda: sub.wait(timeout=0.2))")
        reader.tell("(lambda new: (new.version > kept.version, new['n']))(sub.wait())")
    (other,) = started(workers, "other")
    other.ask("publish(7, 7)")
    assert [reader.answer() for reader in (near, far)] == [(True, 7)] * 2
    (rival,) = started(workers, "rival")
    assert "published by 'other'" in rival.ask("error_of(lambda: publish(1, 1))")
    rival.ask(AWAY.replace("feeds", "publications"))
    assert "published by 'other'" in rival.ask("error_of(lambda: publish(1, 1))")
    near.tell("error_of(sub.wait)")
    assert other.ask("tr.rpc.shutdown()") is None
    assert "has stopped publishing 'policy' ('other' on " in near.answer()
    rival.ask("publish(8, 8)")
    assert near.ask("(lambda new: (new.version > kept.version, new['n']))(sub.wait())") == (True, 8)
    for worker in (near, far, other, rival):
        worker.close()


def test_a_far_reader_gets_what_it_asks_for_and_its_death_frees_it(workers: RpcWorkers) -> None:
    trainer, far = started(workers, "trainer", "far")
    far.ask(AWAY)
    trainer.ask("state = {'w': np.arange(24.).reshape(4, 6), 'big': np.ones(1 << 20), 'n': 1}")
    trainer.ask("tr.rpc.publish('policy', state)")
    far.ask("from torsh_runtime.layout import Shard, ShardedTensor, TensorLayout")
    far.ask("piece = TensorLayout((4, 6), (('tp', 2, Shard(1)),)).piece({'tp': 1})")
    far.ask("mine = np.zeros((4, 3))")
    far.ask("weights = sub.latest()")
    far.ask("weights.copy_to({'w': ShardedTensor(mine, piece)})")
    assert far.ask("(mine == np.arange(24.).reshape(4, 6)[:, 3:]).all().item()")
    assert far.ask("float(weights['big'].sum())") == float(1 << 20)
    holders = "[pin.reader.name for pin in own._pins.values()]"
    slots(trainer)
    assert trainer.ask(holders) == ["far"]
    far.ask("weights.close()")
    assert soon(lambda: trainer.ask(holders) == [])
    far.ask("weights = sub.latest()")
    assert trainer.ask(holders) == ["far"]
    far.kill()
    assert soon(lambda: trainer.ask(holders) == [])
    trainer.close()


def test_what_nobody_publishes_ends_in_time_and_says_what_there_is(workers: RpcWorkers) -> None:
    trainer, near, far = started(workers, "trainer", "near", "far")
    far.ask(AWAY)
    trainer.ask("publish(1, 1)")
    for reader in (near, far):
        told = reader.ask("error_of(lambda: tr.rpc.subscribe('polict').latest(timeout=0.1))")
        assert told.startswith("CommTimeout: latest('polict') timed out after 0.1 s")
        assert "nobody publishes it; there is 'policy'" in told
        reader.ask("newest = sub.latest().version")
        told = reader.ask("error_of(lambda: sub.wait(timeout=0.1))")
        assert "worker 'trainer' on" in told
        assert "published nothing newer than version" in told
    for worker in (trainer, near, far):
        worker.close()


def test_a_writer_that_serves_the_store_takes_it_along() -> None:
    with RpcWorkers() as workers:
        near, far = started(workers, "near", "far")
        far.ask(AWAY)
        workers.first.ask(PUBLISH)
        workers.first.ask("publish(1, 2)")
        for reader in (near, far):
            assert reader.ask("follow(2)") == 2
            reader.tell("error_of(sub.wait)")
        workers.first.kill()
        for reader in (near, far):
            assert "PeerLost: rank 0 was lost during wait('policy')" in reader.answer()
            assert "PeerLost" in reader.ask("error_of(lambda: sub.wait(timeout=0.1))")
        assert near.ask("sub.latest()['n']") == 2


MODELS = """
import numpy as np, torch, torsh_runtime as tr
tr.init_process_group()
tr.rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
mesh = tr.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
def model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
published, x = model(0), torch.arange(6.)
if rank == 0:
    tr.rpc.publish("policy", published)
cut = tr.parallelize(model(1), mesh["tp"], {"0": tr.Column(), "2": tr.Row()})
ddp = tr.DistributedDataParallel(model(2))
fsdp = tr.FullyShardedDataParallel(model(3), min_num_params=0)
with tr.rpc.subscribe("policy").latest() as weights:
    weights.copy_to(cut, mesh)
    weights.copy_to({"0.weight": ddp.module[0].weight})
    weights.copy_to(fsdp)
    assert torch.equal(ddp.module[0].weight, published[0].weight)
    assert not torch.equal(ddp.module[2].weight, published[2].weight)
    weights.copy_to(ddp)
for made in (cut, ddp, fsdp):
    assert torch.allclose(made(x), published(x), atol=1e-6), made
fsdp(x).sum().backward()
print("right", rank)
tr.rpc.shutdown()
"""


@pytest.mark.torch
def test_models_that_are_cut_or_wrapped_take_their_pieces(torshrun: Launcher) -> None:
    torshrun.environ["TORCHINDUCTOR_CACHE_DIR"] = str(torshrun.folder / "inductor")
    code, out, err = torshrun.run("--nproc-per-node", "2", torshrun.script(MODELS))
    assert code == 0, err
    assert out.count("right") == 2


@needs_hosts
@pytest.mark.netns
def test_readers_of_another_host_follow_and_die(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORSH_SECRET", "5" * 32)
    with plugged(2) as hosts, RpcWorkers(hosts[0].ipv4, hosts[0].command) as workers:
        trainer = workers.start("trainer", -1, hosts[0].command)
        readers = [workers.start(f"far{i}", -1, hosts[1].command) for i in range(2)]
        for worker in (trainer, *readers):
            worker.ask(PUBLISH + FOLLOW)
        for reader in readers:
            reader.tell("follow(40)")
        trainer.ask("publish(1, 20)")
        readers[0].kill()
        trainer.ask("publish(21, 40)")
        assert readers[1].answer() == 40
        assert slots(trainer)[0] <= 4
        readers[1].tell("error_of(sub.wait)")
        trainer.kill()
        assert "PeerLost" in readers[1].answer()
