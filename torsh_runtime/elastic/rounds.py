"""Tells the agent where this worker stands in a job that recovers without restarts, and hears from
it which round is over."""

from __future__ import annotations

import json
import os
import threading

from torsh_runtime.contract import AT_COMMIT, FIXED, LEFT_EARLY, RECOVERY
from torsh_runtime.errors import PeerLost, StateCorrupted, StoreError, StoreTimeout, TorshError
from torsh_runtime.job import Job
from torsh_runtime.job_group import JobGroup
from torsh_runtime.status import own_page

_ABORT_AGAIN = 0.05
"""Seconds until the group is aborted again, as long as this rank has not left it."""
_REQUEST = 3600.0
"""Seconds of a single wait for the agent, which is repeated without end."""


class Rounds:
    """Follows the rounds of the default group for its worker.

    A thread waits for the end of the present round, and then aborts the group until the worker has
    left it: a rank that waits for another, or for a replacement, stops waiting.
    """

    def __init__(self, group: JobGroup, job: Job) -> None:
        """Begin in the round in which this process was started."""
        self._group, self._store = group, job.client.scoped(RECOVERY)
        self._me = f"{job.env.round}/{job.env.local_rank}"
        self._local_rank = job.env.local_rank
        self.number = job.env.round
        self.rank, self.world_size = job.env.rank, job.env.world_size
        """This worker's rank and the number of ranks in round `number`."""
        self._ending = -1
        """The last round that was to end at a commit."""
        self._left = threading.Event()
        self._leaving = threading.Lock()
        """Held while the group is aborted, and when the round is left."""

    def follow(self) -> None:
        """Listen for the end of the present round."""
        self._left = threading.Event()
        run = threading.Thread(
            target=self._listen, args=(self.number, self._left), name="torsh-rounds", daemon=True
        )
        run.start()

    @property
    def ends_at_commit(self) -> bool:
        """Return whether the agent wants the present round to end at a commit."""
        return self._ending == self.number

    def join(self, *, is_fixed: bool) -> None:
        """Tell the agent that this worker can go on without others, and has a whole state.

        Args:
            is_fixed: Whether it can only go on among as many ranks as there are.
        """
        self._store.put(f"joined/{self._me}", FIXED if is_fixed else b"")

    def enter(self) -> None:
        """Wait, in a replacement, until its round is formed: it is started before the others have
        left the last one. The wait has no limit, like that of next().
        """
        self._say("waits until the others have left the last round")
        self._take_place(self._wait(f"round/{self.number}"))
        self._say("")

    def leave(self, *, is_early: bool) -> None:
        """Tell the agent that the loss of a worker ends this one from now on, as in other jobs.

        Args:
            is_early: Whether this worker did not take all steps, so that others may wait for it.
        """
        self._leave_round()
        self._store.put(f"left/{self._me}", LEFT_EARLY if is_early else b"")

    def refuse(self) -> None:
        """Tell the agent that this process is about to end, and would after each restart."""
        self._store.put(f"refused/{self._me}", b"")

    def note_corrupted(self, found: StateCorrupted) -> None:
        """Tell the agent which ranks have a corrupt state, and whether they are healed."""
        facts = {
            "step": found.step,
            "ranks": found.ranks,
            "hosts": found.hosts,
            "part": found.part,
            "sequel": "healed" if found.healthy else "ended",
            "certain": found.has_majority,
        }
        self._store.put(f"corrupted/{self._me}", json.dumps(facts).encode())

    def next(self, lost: TorshError, longest: float) -> None:
        """Leave the present round, which has to be over, and wait until the next one is formed.

        The wait for it has no limit: the agent forms it or ends this process. Raises `lost` if the
        round is not over, and PeerLost if a rank has ended well, so that none follows.

        Args:
            lost: The error with which the round ended here.
            longest: The seconds of this worker's longest step, by which the agent judges how long
                other workers may take to notice.
        """
        self._say("waits to hear that the round is over")
        try:
            key = f"over/{self.number}"
            exited = self._store.wait([key], float(self._wait("notice")))[key].value
        except StoreTimeout:
            raise lost from None
        if exited not in (b"", AT_COMMIT):
            how = "it has ended with exit code 0 before the last step, so it is not replaced"
            raise PeerLost(int(exited), "elastic.join()", 0, how) from lost
        self._leave_round()
        self._store.put(f"parked/{self.number}/{self._local_rank}", f"{longest:.3f}".encode())
        self._say("parked: waits for the next round")
        self.number += 1
        self._take_place(self._wait(f"round/{self.number}"))
        self._say("")
        self.follow()

    def _take_place(self, places: bytes) -> None:
        """Take this worker's place in the round, of those that the agent has written."""
        own = json.loads(places)[self._local_rank]
        os.environ.update(own)
        self.rank, self.world_size = int(own["RANK"]), int(own["WORLD_SIZE"])

    def _wait(self, key: str) -> bytes:
        while True:
            try:
                return self._store.wait([key], _REQUEST)[key].value
            except StoreTimeout:
                continue

    def _listen(self, number: int, left: threading.Event) -> None:
        try:
            over = self._wait(f"over/{number}")
            if over == AT_COMMIT:
                self._ending = number
                self._wait(f"now/{number}")
            elif over:
                return  # a rank has ended well: who needed it notices, and others may be through
        except StoreError:
            return  # the agent is gone, and this process with it
        while self._abort(left):
            left.wait(_ABORT_AGAIN)

    def _abort(self, left: threading.Event) -> bool:
        """Abort the group, unless this rank has left the round; return whether it has not."""
        with self._leaving:
            if not left.is_set():
                self._group.abort_all()
            return not left.is_set()

    def _leave_round(self) -> None:
        """Have no group aborted from now on: the next ones belong to another round."""
        with self._leaving:
            self._left.set()

    def _say(self, doing: str) -> None:
        page = own_page()
        if page is not None:
            page.note_doing(doing)
