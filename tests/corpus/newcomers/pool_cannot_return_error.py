"""A task of rank 1's pool raises an exception that cannot be unpickled, and map() never returns.

nproc: 2
culprit: 1
kind: stuck | exception
hint: all_reduce|pool|wait
seconds: 60
"""

import multiprocessing

import numpy as np

import torsh_runtime as tr


class TokenError(Exception):
    def __init__(self, token, position):
        super().__init__(f"token {token!r} at {position} is not in the vocabulary")


TEXTS = {0: ["a b", "b a", "c", "a c"], 1: ["a", "b c", "a é", "c"]}


def tokenize(text):
    ids = []
    for position, token in enumerate(text.split()):
        if token not in "abc":
            raise TokenError(token, position)
        ids.append("abc".index(token))
    return ids


def main():
    tr.init_process_group(timeout=10)
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        ids = pool.map(tokenize, TEXTS[tr.get_rank()], chunksize=1)
    total = np.array([sum(map(sum, ids))])
    tr.all_reduce(total)
    print(total)
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
