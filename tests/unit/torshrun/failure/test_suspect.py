"""Whom words and accounts of workers blame. The words are what the libraries really write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.errors import CommMismatch, CommTimeout, PeerLost
from torshrun.failure.suspect import MOST_RANKS, Suspect, from_account, from_words

GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"


@pytest.mark.parametrize(
    ("text", "how", "ranks"),
    [
        (f"torsh_runtime.errors.PeerLost: {PeerLost(3, 'all_reduce', 7)}", "lost", (3,)),
        (f"CommTimeout: {CommTimeout('barrier', 2, 4.0, [1, 12])}", "late", (1, 12)),
        (f"PeerLost: {PeerLost(1, 'send', 0, '', 'axis tp', 'rank 5, pp 1, tp 1')}", "lost", (5,)),
        (
            f"PeerLost: {PeerLost(1, 'send', 2, 'it left', 'the group', 'rank 3 of the job')}",
            "lost",
            (3,),
        ),
        (f"CommTimeout: {CommTimeout('recv', 0, 1e6, [2])}", "late", (2,)),
        (f"torsh_runtime.errors.CommTimeout: {CommTimeout('barrier', 2, 4.0, [])}", "late", ()),
        ("torsh_runtime.errors.CommAborted: rank 2 aborted the group during x", "lost", (2,)),
        ("RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms", "late", (1,)),
        (
            "[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 3000 ms",
            "late",
            (1, 3),
        ),
        (
            "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while "
            "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
            "lost",
            (0,),
        ),
        (
            "DistStoreError: Timed out after 5 seconds waiting for clients. 2/3 clients joined.",
            "late",
            (),
        ),
        ("DistStoreError: wait timeout after 4000ms, keys: /default_pg/0//cpu//0/2", "late", (2,)),
        ("DistStoreError: wait timeout after 3000ms, keys: /default_pg/0//nokey", "late", ()),
        ("DistNetworkError: failed to recv, got 0 bytes", "lost", (0,)),
        (f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:57740. This", "lost", ()),
        (f"{GLOO}pair.cc:537] Read error [::1]:1: Connection reset by peer", "lost", ()),
        (f"{GLOO}unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation", "late", ()),
        (
            "what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= "
            "op.nbytes. 8 vs 4. Received data size doesn't match expected size.",
            "mismatch",
            (),
        ),
        (
            "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, "
            "OpType=ALLREDUCE, NumelIn=10, Timeout(ms)=1000) ran for 1001 milliseconds",
            "late",
            (),
        ),
        ("To our best knowledge, ranks [1, 3] are the lagging ranks that", "late", (1, 3)),
        ("ncclRemoteError: A call failed possibly due to a network error", "lost", ()),
        ("BrokenPipeError: [Errno 32] Broken pipe", "lost", ()),
    ],
)
def test_what_libraries_say_of_others(text: str, how: str, ranks: tuple[int, ...]) -> None:
    blame = from_words(["noise", text])
    assert blame is not None
    assert (blame.how, blame.ranks) == (how, ranks)
    assert blame.text
    assert len(blame.text) <= 200


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: rank 3 of the matrix is too small",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "I like torsh_runtime PeerLost",
        "KeyError: 'timed out'",
    ],
)
def test_other_words_blame_nobody(text: str) -> None:
    assert from_words([text]) is None


def test_both_calls_of_a_mismatch_are_read() -> None:
    error = CommMismatch(4, 0, "all_reduce(float32[2, 3], SUM)", 2, "barrier()")
    blame = from_words([f"torsh_runtime.errors.CommMismatch: {error}"])
    assert blame is not None
    assert blame.calls == {0: "all_reduce(float32[2, 3], SUM)", 2: "barrier()"}


def test_ranks_of_an_axis_are_those_of_the_job() -> None:
    who = " of axis tp (rank 4, pp 1, tp 0; rank 5, pp 1, tp 1)"
    error = CommMismatch(4, 0, "all_reduce(float32[2], SUM)", 1, "barrier()", who)
    blame = from_words([f"torsh_runtime.errors.CommMismatch: {error}"])
    assert blame is not None
    assert blame.calls == {4: "all_reduce(float32[2], SUM)", 5: "barrier()"}


def test_so_are_those_of_torchs_debug_mode_and_ddp() -> None:
    blame = from_words(
        [
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running "
            "collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE, TensorShape="
            "[10]), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=5, "
            "OpType=BARRIER).Collectives differ in the following aspects: Op type: ALLREDUCEvs "
            "BARRIER"
        ]
    )
    assert blame is not None
    assert blame.calls == {
        1: "SequenceNumber=5, OpType=ALLREDUCE, TensorShape=[10]",
        0: "SequenceNumber=5, OpType=BARRIER",
    }
    blame = from_words(
        [
            "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 2 params, while "
            "rank 1 has inconsistent 4 params."
        ]
    )
    assert blame is not None
    assert blame.calls == {0: "2 params", 1: "4 params"}


def test_a_service_that_cannot_be_reached_is_weak_evidence() -> None:
    for text in ("ConnectionResetError: [Errno 104] Connection reset by peer", "Broken pipe"):
        blame = from_words([text])
        assert blame is not None
        assert blame.weak
    blame = from_words(["DistNetworkError: The client socket has timed out after 5000ms"])
    assert blame is not None
    assert (blame.weak, blame.ranks) == (True, (0,))


# ---- accounts

ACCOUNT = {"how": "lost", "ranks": [2, 1, 2], "op": "all_reduce", "calls": {}}


def test_an_account_is_told_by_ranks_of_the_job() -> None:
    expected = Suspect(
        how="lost", ranks=(1, 2), op="all_reduce", text="lost ranks 1-2 in all_reduce"
    )
    assert from_account(ACCOUNT) == expected
    late = from_account({"how": "late", "ranks": []})
    assert late is not None
    assert late.text == "timed out waiting for a peer"


def test_an_account_of_a_mismatch_has_both_calls() -> None:
    calls = {"0": "a()", "3": "b()", "x": "c()", "4": 5}
    blame = from_account({"how": "mismatch", "ranks": [3], "calls": calls})
    assert blame is not None
    assert (blame.calls, blame.text) == ({0: "a()", 3: "b()"}, "rank 0: a(), rank 3: b()")


@pytest.mark.parametrize(
    "change",
    [
        {"how": "murdered"},
        {"how": None},
        {"ranks": "0"},
        {"ranks": [True]},
        {"ranks": [-1]},
        {"ranks": [1 << 40]},
        {"ranks": [1.0]},
        {"ranks": list(range(MOST_RANKS + 1))},
        {"calls": [0]},
    ],
)
def test_an_account_that_makes_no_sense_is_none(change: dict[str, object]) -> None:
    assert from_account({**ACCOUNT, **change}) is None


def test_texts_of_an_account_neither_grow_nor_command_the_terminal() -> None:
    hostile = "\x1b[2J" + "x" * 9999
    blame = from_account({"how": "mismatch", "ranks": [], "op": hostile, "calls": {"1": hostile}})
    assert blame is not None
    for text in (blame.op, *blame.calls.values()):
        assert text.isprintable()
        assert len(text) <= 200


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json | st.fixed_dictionaries({"how": st.just("lost"), "ranks": json, "calls": json}))
def test_no_account_is_an_error(document: object) -> None:
    blame = from_account(document)
    assert blame is None or isinstance(blame, Suspect)


@given(st.lists(st.text()))
def test_no_words_are_an_error(texts: list[str]) -> None:
    assert from_words(texts) is None or isinstance(from_words(texts), Suspect)


def test_long_words_do_not_take_long() -> None:
    """A pattern that takes more than linear time would need minutes for these."""
    for piece in ("rank 1", "ranks disagree", "timed out after 1 s ", "a ", "[1, ", "Rank 1 is "):
        from_words([piece * 20_000])
