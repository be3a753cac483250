"""What others wrote into the store, fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line, with a mark in place of what is no letter, digit or the like."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
