"""The contract of backends as functions of a backend, which every rank of a world runs.

They are no tests of pytest's, so that the ranks may also be processes of mpiexec.
"""

from __future__ import annotations

from support.suite import asynchronous, ending, messages, moving, objects, reducing
from support.suite.cases import Case

CASES: dict[str, Case] = {
    case.name: case
    for module in (reducing, moving, messages, objects, asynchronous, ending)
    for case in module.SUITE.cases
}
"""Every case by name."""
FATAL_CASES = {"a_killed_rank_is_named": Case("", ending.a_killed_rank_is_named, 2, True)}
"""Those that a rank does not survive."""
