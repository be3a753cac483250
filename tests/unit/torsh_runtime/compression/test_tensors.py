"""Compressors of torch tensors: the bits of numpy's form, and no wait for a GPU."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from support.compressed import COMPRESSORS, alone, gradients, on_ranks

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.compression import Compressor, FlatBucket
from torsh_runtime.compression.arrays import half_dtype
from torsh_runtime.compression.streams import StreamedWork
from torsh_runtime.compression.tensors import TensorArray, _DeviceDraws
from torsh_runtime.compression.wire import Wire
from torsh_runtime.errors import CommTimeout

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

SHAPES = [(200, 30), (7,), (20, 30), (4, 5, 10)]
SIZE = 6807
ROUNDED = {"powersgd": 1e-4, "powersgd-float16": 2e-3, "onebit": 1e-6, "dgc": 1e-6}
"""Those whose sums are rounded in another order, and by how much of the largest value."""
TWICE = ("topk-float16", "fp16")
"""Those for which torch rounds float64 to float32 first."""
DTYPES = ("float16", "bfloat16", "float32", "float64")


def averaged(compressor: Compressor, group: ProcessGroup, array: Any) -> Any:
    names = [f"g{i}" for i in range(len(SHAPES))]
    compressor(group, FlatBucket(array, SHAPES, names)).wait()
    return array


def as_tensor(array: Any) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def as_array(tensor: Any) -> Any:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(half_dtype("bfloat16"))
    return tensor.numpy()


def distinct(step: int, kind: Any) -> Any:
    """Gradients of distinct magnitudes: of equal ones top-k takes any."""
    if kind.itemsize > 2:
        return gradients(step, 0, SIZE, kind)
    draw = np.random.default_rng(step)
    bits = draw.permutation(np.arange(0x2400, 0x2400 + SIZE, dtype=np.uint16))
    return (bits | (draw.integers(2, size=SIZE).astype(np.uint16) << 15)).view(kind)


@contextmanager
def sent(into: list[bytes]) -> Iterator[None]:
    """Note the bytes that go over the wire."""
    kinds = ("all_gather", "all_gather_uneven", "all_to_all", "_all_reduce")
    real = {name: getattr(Wire, name) for name in kinds}

    def noting(name: str) -> Any:
        def call(self: Wire, array: Any, *more: Any) -> Any:
            tensor = getattr(array, "tensor", None)
            into.append((array if tensor is None else as_array(tensor.contiguous())).tobytes())
            return real[name](self, array, *more)

        return call

    for name in kinds:
        setattr(Wire, name, noting(name))
    try:
        yield
    finally:
        for name in kinds:
            setattr(Wire, name, real[name])


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_sent_is_that_of_numpys_form(name: str, dtype: str) -> None:
    group = alone()
    kind = half_dtype(dtype) if dtype == "bfloat16" else np.dtype(dtype)
    forms = COMPRESSORS[name](), COMPRESSORS[name]()
    for step in range(4):
        wires: tuple[list[bytes], list[bytes]] = ([], [])
        given = distinct(step, kind)
        tensor = as_tensor(given)
        with sent(wires[0]):
            averaged(forms[0], group, given)
        with sent(wires[1]):
            averaged(forms[1], group, tensor)
        if name not in ROUNDED and not (name in TWICE and dtype == "float64"):
            assert wires[0] == wires[1], step
            assert as_array(tensor).tobytes() == given.tobytes()
            continue
        assert [*map(len, wires[0])] == [*map(len, wires[1])]
        wanted, got = given.astype(np.float64), as_array(tensor).astype(np.float64)
        least = {"float16": 1e-3, "bfloat16": 1e-2}.get(dtype, 0.0)
        bound = max(ROUNDED.get(name, 2e-3), least) * np.abs(wanted).max()
        assert np.abs(got - wanted).max() <= bound


@pytest.mark.parametrize("name", COMPRESSORS)
def test_several_ranks_get_the_same_bits(name: str) -> None:
    forms: list[dict[str, Any]] = []

    def body(group: ProcessGroup) -> list[bytes]:
        compressor, results = COMPRESSORS[name](), []
        for step in range(3):
            tensor = torch.from_numpy(gradients(step, group.rank, SIZE))
            results.append(averaged(compressor, group, tensor).numpy().tobytes())
        forms.append(compressor.state_dict())
        return results

    def plain(group: ProcessGroup) -> list[Any]:
        compressor = COMPRESSORS[name]()
        return [averaged(compressor, group, gradients(i, group.rank, SIZE)) for i in range(3)]

    first, *others = on_ranks(3, body)
    assert all(other == first for other in others)
    for got, wanted in zip(first, on_ranks(3, plain)[0], strict=True):
        bound = ROUNDED.get(name, 0.0) * 3 * np.abs(wanted).max()
        np.testing.assert_allclose(np.frombuffer(got, np.float32), wanted, rtol=0, atol=bound)
    kept = forms[0]
    again = COMPRESSORS[name]()
    again.load_state_dict(kept)
    for key, value in again.state_dict().items():
        if isinstance(value, dict):
            assert all((value[each] == kept[key][each]).all() for each in kept[key])


@pytest.mark.parametrize("name", COMPRESSORS)
def test_what_is_not_finite_is_passed_on_and_not_kept(name: str) -> None:
    compressor, group = COMPRESSORS[name](), alone()
    gradient = torch.from_numpy(gradients(0, 0, SIZE))
    gradient[700] = torch.nan
    assert not averaged(compressor, group, gradient).isfinite().all()
    for step in range(1, 4):
        later = averaged(compressor, group, torch.from_numpy(gradients(step, 0, SIZE)))
    assert later.isfinite().all()


WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")


class NoWait(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
    """Refuses what makes the processor wait for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        assert name not in WAITS, name
        if name == "index":  # by a mask it would count what is true
            assert all(each is None or each.dtype == torch.int64 for each in args[1])
        if name == "repeat_interleave":
            assert kwargs["output_size"] is not None
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", sorted(set(COMPRESSORS) - {"threshold"}))
def test_nothing_waits_for_the_gpu(name: str) -> None:
    def body(group: ProcessGroup) -> None:
        compressor = COMPRESSORS[name]()
        averaged(compressor, group, torch.from_numpy(gradients(0, group.rank, SIZE)))
        bucket = torch.from_numpy(gradients(1, group.rank, SIZE))
        in_order = group.in_order
        group.in_order = lambda call, async_op=False: in_order(call)  # type: ignore[method-assign]
        with NoWait():  # which is this thread's
            averaged(compressor, group, bucket)

    on_ranks(3, body)
    body(alone())


class Cuda:
    """Notes what is asked of torch.cuda, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[tuple[str, str]] = []
        self.current = Stream(self, "main")
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(self, "side"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
        monkeypatch.setattr(
            torch.Tensor, "record_stream", lambda _, stream: self.note(stream.name, "keeps")
        )

    def note(self, stream: str, what: str) -> None:
        self.told.append((stream, what))

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


class Stream:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: Stream) -> None:
        self.cuda.note(self.name, f"waits for {other.name}")

    def record_event(self) -> str:
        self.cuda.note(self.name, "records")
        return f"end of {self.name}"

    def wait_event(self, event: str) -> None:
        self.cuda.note(self.name, f"waits for {event}")


def test_it_runs_on_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    compressor, group = COMPRESSORS["topk"](), alone()
    names = [f"g{i}" for i in range(len(SHAPES))]
    cuda = Cuda(monkeypatch)
    all_gather = Wire.all_gather

    def noting(self: Wire, array: Any) -> Any:
        cuda.note(cuda.current.name, "gathers")
        monkeypatch.setattr(torch.Tensor, "is_cuda", False)  # for the group, which is on CPUs
        gathered = all_gather(self, array)
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
        return gathered

    monkeypatch.setattr(Wire, "all_gather", noting)
    works = []
    for step in range(2):
        tensor = torch.from_numpy(gradients(step, 0, SIZE))
        works.append(compressor(group, FlatBucket(tensor, SHAPES, names, step, step == 1)))
    steps = [
        ("side", "waits for main"),
        ("side", "keeps"),
        ("side", "gathers"),
        ("side", "records"),
    ]
    assert cuda.told == steps * 2, "the main stream waits for neither"
    for work in works:
        work.wait()
    assert cuda.told[8:] == [("main", "waits for end of side")] * 2


@pytest.mark.parametrize("name", COMPRESSORS)
def test_nothing_is_held_after_a_step_but_what_the_next_needs(name: str) -> None:
    compressor, group = COMPRESSORS[name](), alone()

    def tensors() -> int:
        gc.collect()
        return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())

    counts = []
    for step in range(4):
        tensor = torch.from_numpy(gradients(step, 0, SIZE))
        averaged(compressor, group, tensor)
        gone = weakref.ref(tensor)
        del tensor
        assert gone() is None
        counts.append(tensors())
    assert counts[2] == counts[3]


def test_a_gpus_draws_are_chances_that_the_seed_decides() -> None:
    def drawn(seed: int) -> Any:
        draws = _DeviceDraws(torch.device("cpu"), seed)
        return draws.random((100, 100), np.float32).tensor

    first = drawn((1 << 64) - 1)
    assert first.min() >= 0
    assert first.max() < 1
    assert abs(float(first.mean()) - 0.5) < 0.02
    assert torch.equal(drawn((1 << 64) - 1), first)
    assert not torch.equal(drawn(5), first)


class Event:
    def __init__(self) -> None:
        self.over = threading.Event()
        self.query, self.synchronize = self.over.is_set, self.over.wait


def test_a_work_on_a_stream_can_be_waited_for_by_the_processor() -> None:
    event, called = Event(), threading.Event()
    work = StreamedWork(None, event, None)
    work.add_done_callback(lambda _: called.set())
    assert not work.done()
    with pytest.raises(CommTimeout):
        work.wait(0.01)
    assert not called.is_set()
    event.over.set()
    assert work.wait(60.0)
    assert called.wait(60.0)
    assert work.exception() is None


OWN = {
    "minus": lambda x: x - 1.0 - x * 2,
    "negative": lambda x: -x,
    "power": lambda x: x**2,
    "magnitude": lambda x: abs(x),
    "from the left": lambda x: 1 + np.float32(2) * x,
    "numpy's number": lambda x: np.sqrt(np.float64(4)) * x,
    "mask and numbers": lambda x: (x > 0) + x,
    "mean": lambda x: x - x.mean(),
    "number": lambda x: x * float(x.sum()) if (x > 1).any() else x,
    "extremes": lambda x: (x - x.min()) / (x.max() - x.min()),
    "copy": lambda x: _set(x.copy(), (x > 2) | (x == 0), 7),
    "not equal": lambda x: _set(x.copy(), x != 0, 7),
    "rows": lambda x: _set(x.reshape(3, 3) * 1, x[:3] > 0, 7),
}


def _set(array: Any, key: Any, value: float) -> Any:
    array[key] = value
    return array


@pytest.mark.parametrize("name", OWN)
def test_operators_give_what_numpys_give(name: str) -> None:
    array = np.array([0.0, 1, -2, 3.5, 0, -7, 0.25, 2, -1], np.float32)
    found = OWN[name](TensorArray(torch.from_numpy(array.copy())))
    np.testing.assert_allclose(found.get(), OWN[name](array), rtol=1e-6)


@pytest.mark.parametrize("call", [np.sign, np.abs, np.asarray, np.linalg.norm])
def test_functions_of_numpy_are_refused(call: Any) -> None:
    with pytest.raises(TypeError):
        call(TensorArray(torch.ones(4)))
