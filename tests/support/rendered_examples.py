"""The rendered examples in configs/, made from configs/cluster.yaml.

python tests/support/rendered_examples.py     brings them up to date
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torshrun.ctl.render.job import read_job
from torshrun.ctl.render.targets import render

CONFIGS = Path(__file__).parents[2] / "configs"
NAMES: Mapping[str, str] = {
    "slurm": "slurm.sbatch",
    "pbs": "pbs.sh",
    "lsf": "lsf.sh",
    "kubernetes": "kubernetes.yaml",
    "jobset": "jobset.yaml",
    "trainjob": "trainjob.yaml",
    "raycluster": "raycluster.yaml",
    "compose": "compose.yaml",
    "aws": "aws.sh",
    "gcp": "gcp.sh",
    "azure": "azure.sh",
}


def example(target: str) -> str:
    """Without the secret: torshrun refuses an empty one."""
    text = render(target, read_job(str(CONFIGS / "cluster.yaml")))
    return re.sub(r'secret: "[0-9a-f]{64}"', 'secret: ""', text)


if __name__ == "__main__":
    for target, name in NAMES.items():
        (CONFIGS / name).write_text(example(target))
