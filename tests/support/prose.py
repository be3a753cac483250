"""Finds long sentences and old vocabulary in the guides, and exits with 1 if there are any.

python tests/support/prose.py                 checks the guides in DONE
python tests/support/prose.py docs/rpc.md …   checks these, and prints how many words each has

A sentence of a guide has at most 30 words. Code, tables and headings are not prose.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST = 30
"""Words of a sentence; code between backticks counts as one."""

DONE = (
    "README.md",
    "docs/accelerate.md",
    "docs/architecture.md",
    "docs/backends.md",
    "docs/checkpoints.md",
    "docs/clusters.md",
    "docs/collectives.md",
    "docs/compression.md",
    "docs/configuration.md",
    "docs/context-parallel.md",
    "docs/dask.md",
    "docs/data-parallel.md",
    "docs/debugging.md",
    "docs/decisions/0001-keeper.md",
    "docs/decisions/0002-dependencies.md",
    "docs/decisions/0003-store-port.md",
    "docs/decisions/0004-worker-start-hook.md",
    "docs/decisions/0005-nccl-bindings.md",
    "docs/decisions/0006-etcd-client.md",
    "docs/decisions/0007-backward-passes.md",
    "docs/decisions/0008-shared-arrays.md",
    "docs/decisions/0009-groups-in-memory.md",
    "docs/decisions/0010-jobs-over-ssh.md",
    "docs/decisions/0011-rendered-files.md",
    "docs/decisions/0012-standbys.md",
    "docs/decisions/0013-early-notice.md",
    "docs/decisions/0014-remote-calls.md",
    "docs/decisions/0015-wheels.md",
    "docs/decisions/0016-one-node.md",
    "docs/decisions/0017-site.md",
    "docs/decisions/index.md",
    "docs/deepspeed.md",
    "docs/doctor.md",
    "docs/elastic.md",
    "docs/recovery.md",
    "docs/etcd.md",
    "docs/events.md",
    "docs/experts.md",
    "docs/failures.md",
    "docs/glossary.md",
    "docs/gpus.md",
    "docs/guides.md",
    "docs/help.md",
    "docs/horovod.md",
    "docs/index.md",
    "docs/mesh.md",
    "docs/metrics.md",
    "docs/monitoring.md",
    "docs/mpirun.md",
    "docs/nn.md",
    "docs/nodes.md",
    "docs/output.md",
    "docs/performance.md",
    "docs/pipeline-parallel.md",
    "docs/placement.md",
    "docs/ray.md",
    "docs/render.md",
    "docs/rpc.md",
    "docs/security.md",
    "docs/sharded-data-parallel.md",
    "docs/shim.md",
    "docs/simulation.md",
    "docs/ssh.md",
    "docs/standbys.md",
    "docs/start/ddp.md",
    "docs/start/failure.md",
    "docs/start/first-job.md",
    "docs/start/fsdp.md",
    "docs/start/install.md",
    "docs/start/two-nodes.md",
    "docs/support.md",
    "docs/tensor-parallel.md",
    "docs/torch.md",
    "docs/torchrun-compatibility.md",
    "docs/torshctl.md",
    "docs/troubleshooting.md",
    "docs/verification.md",
    "examples/README.md",
)
"""Guides without faults, relative to the root of the repository, in alphabetical order."""

OLD = (
    "by itself is", "comes about", "for there", "goes on", "go on behind", "has to do with",
    "in vain", "is said of", "is told of", "is told by", "is what", "let go of", "lets go of",
    "lies in", "nobody else's", "of such", "of which", "of whom", "on behalf", "so many",
    "stands for itself", "stands in", "such as are", "that what", "tells of", "told of",
    "wants to be", "what is there", "whatever size", "whoever", "with what", "in common",
    "another number of", "besides that", "each of its own",
)  # fmt: skip
"""Turns of phrase of the old vocabulary, in lower case; see docs/glossary.md for the new one."""


def main(arguments: list[str]) -> int:
    """Check the guides that are named, or those in DONE, and return the exit code."""
    paths = [Path(name) for name in arguments] or [ROOT / name for name in DONE]
    found = [fault for path in paths for fault in faults_in(path)]
    print(*found, sep="\n", end="\n" if found else "")
    if arguments:
        for path in paths:
            print(f"{path}: {len(prose(path.read_text()).split())} words")
    return 1 if found else 0


def faults_in(path: Path) -> Iterator[str]:
    """Give a line for each long sentence, and for each old turn of phrase."""
    for paragraph in prose(path.read_text()).split("\n\n"):
        text = " ".join(paragraph.split())
        for sentence in re.split(r"(?<=[.!?:;])[)*\"']*\s+", text):
            if (words := len(sentence.split())) > LONGEST:
                yield f"{path.name}: {words} words: {sentence[:120]}"
        for phrase in OLD:
            if re.search(rf"\b{phrase}\b", text, re.IGNORECASE):
                at = text.lower().index(phrase)
                yield f"{path.name}: '{phrase}': …{text[max(0, at - 40) : at + 60]}…"


def prose(text: str) -> str:
    """Return the paragraphs and list items of a page, without code, tables, headings and marks."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^<.*?>$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(\||#|!!!|\?\?\?).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n", text, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
