"""Pipeline parallelism: ranks have different stages of a model, and schedules are data.

table, builders, files, simulation and choosing are pure. splitting cuts models; planning makes all
ranks agree; executor runs a rank's row of a table on its stages (stage, autograd), which wire
connects; wrapper has PipelineParallel.
"""

from __future__ import annotations

from torsh_runtime.parallel.pipeline.files import load_table, save_table
from torsh_runtime.parallel.pipeline.simulation import Costs, Simulation, simulate
from torsh_runtime.parallel.pipeline.splitting import layers_of, split_model
from torsh_runtime.parallel.pipeline.table import Kind, Step, Table
from torsh_runtime.parallel.pipeline.wrapper import PipelineParallel

__all__ = [
    "Costs",
    "Kind",
    "PipelineParallel",
    "Simulation",
    "Step",
    "Table",
    "layers_of",
    "load_table",
    "save_table",
    "simulate",
    "split_model",
]
