"""No rank can write its part; all tell of all, and the first one at another place.

nproc: 2
culprit: none
kind: exception
hint: rank
seconds: 30
"""

import json

import numpy as np

import torsh_runtime as tr


class SaveError(Exception):
    pass


def own_part() -> bool:
    try:
        json.dumps({"weights": np.ones(3)})
    except TypeError:
        return False
    return True


def save() -> None:
    failed = np.zeros(tr.get_world_size())
    failed[tr.get_rank()] = not own_part()
    tr.all_reduce(failed)
    ranks = np.flatnonzero(failed).tolist()
    if ranks and tr.get_rank() == 0:
        raise SaveError(f"parts of ranks {ranks} failed")
    if ranks:
        raise SaveError(f"parts of ranks {ranks} failed")


tr.init_process_group(timeout=10)
save()
