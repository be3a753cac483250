"""A program of an agent and observers over the whole API of RPC, written for torch's.

rpc_programs.py PORT: three processes, whose results are printed as JSON. The tests run it as it
stands, and once more with the line of `import` below in which torsh_runtime takes torch's place.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch import futures; import torch.distributed.rpc as rpc  # isort: skip # noqa: E702 # fmt: skip

AGENT, OBSERVER, OBSERVERS = "agent", "observer{}", 2
EPISODES, STEPS, STATES = 3, 6, 5
Results = dict[str, Any]


class Corridor:
    """An environment: one walks along it, and is paid at its right end."""

    def __init__(self, start: int) -> None:
        self.start = self.place = start

    def reset(self) -> torch.Tensor:
        self.place = self.start
        return self._state()

    def step(self, right: bool) -> tuple[torch.Tensor, float]:
        self.place = min(max(self.place + (1 if right else -1), 0), STATES - 1)
        return self._state(), float(self.place == STATES - 1)

    def _state(self) -> torch.Tensor:
        return nn.functional.one_hot(torch.tensor(self.place), STATES).float()


class Observer:
    """Walks along its corridor as the agent tells it."""

    def __init__(self) -> None:
        self.info = rpc.get_worker_info()
        self.corridor = Corridor(self.info.id % 3)

    def run_episode(self, agent: Any, steps: int) -> float:
        state, total = self.corridor.reset(), 0.0
        for _ in range(steps):
            right = rpc.rpc_sync(agent.owner(), choose, args=(agent, self.info.id, state))
            state, reward = self.corridor.step(right)
            agent.rpc_sync().report(self.info.id, reward)
            total += reward
        return total

    def place(self) -> tuple[str, int]:
        return self.info.name, self.corridor.place


class Agent:
    """Chooses for all observers, and learns from what they were paid."""

    def __init__(self) -> None:
        self.ref = rpc.RRef(self)
        torch.manual_seed(0)
        self.policy = nn.Linear(STATES, 2)
        self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=0.5)
        self.observers = [
            rpc.remote(rpc.get_worker_info(OBSERVER.format(number)), Observer)
            for number in range(1, OBSERVERS + 1)
        ]
        self.random = {each: torch.Generator().manual_seed(each) for each in range(1, 3)}
        self.odds: dict[int, list[torch.Tensor]] = {1: [], 2: []}
        self.rewards: dict[int, list[float]] = {1: [], 2: []}

    def choose(self, observer: int, state: torch.Tensor) -> bool:
        odds = self.policy(state).log_softmax(-1)
        action = int(torch.multinomial(odds.exp(), 1, generator=self.random[observer]))
        self.odds[observer].append(odds[action])
        return bool(action)

    def report(self, observer: int, reward: float) -> None:
        self.rewards[observer].append(reward)

    def run_episode(self) -> list[float]:
        """All observers at the same time; what each of them was paid."""
        walks = [each.rpc_async().run_episode(self.ref, STEPS) for each in self.observers]
        return futures.wait_all(walks)

    def learn(self) -> float:
        terms = []
        for observer, odds in self.odds.items():
            paid = torch.tensor(self.rewards[observer])
            returns = paid.flip(0).cumsum(0).flip(0)
            terms.append(-(torch.stack(odds) * (returns - returns.mean())).sum())
            odds.clear()
            self.rewards[observer].clear()
        loss = torch.stack(terms).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def choose(agent: Any, observer: int, state: torch.Tensor) -> bool:
    return agent.local_value().choose(observer, state)


class Counter:
    """An object that lives where it was made."""

    kind = "counter"

    def __init__(self, value: int = 0, *, step: int = 1) -> None:
        self.value, self.step = value, step

    def add(self, times: int = 1) -> int:
        self.value += self.step * times
        return self.value

    def itself(self) -> Counter:
        return self

    def fail(self, text: str) -> None:
        raise ValueError(text)

    @staticmethod
    @rpc.functions.async_execution
    def far_sum(to: str, one: torch.Tensor, other: int) -> Any:
        return rpc.rpc_async(to, torch.add, args=(one, other)).then(lambda done: done.wait() * 10)

    @classmethod
    @rpc.functions.async_execution
    def far_kind(cls, to: str) -> Any:
        return rpc.rpc_async(to, str.upper, args=(cls.kind,))

    @rpc.functions.async_execution
    def far_add(self, to: str, value: int) -> Any:
        done = rpc.rpc_async(to, abs, args=(value,))
        return done.then(lambda done: self.add(done.value()))


GATE = threading.Event()
WAITING: list[Any] = []


def wait_for_gate() -> str:
    GATE.wait(60)
    return "open"


def open_gate() -> None:
    GATE.set()


@rpc.functions.async_execution
def meet(number: int) -> Any:
    """Two callers wait for each other without a thread of this worker."""
    mine = futures.Future()
    WAITING.append((number, mine))
    if len(WAITING) == 2:
        numbers = sorted(each for each, _ in WAITING)
        for _, future in WAITING:
            future.set_result(numbers)
        WAITING.clear()
    return mine


@rpc.functions.async_execution
def not_a_future() -> int:
    return 1


def name_of_worker() -> str:
    return rpc.get_worker_info().name


def divide(one: float, by: float) -> float:
    if by == 0:
        raise ValueError("nothing can be divided by 0")
    return one / by


def relay(names: list[str], depth: int) -> list[str]:
    """Each worker in turn calls the next one."""
    here = name_of_worker()
    if depth == 0:
        return [here]
    to = names[depth % len(names)]
    return [here, *rpc.rpc_sync(to, relay, args=(names, depth - 1))]


def fetch(ref: Any) -> Any:
    """What a reference that was made elsewhere leads to, and what is known of it."""
    return name_of_worker(), ref.is_owner(), ref.owner_name(), ref.owner().id, ref.to_here()


def own(value: Any) -> Any:
    """References that this worker makes and hands out."""
    return [rpc.RRef(value), rpc.RRef([value, value])]


def local_kind(ref: Any) -> str:
    return type(ref.local_value()).__name__


def doubled(model: nn.Module, data: torch.Tensor) -> tuple[torch.Tensor, nn.Module]:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
        return model(data), model


def error(call: Callable[[], Any]) -> list[Any]:
    """The kind of what a call raises, as far as programs rely on it."""
    kinds = RuntimeError, ValueError, TypeError, AttributeError, Exception
    try:
        return ["none", call()]
    except Exception as caught:
        return [next(kind.__name__ for kind in kinds if isinstance(caught, kind))]


def training() -> Results:
    agent = Agent()
    paid = [(agent.run_episode(), round(agent.learn(), 4)) for _ in range(EPISODES)]
    places = [each.rpc_sync().place() for each in agent.observers]
    here = [agent.ref.is_owner(), agent.ref.owner_name(), agent.ref.local_value() is agent]
    return {"paid": paid, "places": places, "agent": here, "to_here": agent.ref.to_here() is agent}


def references() -> Results:
    first, second = OBSERVER.format(1), OBSERVER.format(2)
    counter = rpc.remote(first, Counter, args=(5,), kwargs={"step": 3})
    counted = [counter.rpc_sync().add(), counter.rpc_async().add(times=2).wait()]
    counted.append(counter.remote().add(1).to_here())
    passed = rpc.remote(2, fetch, args=(rpc.remote(first, divide, args=(9, 2)),)).to_here()
    made = rpc.rpc_sync(second, own, args=("x",))
    here = rpc.RRef(7)
    facts = {
        "counted": counted,
        "value": counter.to_here().value,
        "owner": [counter.owner().name, counter.owner_name(), counter.owner().id],
        "is_owner": [counter.is_owner(), here.is_owner()],
        "confirmed": [counter.confirmed_by_owner(), here.confirmed_by_owner()],
        "passed": passed,
        "made there": [fetch(each)[1:] for each in made],
        "here": [here.local_value(), here.to_here(), here.rpc_sync().bit_length()],
        "sent back": rpc.rpc_sync(first, local_kind, args=(counter,)),
        "itself": counter.remote().itself().rpc_sync().add(),
        "local_value of a user": error(counter.local_value),
        "failed": error(rpc.remote(first, divide, args=(1, 0)).to_here),
        "method failed": error(lambda: counter.rpc_sync().fail("no")),
        "no such method": error(lambda: counter.rpc_sync().nothing())[0] != "none",
        "to myself": rpc.remote(AGENT, divide, args=(1, 2)).to_here(),
        "static": counter.rpc_sync().far_sum(second, torch.ones(2), 1).tolist(),
        "class": counter.rpc_async().far_kind(second).wait(),
        "method": counter.remote().far_add(second, -2).to_here(),
        "timeouts": counter.rpc_sync(timeout=30).add(),
    }
    return facts | {"kind": isinstance(here, rpc.RRef)}


def calls() -> Results:
    first, second = OBSERVER.format(1), OBSERVER.format(2)
    me, other = rpc.get_worker_info(), rpc.get_worker_info(first)
    strided = torch.arange(12.0).reshape(3, 4).t()[1:]
    model, data = nn.Linear(2, 1, bias=False), torch.ones(1, 2)
    nn.init.ones_(model.weight)
    output, back = rpc.rpc_sync(first, doubled, args=(model, data))
    return {
        "infos": [me.name, me.id, other.name, other.id, rpc.get_worker_info(AGENT).id],
        "targets": [rpc.rpc_sync(to, name_of_worker) for to in (first, other, 1, AGENT, me)],
        "builtin": rpc.rpc_sync(second, torch.add, args=(torch.ones(2), 1)).tolist(),
        "list of args": rpc.rpc_sync(first, divide, [1], {"by": 4}),
        "strided": torch.equal(rpc.rpc_sync(first, torch.clone, args=(strided,)), strided),
        "kinds": [
            str(rpc.rpc_sync(first, torch.neg, args=(torch.ones(3, dtype=kind),)).dtype)
            for kind in (torch.float64, torch.bfloat16, torch.int8, torch.complex64)
        ],
        "empty": list(rpc.rpc_sync(first, torch.clone, args=(torch.empty(0, 3),)).shape),
        "model": [output.tolist(), back.weight.tolist(), back.weight.requires_grad],
        "untouched": model.weight.tolist(),
        "nested": rpc.rpc_sync(first, relay, args=([AGENT, first, second], 7)),
        "error": error(lambda: rpc.rpc_sync(first, divide, args=(1, 0))),
        "bad arguments": error(lambda: rpc.rpc_sync(first, divide, args=(1, 2, 3)))[0],
        "unknown worker": error(lambda: rpc.rpc_sync("nobody", divide, args=(1, 2))),
        "unknown info": error(lambda: rpc.get_worker_info("nobody")),
        "too late": error(lambda: rpc.rpc_sync(first, wait_for_gate, timeout=0.2)),
        "in time": [rpc.rpc_sync(first, open_gate), rpc.rpc_sync(first, wait_for_gate)],
        "no deadline": rpc.rpc_sync(first, divide, args=(1, 2), timeout=0),
    }


def later() -> Results:
    """Futures of calls, and of one's own."""
    first, second = OBSERVER.format(1), OBSERVER.format(2)
    seen: list[Any] = []
    called = threading.Event()
    call = rpc.rpc_async(first, divide, args=(1, 2))
    chained = call.then(lambda done: done.value() + 1).then(lambda done: done.wait() * 2)
    call.add_done_callback(lambda done: (seen.append(done.value()), called.set()))
    own: Any = futures.Future()
    before = own.done()
    after = own.then(lambda done: -done.wait())
    own.set_result(3)
    failed: Any = futures.Future()
    failed.set_exception(ValueError("own"))
    both = [rpc.rpc_async(second, meet, args=(number,)) for number in (1, 2)]
    collected = futures.collect_all([call, own]).then(
        lambda done: [each.value() for each in done.value()]
    )
    bad = [rpc.rpc_async(first, divide, args=(1, by)) for by in (1, 0)]
    return {
        "chained": [chained.wait(), call.done(), call.value()],
        "called back": [called.wait(60), seen],
        "own": [before, own.done(), own.value(), own.wait(), after.wait()],
        "failed": [failed.done(), error(failed.wait), error(failed.value)],
        "then of a failure": error(failed.then(lambda done: done.wait()).wait)[0] != "none",
        "failing then": error(own.then(lambda done: 1 / 0).wait)[0] != "none",
        "set twice": error(lambda: own.set_result(4))[0] != "none",
        "met": [each.wait() for each in both],
        "collected": collected.wait(),
        "wait_all": futures.wait_all([call, own]),
        "wait_all of a failure": error(lambda: futures.wait_all(bad))[0] != "none",
        "not a future": error(lambda: rpc.rpc_sync(first, not_a_future))[0] != "none",
    }


def take_part(rank: int, port: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=8, rpc_timeout=60, init_method=f"tcp://127.0.0.1:{port}"
    )
    name = OBSERVER.format(rank) if rank else AGENT
    rpc.init_rpc(name, rank=rank, world_size=OBSERVERS + 1, rpc_backend_options=options)
    results = {}
    if rank == 0:
        scenes = training, references, calls, later
        results = {scene.__name__: scene() for scene in scenes}
    rpc.shutdown()
    pipe.send(results | {"after": error(name_of_worker)})


def main(port: int) -> None:
    context = multiprocessing.get_context("fork")
    results = []
    pipes = [context.Pipe(False) for _ in range(OBSERVERS + 1)]
    processes = [
        context.Process(target=take_part, args=(rank, port, pipes[rank][1]))
        for rank in range(OBSERVERS + 1)
    ]
    for process, (_, writer) in zip(processes, pipes, strict=True):
        process.start()
        writer.close()
    for process, (reader, _) in zip(processes, pipes, strict=True):
        results.append(reader.recv())
        process.join()
    print(json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]))
