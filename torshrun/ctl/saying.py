"""Prints what torshctl says to people while it works."""

from __future__ import annotations

import click

from torshrun.text import printable


def say(text: str) -> None:
    """Print a line on stderr."""
    click.echo(f"torshctl: {printable(text)}", err=True)
