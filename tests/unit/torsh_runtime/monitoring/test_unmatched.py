"""Messages whose other end was not called, from recordings."""

from __future__ import annotations

from collections.abc import Sequence

from torsh_runtime.monitoring.flight import in_words, suspicions
from torsh_runtime.monitoring.layout import Operation
from torsh_runtime.monitoring.unmatched import unmatched


class Rank:
    """A recording that grows."""

    def __init__(self, size: int = 2, group: int = 0) -> None:
        self.held: list[Operation] = []
        self._size, self._group = size, group

    def __call__(
        self,
        operation: str,
        root: int = -1,
        sequence: int = 0,
        state: str = "done",
        *,
        in_background: bool = False,
        awaited: int | None = None,
    ) -> Rank:
        number = len(self.held)
        left = None if state == "running" else number + 0.5
        self.held.append(
            Operation(
                number=number,
                operation=operation,
                dtype="float32",
                reduction="SUM",
                elements=8,
                nbytes=32,
                root=root,
                arrays=0,
                group=self._group,
                ranks=self._size,
                sequence=sequence,
                state=state,
                entered=float(number),
                came=None,
                left=left,
                in_background=in_background,
                awaited=awaited,
            )
        )
        return self


def found(*ranks: Rank, members: dict[int, Sequence[int]] | None = None) -> list[tuple[int, int]]:
    records = {rank: each.held for rank, each in enumerate(ranks)}
    return [(each.rank, each.peer) for each in unmatched(records, members or {})]


def test_a_receive_whose_message_was_never_sent() -> None:
    receiver = Rank()("recv", 0, 1)("recv", 0, state="running")
    assert found(Rank()("send", 1, 1), receiver) == [(1, 0)]
    assert found(Rank()("send", 1, 1)("send", 1, 2), receiver) == []
    assert found(Rank(), receiver) == [(1, 0)]


def test_receives_that_wait_behind_each_other() -> None:
    receiver = Rank()("recv", 0, 0, "running", in_background=True)("recv", 0, 0, "running")
    assert found(Rank()("send", 1, 1), receiver) == [(1, 0)]
    assert found(Rank()("send", 1, 1)("send", 1, 2), receiver) == []


def test_what_goes_on_by_itself_is_no_suspect_until_somebody_waits_for_it() -> None:
    receiver = Rank()("recv", 0, 0, "running", in_background=True)
    assert found(Rank(), receiver) == []
    assert found(Rank(), receiver("wait", 0, 0, "running", awaited=0)) == [(1, 0)]


def test_a_send_that_nobody_receives() -> None:
    sender = Rank()("send", 1, 1)("send", 1, 2, "running")
    assert found(sender, Rank()("recv", 0, 1)) == [(0, 1)]
    assert found(sender, Rank()("recv", 0, 1)("recv", 0, 2)) == []
    assert found(sender, Rank()("recv", 0, 1)("recv", -1, 0, "running")) == []


def test_groups_whose_members_are_unknown_accuse_nobody() -> None:
    def rank() -> Rank:
        return Rank(2, group=5)

    waiting = rank()("recv", 0, 0, "running")
    assert found(Rank(3), rank(), waiting) == []
    assert found(Rank(3), rank(), waiting, members={5: (1, 2)}) == [(2, 1)]
    assert found(Rank(3), rank(), waiting, members={5: (7, 2)}) == []
    assert found(Rank(3), rank(), waiting, members={5: (0, 1)}) == []


def test_who_never_sent_is_named_in_words() -> None:
    receiver = Rank()("recv", 0, state="running")
    records = {0: Rank()("all_reduce", sequence=1).held, 1: receiver.held}
    (told,) = suspicions(records)
    assert in_words(told, 9.0) == (
        "rank 0 never called send for recv(float32[8], from 0) of the default group; rank 1 waits "
        "in it since 9.0 s; rank 0 was last in all_reduce(float32[8], SUM) #1 of the default "
        "group, 8.5 s ago"
    )


def test_messages_do_not_disturb_the_order_of_collectives() -> None:
    one = Rank()("all_reduce", sequence=1)("send", 1, 1)("wait", sequence=1)
    other = Rank()("recv", 0, 1)("all_reduce", sequence=1)("batch", sequence=1)
    one("all_reduce", sequence=2, state="running")
    (told,) = suspicions({0: one.held, 1: other.held})
    assert (told.kind, told.ranks, told.operation.sequence) == ("missing", (1,), 2)
