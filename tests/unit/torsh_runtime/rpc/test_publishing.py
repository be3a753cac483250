"""Published states in slots of shared memory: where arrays lie, who holds what, what is refused."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import strict_cupy

from torsh_runtime.arrays import stage
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.checkpoint.manifest import Manifest
from torsh_runtime.errors import CheckpointError, CommTimeout, ConfigError
from torsh_runtime.layout import Flat, Piece, Replicate, Shard, ShardedTensor, TensorLayout
from torsh_runtime.rpc.options import WorkerInfo
from torsh_runtime.rpc.publishing.description import plan, split, text_of
from torsh_runtime.rpc.publishing.publication import Publication
from torsh_runtime.rpc.publishing.registry import VERSIONS
from torsh_runtime.rpc.publishing.versions import RemoteVersion, SlotVersion
from torsh_runtime.rpc.publishing.weights import Weights

torch = pytest.importorskip("torch")


class Bench:
    """A writer and a reader in one process."""

    def __init__(self) -> None:
        self.publication = Publication("policy", itertools.count(1, VERSIONS).__next__)
        self.reader = self.new_reader("reader")

    def new_reader(self, name: str) -> Any:
        return _native.SlotReader(os.getpid(), self.publication.file, self.publication.token, name)

    def publish(self, state: Any, timeout: float = 5) -> int:
        return self.publication.publish(state, timeout)

    def near(self) -> Weights:
        """The newest version, in this node's memory."""
        lease = self.reader.hold()
        told, tree = split(lease.text)
        return Weights(SlotVersion("trainer", lease, Manifest.from_bytes(told), tree))

    def far(self) -> Weights:
        """The newest version, as a reader of another node has it."""
        found = self.publication.pin(WorkerInfo("far", 7))
        assert found is not None
        number, version, text = found
        self.fetched: list[tuple[str, Piece]] = []

        def fetch(wanted: Any) -> Any:
            self.fetched += wanted
            return [each.copy() for each in self.publication.fetch(number, wanted)]

        told, tree = split(text)
        manifest = Manifest.from_bytes(told)
        release = lambda: self.publication.unpin(number)  # noqa: E731
        return Weights(RemoteVersion("trainer", version, manifest, tree, fetch, release))


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    yield found
    found.publication.close()
    found.reader = None


STATE = OrderedDict(
    weight=torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
    strided=torch.arange(6).reshape(2, 3).t(),
    scalar=torch.tensor(2.5),
    empty=torch.empty(0, 3),
    nested={"a": np.arange(5), "b": [np.float32(3).reshape(()), (1, "text", None, b"bytes")]},
    transposed=np.arange(6.0).reshape(2, 3).T,
    step=7,
)


@pytest.mark.parametrize("way", ["near", "far"])
def test_what_was_published_comes_back(bench: Bench, way: str) -> None:
    bench.publish({"model": STATE, 3: "three"})
    with getattr(bench, way)() as weights:
        assert weights.version == 1
        assert list(weights) == ["model", 3]
        assert weights[3] == "three"
        model = weights["model"]
        assert isinstance(model, OrderedDict)
        for name in ("weight", "strided", "scalar", "empty"):
            assert model[name].dtype == STATE[name].dtype
            assert torch.equal(model[name], STATE[name]), name
        assert np.array_equal(model["nested"]["a"], np.arange(5))
        assert model["nested"]["b"][0] == 3
        assert model["nested"]["b"][1] == (1, "text", None, b"bytes")
        assert np.array_equal(model["transposed"], STATE["transposed"])
        assert model["step"] == 7
        with pytest.raises(ValueError, match="read-only"):
            model["nested"]["a"][0] = 1
    with pytest.raises(CheckpointError, match="version 1 has been closed"):
        weights["model"]


def test_what_is_written_to_a_tensor_stays_this_processs_and_goes(bench: Bench) -> None:
    bench.publish({"w": torch.ones(10_000)})
    other = bench.new_reader("other")
    weights, lease = bench.near(), other.hold()
    weights["w"].zero_()
    assert (lease.array(is_own=False, is_writable=False)[:40_000].view("f4") == 1).all()
    weights.close()
    del weights
    assert torch.equal(bench.near()["w"], torch.ones(10_000))


def test_arrays_that_are_one_memory_take_one_place() -> None:
    tied, other = torch.ones(1000), torch.ones(1000)
    found = plan("policy", {"a": tied, "b": tied.detach(), "c": other, "half": tied[:500]})
    assert len(found.sources) == 3
    assert found.placed["state/a"] == found.placed["state/b"]
    assert found.num_bytes == 4032 * 2 + 2048


def test_of_a_model_its_parameters_and_persistent_buffers_are_published(bench: Bench) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    model.register_parameter("tied", model[0].weight)
    bench.publish(model)
    with bench.near() as weights:
        assert {*weights} == {*model.state_dict()}
        other = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        other.register_parameter("tied", other[0].weight)
        weights.copy_to(other)
        again = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        again.load_state_dict(weights, strict=False)
    assert torch.equal(again[0].weight, model[0].weight)
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)


@pytest.mark.parametrize("way", ["near", "far"])
def test_copy_to_takes_pieces_casts_and_leaves_out(bench: Bench, way: str) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    bench.publish({"w": whole, "b": torch.ones(5), "step": 3, "unused": np.ones(9)})
    across = TensorLayout((4, 6), (("tp", 2, Shard(1)),))
    flat = TensorLayout((4, 6), (("tp", 2, Shard(1)), ("dp", 2, Flat((0, 5, 12)))))
    target: dict[str, Any] = {
        "w": ShardedTensor(torch.zeros(4, 3, dtype=torch.float64), across.piece({"tp": 1})),
        "step": 0,
    }
    with getattr(bench, way)() as weights:
        weights.copy_to(target)
        part = np.zeros(5, np.float32)
        weights.copy_to({"w": ShardedTensor(part, flat.piece({"tp": 0, "dp": 0}))})
        view = weights.piece("w", across.piece({"tp": 0}))
        assert np.array_equal(view, whole[:, :3])
        if way == "far":
            assert {name for name, _ in bench.fetched} == {"state/w"}
            assert [piece.size for _, piece in bench.fetched] == [12, 5, 12]
    assert np.array_equal(target["w"].values.numpy(), whole[:, 3:])
    assert np.array_equal(part, whole[:, :3].reshape(-1)[:5])
    assert target["step"] == 3


def test_arrays_of_devices_go_through_the_host(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy = strict_cupy.module()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    bench.publish({"w": cupy.array(np.arange(6.0).reshape(2, 3))})
    target = cupy.zeros((2, 3), np.float32)
    with bench.near() as weights:
        assert np.array_equal(weights["w"], np.arange(6.0).reshape(2, 3))
        weights.copy_to({"w": target})
    assert np.array_equal(target.get(), np.arange(6.0).reshape(2, 3))


def test_a_target_that_does_not_fit_is_refused_before_anything_changes(bench: Bench) -> None:
    bench.publish({"w": np.ones((2, 3)), "nested": {"x": np.ones(3)}, "n": np.ones(3, np.int32)})
    kept = np.zeros((2, 3))
    with bench.near() as weights:
        for wrong, words in (
            ({"w": kept, "other": np.ones(3)}, r"state\['other'\] was not published; there are w"),
            ({"w": kept, "nested": {"x": np.ones(4)}}, r"'state/nested/x' is float64 of shape"),
            ({"w": kept, "n": np.ones(3, np.float32)}, r"int32 of shape"),
            ({"w": kept, "nested": np.ones(3)}, r"'nested' is no array"),
            ({"w": kept, "n": {"deeper": np.ones(3)}}, r"\['deeper'\] was not published"),
        ):
            with pytest.raises(CheckpointError, match=words):
                weights.copy_to(wrong)
        with pytest.raises(CheckpointError, match="tensor of shape"):
            weights.piece("w", Piece.whole((3, 2)))
    assert not kept.any()


def test_what_cannot_be_published_is_refused_by_name(bench: Bench) -> None:
    half = TensorLayout((4,), (("tp", 2, Shard(0)),)).piece({"tp": 0})
    for state, words in (
        ([np.ones(3)], "takes a dict of arrays or a model, not a builtins.list"),
        ({"w": ShardedTensor(np.ones(2), half)}, "'w' is a piece of a tensor"),
        ({"a": {"w": np.ones(2, np.complex128)}}, "'a/w' is of dtype complex128"),
        ({"w": np.ones(2, ">f4")}, "'w' is of dtype >f4"),
        ({"w": torch.eye(3).to_sparse()}, "w is a sparse tensor"),
        ({"w": torch.empty(2, device="meta")}, "'w' is on the meta device"),
        ({"w": object()}, "cannot be kept"),
    ):
        with pytest.raises(ConfigError, match=words):
            bench.publish(state)
    assert bench.reader.newest == 0
    whole = TensorLayout((4,), (("tp", 2, Replicate()),)).piece({"tp": 0})
    assert bench.publish({"w": ShardedTensor(np.ones(4), whole)}) == 1


def test_a_version_is_kept_until_the_last_of_its_arrays_is_gone(bench: Bench) -> None:
    bench.publish({"w": np.full(1000, 1)})
    weights = bench.near()
    array = weights["w"][10:20]
    weights.close()
    for number in range(2, 20):
        bench.publish({"w": np.full(1000, number)})
    assert (array == 1).all()
    assert [version for _, _, version in bench.publication._slots.holders()] == [1]
    assert bench.publication._slots.count == 3
    del array
    assert not bench.publication._slots.holders()


def test_readers_that_hold_all_slots_are_named_at_the_deadline(bench: Bench) -> None:
    held = []
    for number in range(_native.MOST_SLOTS):
        bench.publish({"w": np.full(10, number)})
        held.append(bench.near())
    with pytest.raises(CommTimeout, match=rf"reader \(pid {os.getpid()}\) holds version 3") as told:
        bench.publish({"w": np.zeros(10)}, timeout=0.05)
    assert isinstance(told.value, TimeoutError)
    assert [int(each["w"][0]) for each in held] == list(range(_native.MOST_SLOTS))
    waiting = threading.Thread(target=bench.publish, args=({"w": np.full(10, 99)}, 30))
    waiting.start()
    held.pop(0).close()
    waiting.join()
    assert bench.near()["w"][0] == 99
    del held
    for number in range(3):
        bench.publish({"w": np.full(10, number)})
    assert bench.publication._slots.count == 3


def test_arrays_of_other_sizes_get_other_slots(bench: Bench) -> None:
    for size in (10, 5_000_000, 3, 6_000_000):
        bench.publish({"w": np.full(size, size)})
        assert (bench.near()["w"] == size).all()


def test_numbers_ascend_beyond_what_a_writer_has_at_a_time(bench: Bench) -> None:
    bench.publish({})
    bench.publication._next = bench.publication._end
    assert bench.publish({}) == VERSIONS + 1


def test_a_reader_never_sees_half_of_a_version(bench: Bench) -> None:
    """Threads, which C++ runs without the GIL, take and check versions as fast as they can."""
    size, problems, stop = 200_000, [], threading.Event()
    bench.publish({"w": np.zeros(size, np.int64)})

    def read() -> None:
        reader, last = bench.new_reader("thread"), 0
        while not stop.is_set():
            lease = reader.hold()
            values = lease.array(is_own=False, is_writable=False).view(np.int64)
            first = int(values[0])
            if not (values == first).all() or lease.version < last:
                problems.append((lease.version, first))
            last = lease.version
            del values, lease

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 200):
        bench.publish({"w": np.full(size, number, np.int64)}, timeout=30)
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert bench.publication._slots.count <= _native.MOST_SLOTS


def test_a_fork_of_a_reader_lets_go_of_nothing(bench: Bench) -> None:
    bench.publish({"w": np.ones(3)})
    weights = bench.near()
    pid = os.fork()
    if pid == 0:
        weights.close()
        del weights
        os._exit(0)
    os.waitpid(pid, 0)
    assert [version for _, _, version in bench.publication._slots.holders()] == [1]
    weights.close()


def test_slots_refuse_what_does_not_fit_or_is_not_theirs(bench: Bench) -> None:
    slots = _native.Slots()
    slot = slots.take(100, 0)
    assert slot is not None
    with pytest.raises(ValueError, match="does not fit"):
        slots.fill(slot, [np.zeros(10_000, np.uint8)], [0], stage)
    with pytest.raises(OSError, match="table"):
        _native.SlotReader(os.getpid(), bench.publication.file, bytes(16), "stranger")
    with pytest.raises(OSError, match="/proc/"):
        _native.SlotReader(os.getpid(), 1_000_000, bytes(16), "stranger")


def test_a_text_of_another_version_is_refused() -> None:
    told, tree = split(text_of(b"manifest", {"a": 1}))
    assert (told, tree) == (b"manifest", {"a": 1})
    for text in (b"", b"short", text_of(b"manifest", {})[:-1]):
        with pytest.raises(CheckpointError, match="makes no sense"):
            split(text)
