"""A rule of the configuration includes itself.

culprit: 0 1
kind: exception
hint: exit code 1|exitcode +: 1
"""

import numpy as np

import torsh_runtime as tr

RULES = {"base": "large", "large": "base"}


def resolve(name: str) -> str:
    return resolve(RULES[name])


def main() -> None:
    tr.init_process_group(timeout=30)
    resolve("base")
    tr.all_reduce(np.ones(4))


main()
