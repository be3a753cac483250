"""Each block of code in the documentation is run by a test, or a comment says why none does.

What no test runs is looked at all the same: Python is compiled, YAML and JSON are parsed, command
lines of torshrun and torshctl go through the parsers of these commands, and files that are named
exist.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator

import click
import pytest
import yaml
from support.blocks import ROOT, Block, blocks_of, pages, taken

from torsh_runtime.errors import ConfigError
from torshrun.config.command_line import parse
from torshrun.ctl.command import command as torshctl

LANGUAGES = {"sh", "python", "yaml", "json", "text"}
BLOCKS = [block for page in pages() for block in blocks_of(page)]
OURS = re.compile(r"(?:scripts|examples|tests|benchmarks|configs|docs)/[\w./-]*\w")
"""A file of the repository."""


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def test_each_block_is_run_or_says_why_not() -> None:
    """YAML and JSON are data, which another test parses."""
    run = taken()
    left = [block for block in of("sh", "python", "text") if not (block in run or block.reason)]
    assert not left, "\n".join(
        ["no test runs these, nor does <!-- not run: … --> say why", *map(str, left)]
    )


def test_no_block_that_is_run_says_that_it_is_not() -> None:
    assert not [str(block) for block in taken() if block.reason]


@pytest.mark.parametrize("page", pages())
def test_no_block_escapes_the_parser(page: str) -> None:
    """Blocks begin at the start of a line, with one of few names for their language."""
    text = (ROOT / page).read_text()
    assert len(re.findall(r"(?m)^[ >]*(?:```|~~~)", text)) == 2 * len(blocks_of(page))
    reasons = [block.reason for block in blocks_of(page) if block.reason]
    assert text.count("<!-- not run") == len(reasons)
    assert {block.language for block in blocks_of(page)} <= LANGUAGES


def test_python_compiles() -> None:
    for block in of("python"):
        try:
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            compile(block.text, "block", "exec", flags=flags, dont_inherit=True)
        except SyntaxError as error:
            pytest.fail(f"{block}\n{error}")


def test_data_is_parsed() -> None:
    for block in of("yaml", "json"):
        try:
            found = [*data_of(block)]
        except (yaml.YAMLError, json.JSONDecodeError) as error:
            pytest.fail(f"{block}\n{error}")
        assert all(isinstance(each, dict | list) for each in found), block


def data_of(block: Block) -> Iterator[object]:
    """Give what is in the block; one of JSON may be lines of a longer list."""
    if block.language == "yaml":
        yield yaml.safe_load(block.text)
    elif block.text.startswith("{\n"):
        yield json.loads(block.text)
    else:
        yield from (json.loads(line.rstrip(",")) for line in block.text.splitlines())


def shell_lines(block: Block) -> Iterator[str]:
    """Give the lines of a block that are typed into a shell."""
    text = block.text.replace("\\\n", " ")
    if block.language == "sh":
        yield from text.splitlines()
    elif block.language == "text":
        yield from (line[2:] for line in text.splitlines() if line.startswith("$ "))
    elif block.language == "python":
        yield from re.findall(r"\A# \w+\.py: (torshrun .*)", text)


def command_lines(block: Block) -> Iterator[list[str]]:
    """Give the words of each torshrun and torshctl in the block."""
    for line in shell_lines(block):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = [*lexer]
        for start, word in enumerate(words):
            before = words[start - 1] if start else ""
            is_command = before == "-m" or not before.startswith("-")
            if word in ("torshrun", "torshctl") and is_command:
                ends = (at for at in range(start, len(words)) if {*words[at]} <= {*"&|;<>()"})
                yield words[start : next(ends, len(words))]


def check_torshctl(group: click.Group, words: list[str], parent: click.Context | None) -> None:
    """Parse the words as the command does that they name, and carry out nothing."""
    context = group.make_context(group.name, words, parent)
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    assert command
    if isinstance(command, click.Group):
        check_torshctl(command, rest, context)
    else:
        command.make_context(name, rest, context)


def test_command_lines_are_those_of_the_commands() -> None:
    number = 0
    for block in BLOCKS:
        for program, *words in command_lines(block):
            number += 1
            try:
                if program == "torshrun":
                    assert parse(words).script or "--config" in words, f"{block}: no script"
                else:
                    check_torshctl(torshctl, words, None)
            except (ConfigError, click.ClickException) as error:
                pytest.fail(f"{block}\n{program} {shlex.join(words)}\n{error}")
    assert number > 100


def test_files_of_the_repository_that_commands_name_exist() -> None:
    named = {
        (name, str(block))
        for block in BLOCKS
        for line in shell_lines(block)
        for name in OURS.findall(line.partition(" #")[0])
    }
    assert len(named) > 20
    assert not [each for each in sorted(named) if not (ROOT / each[0]).exists()]
