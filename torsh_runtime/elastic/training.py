"""Gives the steps of a training that goes on without restarts when workers are lost."""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.contract import JOINED, REPLACEMENT
from torsh_runtime.elastic.hashes import Checks, tell
from torsh_runtime.elastic.healing import Holding, heal, hold
from torsh_runtime.elastic.parts_of_job import Parts, described
from torsh_runtime.elastic.rounds import Rounds
from torsh_runtime.elastic.step import LOST, Step
from torsh_runtime.errors import (
    CheckpointError,
    CommAborted,
    CommError,
    ConfigError,
    StateCorrupted,
    StoreError,
    TorshError,
)
from torsh_runtime.job_group import JobGroup

_NOTHING = -1
"""In place of the step, for a rank that has no whole state; of the total, before steps()."""
_LOST_IN_MEETING = (CommError, StoreError)
"""The errors with which ranks fail to meet if one more is lost: some hear of it from a peer, which
gives up joining for that, before they hear of it from their agent."""
_TOTAL = (
    "The number of all steps is the same in a replacement if it does not depend on what is left of "
    "an epoch: take len(sampler), not len() of a loader"
)


class Training:
    """Gives the steps of a training, each until all ranks have committed it; join() returns it.

    Example:
        ```python
        job = tr.elastic.join(model=model, optimizer=optimizer, sampler=sampler)
        print("begins at step", job.number)
        for step in job.steps(1000):
            train(step)
        ```
    """

    def __init__(
        self,
        parts: Parts,
        group: ProcessGroup | None,
        seed: int,
        rounds: Rounds | None,
        checks: Checks,
    ) -> None:
        """Hold the parts. `rounds` is None if nobody replaces lost workers."""
        self._parts, self._group, self._seed, self._rounds = parts, group, seed, rounds
        self._checks = checks
        self._pid = os.getpid()
        if rounds is not None and isinstance(group, JobGroup):
            group.recovers()
        self.number = 0
        """The number of the next step that is to be committed."""
        self._longest = 0.0
        """Seconds of the longest step."""
        self._is_whole = False
        """Whether this rank has the whole state of the steps before `number`."""
        self._is_met_anew = False
        """Whether no step was committed since the ranks have met after a loss."""
        self._has_met_anew = False
        """Whether the ranks have ever met after a loss."""
        self._begun: list[tuple[int, Mapping[str, Any]]] = []
        """The last two steps, with the states of parts with which they have begun."""
        self._ends_round = False
        """Whether all ranks have agreed, at the last commit, that the round ends with it."""
        self._total = _NOTHING
        """The number of all steps, once steps() was called."""
        if rounds is not None:
            parts.protect()

    @property
    def rank(self) -> int:
        """Return this process's rank; 0 without a process group."""
        return 0 if self._group is None else self._group.rank

    def steps(self, total: int) -> Iterator[Step]:
        """Yield the steps that are left, and each again until it is committed.

        Afterwards, the loss of a worker ends the others, as without join().

        Args:
            total: The number of steps of the whole training.

        Raises:
            ConfigError: For a step that was neither committed nor lost, and for a second call.

        Example:
            ```python
            for step in job.steps(1000):
                with step:
                    loss(model(step.next(sampler))).backward()
                    step.commit()
            ```
        """
        if self._total != _NOTHING:
            raise ConfigError(
                f"rank {self.rank}: steps() was called before: call it once, with the number of "
                f"steps of all epochs together"
            )
        if total < self.number:
            raise ConfigError(
                f"rank {self.rank}: steps() was called for {total} steps, and {self.number} are "
                f"committed already: {_TOTAL}"
            )
        self._total = total
        self._parts.guard()
        step: Step | None = None
        is_through = False
        try:
            while True:
                while self.number < total:
                    step = Step(self, self.number)
                    yield step
                    step.check_entered()
                    if step.is_lost:  # what followed its block follows the repeated one again
                        self._parts.go_back()
                    self._end_round_if_agreed()
                if self._all_are_through():
                    is_through = True
                    return
        finally:
            self._parts.forget()
            has_failed = step is not None and step.has_failed
            is_here = os.getpid() == self._pid
            if self._rounds is not None and is_here and not has_failed:  # or its end is a loss
                self._rounds.leave(is_early=not is_through)
            self._rounds = None

    def _end_round_if_agreed(self) -> None:
        """Go on in the next round, if all ranks have agreed that this one ends here."""
        if self._ends_round:
            self.recover(
                CommAborted(
                    f"rank {self.rank}: all ranks leave the round after step {self.number - 1}, as "
                    f"an agent wants, and this rank's agent has not said that it is over"
                )
            )

    def begin(self) -> None:
        """Begin with the state as it is, which is the same on all ranks."""
        self._is_whole = True
        if self._rounds is not None:
            self.number = self._parts.begin()
            self._rounds.follow()
            self._rounds.join(is_fixed=self._parts.is_fixed)

    def replace(self) -> None:
        """Take the place of a lost worker, with the state of the others."""
        assert self._rounds is not None
        self._rounds.enter()
        self._rounds.follow()
        try:
            self._meet(self._rounds)
        except _LOST_IN_MEETING as lost:
            self.recover(lost)
        os.environ[REPLACEMENT] = JOINED  # its next default groups are made as the others'
        self._rounds.join(is_fixed=self._parts.is_fixed)

    def recover(self, lost: TorshError) -> None:
        """Go back to the last commit, with the other ranks, in the next round if one was lost.

        Raises `lost` if the round is not over, as after an abort() of the program's own, and if
        the state is corrupt and not to be healed, and in a forked child, which is no rank.
        """
        if os.getpid() != self._pid:  # what speaks to the agent is its parent's
            raise lost
        try:
            if isinstance(lost, StateCorrupted):
                self._heal_corrupted(lost)
                return
        except LOST as again:
            lost = again
        rounds = self._rounds
        if rounds is None:
            raise lost
        while True:
            rounds.next(lost, self._longest)
            traceback.clear_frames(lost.__traceback__)  # their arrays' memory is used again
            try:
                self._meet(rounds)
                return
            except _LOST_IN_MEETING as again:
                lost = again

    def _heal_corrupted(self, found: StateCorrupted) -> None:
        """Give the ranks whose state is corrupt that of the others; raise the error if that is not
        to be."""
        self._leave_out_corrupted(found)
        group = self._group
        assert group is not None
        own = self._hold(group)
        self._parts.drop_progress()
        self._heal(own, found.healthy)

    def _leave_out_corrupted(self, found: StateCorrupted) -> None:
        """Tell of the ranks whose state is corrupt, and count them as having none."""
        if self.rank == found.ranks[0]:
            tell(found, self._rounds)
        if not found.healthy:
            raise found
        self._is_whole = self.rank in found.healthy

    def _meet(self, rounds: Rounds) -> None:
        group = self._group
        assert isinstance(group, JobGroup)
        self._ends_round = False
        own = self._hold(group)
        former = group.rank, group.world_size
        rank, size = rounds.rank, rounds.world_size
        group.meet_again(rounds.number, self._parts.begin_anew, rank, size)
        self._parts.divide_anew(former)
        held = group.all_gather_numbers(
            np.array([self.number if self._is_whole else _NOTHING], np.int64)
        )[:, 0].tolist()
        newest = max(held)
        if newest == _NOTHING:
            raise CheckpointError(
                "no rank is left that has the whole state of the training: start the job again "
                "from a checkpoint"
            )
        whole = [rank for rank, number in enumerate(held) if number == newest]
        if self._is_whole:  # once more: what was under way has ended by now
            self._parts.go_back()
        if (found := self._checks.compare_held(group, newest, whole, own)) is not None:
            self._leave_out_corrupted(found)
            whole = [*found.healthy]
        self._parts.share_anew()
        if len(whole) < size:
            self._is_whole = rank in whole  # what is being filled is empty until it is complete
        self._parts.restore_shards(newest, self._is_whole)
        self._heal(own, whole)
        self.number = newest
        self._parts.begin_to_protect(newest)

    def _heal(self, own: Holding | None, whole: Sequence[int]) -> None:
        """Give all ranks the state of those that are whole. own: that state, on these ranks."""
        group = self._group
        assert group is not None
        healing = [rank for rank in range(group.world_size) if rank not in whole]
        if healing:
            heal(group, self._parts.alike, own if self._is_whole else None, whole, healing)
        if not self._is_whole:
            self._parts.forget()
        self._parts.keep()
        self._is_whole = self._is_met_anew = self._has_met_anew = True

    def _hold(self, group: ProcessGroup) -> Holding | None:
        """Go back to the last commit and return that state; None if this rank has no whole one.

        It takes its checksums before the ranks connect, while a replacement is still starting.
        """
        if not self._is_whole:
            return None
        self._parts.go_back()
        return hold(self._parts.alike, Ranks(group))

    def begin_step(self) -> None:
        """Remember the state, and seed the generators for this step of this rank."""
        self._parts.keep()
        self._parts.protect_alike(self.number)
        before = [each for each in self._begun if each[0] != self.number]
        self._begun = [*before[-1:], (self.number, self._parts.states())]
        self._checks.begin(self.number)
        given = np.random.SeedSequence((self._seed, self.number, self.rank))
        first, second = (int(each) for each in given.generate_state(2, np.uint32))
        random.seed(first)
        np.random.seed(second)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(first << 32 | second)
        if "torsh_runtime.nn" in sys.modules:
            sys.modules["torsh_runtime.nn"].manual_seed(first << 32 | second)

    def next_batch(self, loader: Any) -> Any:
        """Return the next batch of a loader; see Step.next()."""
        return self._parts.batches.next(loader)

    def commit(self) -> None:
        """Agree with all ranks that the step is done, and only then change the state.

        Nothing communicates after the vote, so whoever has passed it completes the step. A rank
        that has not, though another has, is behind by this step when the ranks meet again.
        """
        self._parts.agree_on_buffers()
        self._parts.prepare_commit(self.number)
        group = self._group
        if group is not None:
            own = [self.number, self._checks.checksum()]
            own += [self._total if self._is_met_anew else 0, self._digest()]
            everyones = group.all_gather_numbers(np.array([*own, self._wishes_end()], np.int64))
            votes, wishes = everyones[:, :-1], everyones[:, -1]
            voted, checksums, totals, _ = votes.T.tolist()
            if len({*voted}) > 1:
                raise ConfigError(
                    f"ranks commit different steps: {', '.join(map(str, voted))}, by rank. All "
                    f"ranks must take the same steps"
                )
            if len({*totals}) > 1:
                raise ConfigError(
                    f"after the loss of a worker ranks were given other numbers of steps: "
                    f"{', '.join(map(str, totals))}, by rank. {_TOTAL}"
                )
            self._checks.compare(group, self.number, checksums)
            if (votes != votes[0]).any():
                raise ConfigError(
                    "after the loss of a worker ranks have parts of different states, such as a "
                    "schedule, or other options of optimizers, such as a learning rate. Change "
                    "schedules directly after step.commit(), within the block and before it "
                    "communicates. Compute learning rates from tr.get_world_size() in the step, "
                    "not from a number of ranks that was read before the loop"
                )
            if self._is_met_anew and isinstance(group, JobGroup):
                group.settle()
            self._ends_round = bool(wishes.any())
        self._is_whole = self._is_met_anew = False
        self._parts.step()
        self._parts.forget()
        self.number += 1
        self._is_whole = True
        self._parts.begin_to_protect(self.number)

    def _wishes_end(self) -> bool:
        """Return whether the agent here wants the round to end at a commit."""
        return self._rounds is not None and self._rounds.ends_at_commit

    def _digest(self) -> int:
        """Return a checksum of what ranks may have differently after they have met anew; 0 before.
        Options are part of it in each step, as a replacement may compute others than its peers."""
        if not self._has_met_anew:
            return 0
        return self._parts.digest(with_states=self._is_met_anew)

    def check_complete(self) -> None:
        """Raise ConfigError if a part would miss a change, as its block was left after its commit
        and before what changes it."""
        if len(self._begun) < 2:
            return
        (_, before), (number, begun) = self._begun
        now = self._parts.states()
        for name, state in begun.items():
            as_begun = described(state)
            if described(before[name]) != as_begun == described(now[name]):
                raise ConfigError(
                    f"rank {self.rank}: a worker was lost after the commit of step {number} and "
                    f"before {name!r} was changed, which a replacement would miss: change it "
                    f"directly after step.commit(), before anything communicates"
                )

    def note_time(self, seconds: float) -> None:
        """Note how long a step took."""
        self._longest = max(self._longest, seconds)

    def _all_are_through(self) -> bool:
        """Return whether no rank needs this one any more, and all have the same state."""
        if self._group is None:
            return True
        try:
            self._checks.compute()
            own = np.array([self._checks.checksum(), self._wishes_end()], np.int64)
            checksums, wishes = self._group.all_gather_numbers(own).T.tolist()
            self._checks.compare(self._group, self.number, checksums)
            self._ends_round = any(wishes)
            if self._ends_round:  # new workers may take the last steps anew, and need these ranks
                self._end_round_if_agreed()
                return False
        except (*LOST, StateCorrupted) as lost:
            self.recover(lost)
            return False
        return True
