"""Compares the training of transformers' models, cut by each kind of parallelism and whole.

    python benchmarks/families.py --help

Each family is trained for 10 steps of AdamW with clipping, in float64, once whole in one process
and once by each kind of parallelism. Losses, norms of gradients and parameters must agree to 1e-9
("right"), or the model is refused by name before the first step ("refused"); the rest is "WRONG".
`--write` writes the results to docs/support.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
if not __package__:
    sys.path[:] = [*sys.path[1:], str(HERE.parent)]

from benchmarks.family_columns import COLUMNS, NOT_TRIED, REFUSED, RIGHT, WRONG  # noqa: E402
from benchmarks.family_models import FAMILIES  # noqa: E402
from benchmarks.family_training import SENSELESS  # noqa: E402

PAGE = HERE.parent / "docs" / "support.md"
BAR = 0.8
_SECONDS = 60
"""Seconds for each cell, including the start."""
Cells = dict[tuple[str, str], str]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--only", type=_listed, default=list(FAMILIES), help="families, with commas between them")
    add("--columns", type=_listed, default=list(COLUMNS), help=", ".join(COLUMNS))
    add("--bars", action="store_true", help="end with 1 for any that is wrong or too few right")
    add("--wrong", action="store_true", help="end with 1 for any that is wrong")
    add("--write", action="store_true", help=f"write {PAGE.name}; cells not run stay as they are")
    add("--each", type=int, default=9, help="families in one launch")
    return parser.parse_args(arguments)


def _listed(text: str) -> list[str]:
    return text.split(",")


def run(families: Sequence[str], columns: Sequence[str], each: int) -> Cells:
    """Run the cells, and return their verdicts by family and column."""
    found: Cells = {}
    for ranks in dict.fromkeys(COLUMNS[column].ranks for column in columns):
        alike = [column for column in columns if COLUMNS[column].ranks == ranks]
        left = [name for name in families if any(COLUMNS[column].run for column in alike)]
        while left:
            some, left = left[:each], left[each:]
            told = _launched(ranks, some, alike)
            found |= told
            left = [name for name in some if (name, alike[-1]) not in told][1:] + left
    for name in families:
        for column in columns:
            default = f"{WRONG}: a rank died" if COLUMNS[column].run else NOT_TRIED
            found.setdefault((name, column), default)
    return found


def _launched(ranks: int, families: Sequence[str], columns: Sequence[str]) -> Cells:
    """Run one launch, and return its verdicts, which lack all cells after one that ended it."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "cells"
        told.touch()
        command = [sys.executable, "-m", "torshrun", "--nproc-per-node", str(ranks)]
        command += [str(HERE / "families_worker.py"), "--to", str(told)]
        command += ["--only", ",".join(families), "--columns", ",".join(columns)]
        seconds = _SECONDS * (1 + len(families) * len(columns))
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (
            (Path(folder) / "output").open("w+") as output,
            suppress(subprocess.TimeoutExpired),  # its cells are missing
        ):
            subprocess.run(command, stdout=output, stderr=output, env=variables, timeout=seconds)
        found: Cells = {}
        for line in told.read_text().splitlines():
            name, column, verdict = json.loads(line)
            found[name, column] = verdict
            print(f"{name:12} {column:12} {verdict[:200]}", flush=True)
    return found


def share_right(cells: Iterable[str]) -> float:
    """Return the share of right cells among those that make sense and were tried."""
    tried = [each for each in cells if each not in (SENSELESS, NOT_TRIED)]
    return sum(each == RIGHT for each in tried) / max(1, len(tried))


def page(cells: Mapping[tuple[str, str], str]) -> str:
    """Return the text of docs/support.md."""
    columns = [column for column in COLUMNS if any(key[1] == column for key in cells)]
    rows = [["Family", *columns], ["---"] * (1 + len(columns))]
    reasons: dict[str, list[str]] = {}
    for name, family in FAMILIES.items():
        row = [family.title]
        for column in columns:
            verdict, _, reason = cells.get((name, column), NOT_TRIED).partition(": ")
            if reason:
                reasons.setdefault(reason, []).append(f"{family.title}, {column}")
            row.append(verdict)
        rows.append(row)
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    lines = [f"- {'; '.join(where)}: {reason}" for reason, where in reasons.items()]
    refused = "\n".join(["", _REASONS, "", *lines, ""]) if lines else ""
    return f"{_HEADER}\n{table}\n{_FOOTER}{refused}"


_REASONS = "## Refused"
_HEADER = """# Models of transformers

This table says which models of transformers were trained with which kinds of parallelism, and
whether the results were right. Small models of each family were trained for 10 steps of AdamW with
clipping, in float64, whole in one process and spread over ranks.
`python benchmarks/families.py --write` makes the page.
"""
_LISTS = "models of experts"
_OWN = "GPT-2, OPT, ModernBERT"
_FOOTER = f"""
- **{RIGHT}**: losses, norms of gradients and parameters are those of one process, to 1e-9. So are
  the tokens that the model generates with a cache: the likeliest, drawn ones and those of beams.
- **{REFUSED}**: a ConfigError on all ranks, before the first step.
- **{SENSELESS}**: does not apply, such as generating text with a model that writes none.
- **{NOT_TRIED}**: nothing is known.

| Column | What was done |
| --- | --- |
| DDP, FSDP | each layer is a unit; compared with the mean of both ranks' losses in one process |
| TP, TP + SP | `tr.parallelize(model, mesh, "auto")`; with SP, [parts of sequences][sp] |
| PP | `tr.PipelineParallel(model, …)` with [the model's own loss](pipeline-parallel.md) |
| CP | `tr.context_model`, `tr.context_batch` ([context parallelism](context-parallel.md)) |
| EP | `tr.parallelize` with an axis "ep": [whole experts on ranks with their own batches][ep] |
| TP × PP × DP | two stages, each cut into two parts, each with two replicas |
| compile | TP in graphs of torch.compile |
| checkpointing | `model.gradient_checkpointing_enable()` with FSDP and with TP |
| LoRA | peft's, of attentions, before `tr.parallelize` or FSDP; with FSDP and with TP |
| save_pretrained | a cut model in float32; one process and [ranks][files] read the same bits |

- DDP and FSDP: a loss that compares rows of a batch, as CLIP's, is not that of the whole batch.
- compile: DeepSeek V2 computes rotations in float32, also in one process, and is right to 1e-7.

[sp]: tensor-parallel.md#models-of-transformers
[ep]: experts.md#models-of-transformers
[files]: tensor-parallel.md#to-files-and-back

## Versions of transformers

`scripts/transformers-versions` runs some columns with other versions. All have the numbers of one
process, or are refused by name. Besides what is refused above, these are refused:

| Version | Families | TP 2, generate | TP + SP 2 | PP 1f1b | CP |
| --- | --- | --- | --- | --- | --- |
| 4.50.3 | 23 | Mamba | Mamba, ViT, {_LISTS} | none | all |
| 4.53.3 | 25 | Mamba | Mamba, ViT, {_LISTS} | DeepSeek V3 | all |
| 4.57.6 | 27 | Mamba | Mamba, ViT, {_LISTS} | DeepSeek V3 | {_OWN}, BERT, RoBERTa, Qwen-MoE |
| 5.0.0 | 27 | Mamba | Mamba, ViT, Qwen-MoE, DeepSeek V2 | none | {_OWN} |

- Up to 4.57 experts are a list of modules, and Mamba counts its features by an attribute.
- Up to 4.57 DeepSeek V3 adds up its experts' outputs in float32. So no example of a model in
  float64 can be made: pass `example=`.
- Up to 4.53 models have no `set_attn_implementation()`.
- Gemma 2 on parts of sequences is right to 5e-9 in 4.57 and 5.0.
"""


def read(text: str) -> Cells:
    """Return the verdicts of a page."""
    lines = [line for line in text.partition("\n- ")[0].splitlines() if line.startswith("| ")]
    table = [[each.strip() for each in line.strip("|").split("|")] for line in lines]
    titles = {family.title: name for name, family in FAMILIES.items()}
    found = {
        (titles[row[0]], column): verdict
        for row in table[2:]
        for column, verdict in zip(table[0][1:], row[1:], strict=True)
    }
    for line in text.partition(_REASONS)[2].splitlines():
        where, _, reason = line.removeprefix("- ").partition(": ")
        for each in where.split("; ") if reason else ():
            title, _, column = each.partition(", ")
            found[titles[title], column] += f": {reason}"
    return found


def main() -> int:
    options = parse()
    cells = run(options.only, options.columns, options.each)
    right = share_right(cells.values())
    wrong = [key for key, verdict in cells.items() if verdict.startswith(WRONG)]
    print(f"{right:.0%} right, {len(wrong)} wrong")
    if options.write:
        known = read(PAGE.read_text()) if PAGE.exists() else {}
        PAGE.write_text(page({**known, **cells}))
    is_few = options.bars and right < BAR
    return int(is_few or ((options.bars or options.wrong) and bool(wrong)))


if __name__ == "__main__":
    raise SystemExit(main())
