"""The job's arguments come from an older script: there is no --fp16 any more.

nproc: 2
culprit: none
kind: usage
hint: arguments|usage|exit code 2|exited with 2
seconds: 30
"""

import argparse
import shlex

import numpy as np

import torsh_runtime as tr

COMMAND_LINE = "--epochs 3 --lr 0.1 --fp16"


def parse(line):
    parser = argparse.ArgumentParser(prog="finetune")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    return parser.parse_args(shlex.split(line))


def main(args):
    tr.init_process_group()
    for _ in range(args.epochs):
        grad = np.ones(4) * args.lr
        tr.all_reduce(grad)
    tr.destroy_process_group()


if __name__ == "__main__":
    main(parse(COMMAND_LINE))
