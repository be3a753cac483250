"""Rank 2 exchanges its tokens with the counts of the step before.

nproc: 3
culprit: 2
kind: mismatch
hint: all_?to_?all
needs: torch
seconds: 60
"""

from datetime import timedelta

import torch
import torch.distributed as dist

# tokens that each rank sends to each rank, for two steps
ROUTED = [
    [[2, 2, 2], [2, 2, 2], [2, 2, 2]],
    [[1, 3, 2], [2, 1, 3], [3, 2, 1]],
]


class Dispatcher:
    def __init__(self, rank, refresh):
        self.rank, self.refresh, self.received = rank, refresh, None

    def exchange(self, tokens, counts):
        sent = counts[self.rank]
        if self.received is None or self.refresh:
            self.received = [row[self.rank] for row in counts]
        out = tokens.new_empty(sum(self.received), tokens.shape[1])
        dist.all_to_all_single(out, tokens, self.received, sent)
        return out


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank = dist.get_rank()
    dispatcher = Dispatcher(rank, refresh=rank != 2)
    for counts in ROUTED:
        tokens = torch.full((sum(counts[rank]), 4096), float(rank))
        print(dispatcher.exchange(tokens, counts).mean().item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
