"""Finds docstrings that break the house's rules, and exits with 1 if there are any.

python tests/support/docstrings.py                  checks the folders in DONE
python tests/support/docstrings.py torshrun/ctl …   checks these folders or files

To add a folder, rewrite its docstrings until the second command prints nothing, then add the
folder's path to DONE, in alphabetical order. If a correct imperative sentence is rejected because
its verb is unknown, add the verb to VERBS.

Rules: a function's docstring begins with an imperative verb. That of a class or a module has at
least four words. These and the strings below attributes begin with none of the words in BANNED.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]

DONE = (
    "torsh_runtime/__init__.py",
    "torsh_runtime/arrays",
    "benchmarks",
    "torsh_runtime/backends",
    "torsh_runtime/bootstrap.py",
    "torsh_runtime/checkpoint",
    "torsh_runtime/closing.py",
    "torsh_runtime/comm",
    "torsh_runtime/compression",
    "torsh_runtime/connections",
    "torsh_runtime/contract.py",
    "torsh_runtime/elastic",
    "torsh_runtime/elastic_worker.py",
    "torsh_runtime/enumerations.py",
    "torsh_runtime/error_file.py",
    "torsh_runtime/errors.py",
    "torsh_runtime/events.py",
    "torsh_runtime/framework",
    "torsh_runtime/framing.py",
    "torsh_runtime/job.py",
    "torsh_runtime/job_group.py",
    "torsh_runtime/launchers.py",
    "torsh_runtime/integrations",
    "torsh_runtime/layout",
    "torsh_runtime/mesh",
    "torsh_runtime/monitoring",
    "torsh_runtime/network_check.py",
    "torsh_runtime/nn",
    "torsh_runtime/numpy_or_cupy.py",
    "torsh_runtime/optim",
    "torsh_runtime/parallel/automatic",
    "torsh_runtime/parallel/context",
    "torsh_runtime/parallel/ddp",
    "torsh_runtime/parallel/dispatch",
    "torsh_runtime/parallel/experts",
    "torsh_runtime/parallel/fsdp",
    "torsh_runtime/parallel/operations",
    "torsh_runtime/parallel/pipeline",
    "torsh_runtime/parallel/regions",
    "torsh_runtime/parallel/state",
    "torsh_runtime/parallel/tensor",
    "torsh_runtime/parallel/verification",
    "torsh_runtime/rpc",
    "torsh_runtime/slurm.py",
    "torsh_runtime/status.py",
    "torsh_runtime/store",
    "torsh_runtime/transitions.py",
    "torshrun/__init__.py",
    "torshrun/__main__.py",
    "torshrun/agent",
    "torshrun/cgroups.py",
    "torshrun/cli.py",
    "torshrun/clusters",
    "torshrun/completion.py",
    "torshrun/composition.py",
    "torshrun/config",
    "torshrun/ctl",
    "torshrun/debugger.py",
    "torshrun/exit_codes.py",
    "torshrun/failure",
    "torshrun/functions",
    "torshrun/health",
    "torshrun/keeper",
    "torshrun/launch_plan.py",
    "torshrun/live",
    "torshrun/procfs.py",
    "torshrun/rendezvous",
    "torshrun/safe_files.py",
    "torshrun/shim",
    "torshrun/signals.py",
    "torshrun/ssh",
    "torshrun/text.py",
    "torshrun/topology",
    "torshrun/workers",
)
"""Folders and files without faults, relative to the root of the repository."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BANNED = _words("""
    all another as by each every everybody from how it its nobody nothing of one or our ours see
    so somebody such that their theirs these they this those till until what whatever when where
    whether which who whoever whom whose why with
""")
"""First words of fragments and relative clauses, in lower case."""

VERBS = _words("""
    abandon abort accept accumulate acknowledge acquire activate adapt add adjust adopt advance
    aggregate agree align allocate allow announce answer append apply arm arrange ask assemble
    assert assign associate assume attach attempt average await
    back balance batch become begin bind blame block bound bracket break bring broadcast buffer
    build bundle
    calculate call cancel cap capture carry cast catch change charge check choose chunk claim
    clamp classify clean clear clip clone close coalesce collapse collect combine commit compare
    compile complain complete compose compress compute concatenate condense configure confirm
    connect consider construct consume continue contribute convert coordinate copy count cover
    create cut cycle
    deactivate debug decide declare decode decompress decorate decrement decrypt deduce defer
    define delay delegate delete deliver dequantize dequeue derive describe deserialize destroy
    detach detect determine diagnose disable discard disconnect discover dismiss dispatch
    display dissolve distribute divide do double download draw drive drop dump duplicate
    emit empty emulate enable encode encrypt end enforce enqueue ensure enter enumerate escape
    establish estimate evaluate evict examine exchange exclude execute exercise exit expand
    expect expire explain export expose extend extract
    fail feed fetch fill filter finalize find finish fire fit fix flag flatten flip flush fold
    follow forbid form force forget fork format forward free freeze fuse
    gather generate get give go grant group grow guarantee guard guess
    halt hand handle hang hash have hear help hide highlight hold honor hook
    identify ignore import include increase increment indent index infer inform inherit
    initialize inject insert inspect install instantiate intercept interpolate interpret
    interrupt introduce invalidate invert invoke issue iterate
    join judge jump
    keep kill
    label launch lay lead leave let lift limit link list listen load locate lock log look loop
    lower
    maintain make manage map mark mask match materialize maximize measure merge migrate mimic
    minimize mirror mix mock model modify monitor mount move multiply
    name narrow negate negotiate nest normalize note notify number
    observe obtain offer offload omit open operate order orthogonalize overlap override
    overwrite own
    pack pad page pair park parse part partition pass patch pause peek perform permute pick
    pickle pin
    ping place plan plant play plot point poll pop populate post postpone predict prefer
    prefetch prefix
    preload prepare prepend present preserve press pretend prevent print probe process produce
    program project promise promote propagate propose protect prove provide prune publish pull
    purge push put
    quantize query queue quit quote
    raise randomize rank rate reach read reap rearrange rebuild recall receive reclaim recognize
    recompute reconfigure reconnect reconstruct record recover recreate redirect redraw reduce
    refer refill refresh refuse register reject rejoin relate relay release reload rely remember
    remove rename render renew reopen reorder repair repeat replace replay replicate reply
    report represent request require rerun rescale reschedule reserve reset reshape reshard
    resize resolve respond restart restore restrict resume retain retire retrieve retry return
    reuse reveal reverse revert revoke rewind rewrite roll rotate round route run
    sample sanitize save say scale scan scatter schedule scrub search seed seek select send
    separate serialize serve set settle shard share shift shorten show shrink shuffle shut sign
    signal simulate skip sleep slice snapshot sort spawn specify spend split spread squeeze
    stack stage stall stamp start state stay step stop store stream stretch strip subdivide
    submit subscribe subtract suggest sum summarize supply support suppress survive suspend swap
    switch synchronize synthesize
    tabulate tag take teach tear tell terminate test throttle throw tie time toggle total touch
    trace track train transfer transform translate transmit transpose traverse treat trigger
    trim truncate try turn
    unblock undo unflatten unify uninstall unload unlock unmap unpack unpark unregister unset
    unshard unsubscribe unwrap update upgrade upload use
    validate verify view visit vote
    wait wake walk warm warn watch weigh widen wire withdraw work wrap write
    yield
    zero
""")
"""Verbs in the imperative, in lower case."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LEAST_WORDS = 4


def main(argv: list[str]) -> int:
    """Print the faults below the paths in `argv`, or in DONE, and return the exit code."""
    paths = [Path(path) for path in argv] or [ROOT / path for path in DONE]
    if missing := [str(path) for path in paths if not path.exists()]:
        print(f"no such folder or file: {', '.join(missing)}", file=sys.stderr)
        return 2
    found = [fault for path in paths for file in _files(path) for fault in faults_in(file)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


def faults_in(file: Path) -> list[str]:
    """Return a line `file:line: docstring: reason` for each faulty docstring of `file`."""
    shown = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    return [
        f"{shown}:{line}: {text.splitlines()[0] if text else '(empty)'}: {reason}"
        for kind, line, text in _docstrings(ast.parse(file.read_text(), str(file)))
        if (reason := fault_of(kind, text))
    ]


def fault_of(kind: str, text: str) -> str:
    """Return why the docstring `text` of a "function", "class", "module" or "attribute" is faulty.

    A correct one gives an empty string.
    """
    words = text.split()
    first = re.sub(r"\W+$", "", words[0]).lower() if words else ""
    if not words:
        return "is empty"
    if first in BANNED or text.lower().startswith("the same"):
        return f"begins with {words[0]!r}"
    if kind == "function" and first not in VERBS:
        return f"{words[0]!r} is no verb in the imperative that VERBS lists"
    if kind in ("class", "module") and len(words) < _LEAST_WORDS:
        return f"has fewer than {_LEAST_WORDS} words"
    return ""


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _docstrings(module: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yield the kind, line and text of each docstring, except those of tests."""
    for node in ast.walk(module):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Module)):
            is_test = isinstance(node, _FUNCTIONS) and node.name.startswith("test_")
            if not is_test and (text := ast.get_docstring(node)) is not None:
                yield _kind(node), node.body[0].lineno, text
        if isinstance(node, (ast.ClassDef, ast.Module)):
            yield from _attributes(node.body)


def _kind(node: ast.AST) -> str:
    if isinstance(node, _FUNCTIONS):
        return "function"
    return "class" if isinstance(node, ast.ClassDef) else "module"


def _attributes(body: list[ast.stmt]) -> Iterator[tuple[str, int, str]]:
    for before, node in pairwise(body):
        if isinstance(before, (ast.Assign, ast.AnnAssign)) and isinstance(node, ast.Expr):
            value = node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield "attribute", node.lineno, value.value.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
