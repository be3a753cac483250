"""Workers whose every line is numbered and marked, so that none can be torn or lost unseen."""

from __future__ import annotations

import re

OWN_CODE = 42
"""What a worker that fails by itself exits with."""

# Takes as JSON: seconds to run (0: for ever), lines and the pause between them, whether to leave a
# process that nothing but the keeper finds, the ranks that ignore SIGTERM, whether rank 1 fails the
# first time. Each line is one write, which a pipe takes whole or not at all.
WORKER = r"""
import json, os, random, signal, sys, time
plan = json.loads(sys.argv[1])
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORSH_ROUND"])
if rank in plan["stubborn"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if plan["daemon"] and os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 100)
        time.sleep(600)
    os._exit(0)
end = time.monotonic() + (plan["seconds"] or 600)
chance = random.Random(rank)
for number in range(plan["lines"]):
    for fd, name in ((1, "stdout"), (2, "stderr")):
        text = "x" * min(3900, int(chance.expovariate(0.01)))
        os.write(fd, f"\1{name} {rank} {attempt} {number} {len(text)} {text}\2\n".encode())
    time.sleep(plan["pause"])
time.sleep(max(0, end - time.monotonic()))
os._exit(42 if plan["fails"] and (rank, attempt) == (1, 0) else 0)
"""

QUOTED = b"  | "
"""What lines begin with in which the agent's report shows a worker's last words."""

Counts = dict[tuple[str, int, int], int]
"""How many lines there are, by stream, rank and attempt."""


def count_lines(data: bytes, prefix: bytes, cut: bool) -> Counts:
    """How many lines there are of each stream, rank and attempt. Each must be whole, behind its
    prefix and in its place; with `cut` the last one may end early.
    """
    counts: Counts = {}
    *lines, rest = data.split(b"\n")
    assert cut or b"\1" not in rest, f"cut: {rest[:100]!r}"
    for line in lines:
        if line.startswith(QUOTED) or (b"\1" not in line and b"\2" not in line):
            continue  # the agent's own, or a traceback
        found = re.fullmatch(rb"(.*)\x01(\w+) (\d+) (\d+) (\d+) (\d+) (x*)\x02", line)
        assert found, f"torn: {line[:100]!r} .. {line[-100:]!r}"
        stream, numbers = found[2].decode(), [int(found[group]) for group in (3, 4, 5, 6)]
        rank, attempt, number, length = numbers
        assert re.fullmatch(prefix.replace(b"%d", b"%d" % rank), found[1]), found[1]
        assert length == len(found[7]), f"torn: {line[:100]!r}"
        key = (stream, rank, attempt)
        assert number == counts.get(key, 0), f"{key}: {number} instead of {counts.get(key, 0)}"
        counts[key] = number + 1
    return counts
