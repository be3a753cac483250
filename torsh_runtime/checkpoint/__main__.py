"""Lists, checks, exports and imports checkpoints: `python -m torsh_runtime.checkpoint`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import click

from torsh_runtime.checkpoint.directory import checkpoints
from torsh_runtime.checkpoint.exporting import export_state_dict
from torsh_runtime.checkpoint.importing import import_state_dict
from torsh_runtime.checkpoint.reader import CheckpointReader
from torsh_runtime.errors import TorshError

_DIRECTORY = click.argument("directory", type=click.Path(exists=True, file_okay=False))
_STEP = click.option(
    "--step", type=int, help="Use the checkpoint of this step. Default: the newest."
)
_PART = click.option(
    "--part", default="model", show_default=True, help="The name under which the model was saved."
)


@click.group()
def main() -> None:
    """Inspect and verify checkpoints, and convert models to and from plain files."""


@main.command()
@_DIRECTORY
@click.option("--tensors", is_flag=True, help="Show each tensor of the newest one.")
@click.option("--step", type=int, help="Only of this step.")
def ls(directory: str, tensors: bool, step: int | None) -> None:
    """List the checkpoints, newest first."""
    found = _found(directory, step)
    for path in found[: 1 if tensors else None]:
        try:
            with CheckpointReader(path) as reader:
                _show(reader, tensors)
        except TorshError as error:
            click.echo(f"{path.name}  damaged: {error}")


@main.command()
@_DIRECTORY
@click.option("--step", type=int, help="Only of this step.")
def verify(directory: str, step: int | None) -> None:
    """Read everything and compare it with its checksums. Exits with 1 if any is damaged."""
    damaged = 0
    for path in _found(directory, step):
        try:
            with CheckpointReader(path) as reader:
                reader.verify()
            click.echo(f"{path.name}  whole")
        except TorshError as error:
            damaged += 1
            click.echo(f"{path.name}  damaged: {error}")
    sys.exit(1 if damaged else 0)


@main.command("export")
@_DIRECTORY
@click.argument("file", type=click.Path())
@_STEP
@_PART
@click.option(
    "--format",
    "directory_format",
    type=click.Choice(["safetensors", "dcp"]),
    help="Write a directory: Hugging Face's files and index, or torch.distributed.checkpoint's.",
)
def export_(
    directory: str, file: str, step: int | None, part: str, directory_format: str | None
) -> None:
    """Write the state dict of a model or an optimizer to FILE: .safetensors, or .pt, .pth, .bin as
    torch.save(). With --format FILE is a new directory."""
    found = _found(directory, step)[0]
    _or_exit(lambda: export_state_dict(found, file, part, directory_format=directory_format))


@main.command("import")
@click.argument("file", type=click.Path(exists=True))
@click.argument("directory", type=click.Path(file_okay=False))
@click.option(
    "--step",
    type=int,
    default=0,
    show_default=True,
    help="The step that the checkpoint is saved under.",
)
@_PART
@click.option(
    "--trust",
    is_flag=True,
    help="Load pickles of torch.distributed.checkpoint, which can run any program.",
)
def import_(file: str, directory: str, step: int, part: str, trust: bool) -> None:
    """Create a checkpoint in DIRECTORY from the state dict in FILE, which may be a directory of
    Hugging Face's or torch.distributed.checkpoint's."""
    _or_exit(lambda: import_state_dict(file, directory, step, part, trust=trust))


def _found(directory: str, step: int | None) -> list[Path]:
    found = [path for number, path in checkpoints(Path(directory)) if step in (None, number)]
    if not found:
        which = "" if step is None else f" of step {step}"
        click.echo(f"{directory} has no checkpoint{which}", err=True)
        sys.exit(2)
    return found


def _show(reader: CheckpointReader, tensors: bool) -> None:
    manifest = reader.manifest
    when = datetime.fromtimestamp(manifest.time).strftime("%Y-%m-%d %H:%M:%S")
    click.echo(
        f"{reader.path.name}  {when}  {manifest.world_size} rank(s)  "
        f"{len(manifest.tensors)} tensors  {manifest.num_bytes / 1e6:.1f} MB"
    )
    for name, tensor in manifest.tensors.items() if tensors else ():
        pieces = len(tensor.pieces)
        click.echo(f"  {name!a}  {tensor.dtype}  {tensor.shape}  {pieces} piece(s)")


def _or_exit(call: Callable[[], None]) -> None:
    try:
        call()
    except (TorshError, OSError) as error:
        click.echo(str(error), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
