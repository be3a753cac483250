"""Errors cross processes: as results of pools, in futures, in object collectives."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from torsh_runtime import errors
from torsh_runtime.errors import TorshError

TAKING_FACTS = (
    errors.BackendUnavailable("NCCL", "Install it."),
    errors.PeerLost(3, "all_reduce", 7),
    errors.PeerLost(1, "all_reduce", 7, "it has left", "axis tp", "rank 5, pp 1, tp 1"),
    errors.CommTimeout("barrier", 2, 1.5, [1, 2]),
    errors.CommMismatch(4, 0, "send", 1, "recv"),
    errors.GradientError({1: "a parameter got no gradient"}),
    errors.PipelineError(1, 2, 5, "F5 of stage 2", "ValueError: no"),
    errors.StateCorrupted(40, [1], ["n3"], "model/2.weight", [0, 2], True),
)


def samples() -> list[TorshError]:
    known = {type(error) for error in TAKING_FACTS}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    others = [kind for kind in kinds if issubclass(kind, TorshError) and kind not in known]
    return [*TAKING_FACTS, *(kind("a text") for kind in others)]


@pytest.mark.parametrize("error", samples(), ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "pass_on",
    [
        *(
            lambda error, protocol=protocol: pickle.loads(  # noqa: S301  (our own)
                pickle.dumps(error, protocol)
            )
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        ),
        copy.copy,
        copy.deepcopy,
    ],
)
def test_an_error_keeps_its_text_and_its_facts(
    error: TorshError, pass_on: Callable[[TorshError], TorshError]
) -> None:
    error.add_note("on rank 5")
    passed = pass_on(error)
    assert type(passed) is type(error)
    assert str(passed) == str(error)
    assert vars(passed) == vars(error)


def test_a_pool_hands_it_out() -> None:
    with ProcessPoolExecutor(1) as pool, pytest.raises(errors.PeerLost, match="rank 3") as caught:
        pool.submit(partial(fail, TAKING_FACTS[1])).result(30)
    assert caught.value.rank == 3


def fail(error: TorshError) -> None:
    raise error
