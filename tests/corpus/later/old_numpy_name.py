"""Code for numpy 1: np.float_ is gone in numpy 2.

nproc: 3
culprit: none
kind: version | exception
hint: numpy|np.float_|AttributeError
seconds: 60
"""

import numpy as np

import torsh_runtime as tr


def mean_std(features):
    features = np.asarray(features, dtype=np.float_)
    n = np.array([len(features)], np.float64)
    total, squares = features.sum(0), (features**2).sum(0)
    for part in (n, total, squares):
        tr.all_reduce(part)
    mean = total / n
    return mean, np.sqrt(squares / n - mean**2)


def main():
    tr.init_process_group(timeout=30)
    rng = np.random.default_rng(tr.get_rank())
    mean, std = mean_std(rng.normal(3, 2, (1000, 4)))
    if tr.get_rank() == 0:
        print(mean, std)


main()
