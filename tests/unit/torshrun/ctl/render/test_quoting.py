"""Texts in scripts and manifests."""

from __future__ import annotations

import shlex

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.rendered import texts

from torshrun.ctl.render import quoting
from torshrun.ctl.render.engine import fill


@given(texts)
def test_a_word_of_a_shell(text: str) -> None:
    assert shlex.split(quoting.sh(text)) == [text]
    assert shlex.split(quoting.literal(text)) == [text]


@given(texts)
def test_a_scalar_in_yaml(text: str) -> None:
    written = quoting.yaml(text)
    assert "\n" not in written
    assert yaml.safe_load(f"a:\n  - {written}\n  - b\n") == {"a": [text, "b"]}


@given(texts, st.integers(0, 9))
def test_a_block_in_yaml(text: str, indent: int) -> None:
    spaces = " " * indent
    document = f"{spaces}- {quoting.block(text, indent + 2)}\n{spaces}- b\n"
    assert yaml.safe_load(document) == [text, "b"]


@given(texts)
def test_a_comment_is_one_line_for_every_reader(text: str) -> None:
    assert len(f"# {quoting.comment(text)}".splitlines()) == 1


@pytest.mark.parametrize("text", ["END", "a\nEND\nb", "END\nEND_", "ENDE"])
def test_a_here_document_does_not_end_within(text: str) -> None:
    start, *lines = quoting.heredoc(text).split("\n")
    end = start.removeprefix("<<'").removesuffix("'")
    assert lines.index(end) == len(lines) - 1
    assert "\n".join(lines[:-1]) == text


def test_a_template_can_write_nothing_that_is_not_quoted() -> None:
    assert quoting.checked(3) == 3
    for value in ("text", None, True, ["a"]):
        with pytest.raises(TypeError, match="is not quoted"):
            quoting.checked(value)
    with pytest.raises(Exception, match="'job' is undefined"):
        fill("slurm.sbatch.j2", {})
