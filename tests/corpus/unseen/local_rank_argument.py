"""The script wants --local-rank as an argument, as launchers once gave it.

nproc: 2
culprit: none
kind: usage | exit_code
hint: argument|local.rank|usage|exit code 2
needs: torch
seconds: 40
"""

from argparse import ArgumentParser

import torch.distributed as dist


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("--local-rank", "--local_rank", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    print(args.local_rank)
    dist.barrier()


main()
