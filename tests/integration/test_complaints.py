"""Complaints of users of other libraries, with models of transformers: right here, or refused."""

from __future__ import annotations

import importlib.util

import pytest
from support.forked import Raised
from support.worlds import run_processes

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
    pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers"),
    pytest.mark.skipif(not importlib.util.find_spec("peft"), reason="needs peft"),
]


REFUSED = {
    "adapters, sequences": "q_proj' has adapters, which would see tokens of this rank or of all",
    "odd length, sequences": "dimension 1 of (2, 15, 32) has to be cut into 2 equal parts",
    "torch's clipping": "call tr.clip_grad_norm_(model, max_norm, mesh), on all ranks",
}


def test_what_goes_wrong_elsewhere_is_right_or_refused() -> None:
    from support import complaints

    for result in run_processes(2, complaints.answers, 240.0):
        assert not isinstance(result, Raised), result.error
        wrong = {name: said for name, said in result.items() if said}
        assert wrong.keys() == REFUSED.keys(), wrong
        for name, words in REFUSED.items():
            assert words in wrong[name]
