"""Builds the documentation's site; see scripts/docs, which has what this needs.

The pages are those of docs/, with three differences. Links to files of the repository outside docs/
lead to copies of them. Code in tables has no backslashes before |. The reference pages are made
here of torsh_runtime's table of public names, so that none can be missing.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from os.path import relpath
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "torsh_runtime"

REFERENCE = {
    "collectives": ("Collectives", ("comm.",)),
    "groups": ("Process groups and backends", ("backends.", "bootstrap", "launched")),
    "errors": ("Errors", ("errors", "error_file", "status")),
    "mesh": ("Device meshes and layouts", ("mesh.", "layout")),
    "data-parallel": ("Data parallelism", ("parallel.", "integrations.")),
    "sharded-data-parallel": ("Sharded data parallelism", ("parallel.fsdp", "parallel.scaler")),
    "model-parallel": (
        "Tensor, pipeline, context and expert parallelism",
        (
            "parallel.automatic", "parallel.context", "parallel.experts", "parallel.pipeline",
            "parallel.streams", "parallel.tensor", "parallel.verification", "parallel.layouts",
            "parallel.initial", "checkpoint.",
        ),
    ),
    "store": ("The store", ("store.",)),
}  # fmt: skip
"""By page: its title, and the modules whose public names stand there; the longest match counts."""

PACKAGES = ("checkpoint", "compression", "elastic", "monitoring", "nn", "optim", "rpc")
"""Public packages, each of which has a page of its own."""

GROUPS = ("comm.group", "comm.groups", "comm.subgroups", "comm.launched", "comm.non_member")
"""Modules of comm/ whose names are about process groups."""

OF_SEVERAL = ("ProcessGroup", "DeviceMesh", "Store", "nn.Module")
"""Classes whose methods stand in several files, by kind: in bases that programs never name."""


LINK = re.compile(r"\[([^\[\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)]*)?\)")


def main() -> int:
    """Build or serve the site as the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/docs", description=__doc__)
    parser.add_argument("command", nargs="?", choices=("build", "serve"), default="build")
    parser.add_argument("--version", default="", help="build into site/VERSION")
    parser.add_argument("--into", type=Path, default=ROOT / "build", help="for docs/ and site/")
    given = parser.parse_args()
    site = Site(given.into.resolve())
    site.write_source()
    options = ["build", "--clean", "--strict"] if given.command == "build" else ["serve"]
    zensical = Path(sys.executable).with_name("zensical")
    code = subprocess.run([zensical, *options, "-f", site.configuration(given.version)]).returncode
    if code == 0 and given.version:
        site.add_version(given.version)
    return code


class Site:
    """Writes what the generator needs into a folder, where it then makes the site."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._source = folder / "docs"

    def configuration(self, version: str) -> Path:
        """Write the configuration by which this version of the site is made."""
        text = (ROOT / "mkdocs.yml").read_text()
        text = text.replace("site_dir: build/site", f"site_dir: {Path('site') / version}")
        path = self._folder / "mkdocs.yml"
        path.write_text(text.replace("paths: [.]", f"paths: [{json.dumps(str(ROOT))}]"))
        return path

    def add_version(self, version: str) -> None:
        """Add the version to those that the site's pages offer, newest first."""
        path = self._folder / "site" / "versions.json"
        listed = json.loads(path.read_text()) if path.is_file() else []
        others = [each for each in listed if each["version"] != version]
        listed = [{"version": version, "title": version, "aliases": []}, *others]
        path.write_text(json.dumps(listed, indent=1))

    def write_source(self) -> None:
        """Write the pages."""
        shutil.rmtree(self._source, ignore_errors=True)
        left_out = shutil.ignore_patterns("man", "*.py", "*.txt", "__pycache__")
        shutil.copytree(ROOT / "docs", self._source, ignore=left_out)
        for page in [*self._source.rglob("*.md")]:
            origin = ROOT / "docs" / page.relative_to(self._source)
            page.write_text(self._linked(without_escapes(page.read_text()), origin, page))
        (self._source / "reference").mkdir()
        for name, text in reference_pages():
            (self._source / "reference" / f"{name}.md").write_text(text)

    def _linked(self, text: str, origin: Path, page: Path) -> str:
        """Return the text with its links as they must be on this page of the site.

        A link that leaves docs/ leads to a copy of the file, which is made here. One to a folder
        leads nowhere, and becomes its text.

        Raises:
            SystemExit: The page links to a file that does not exist.
        """

        def link(match: re.Match[str]) -> str:
            target = (origin.parent / match[2]).resolve()
            if not (target.exists() or target.is_relative_to(ROOT / "docs" / "reference")):
                sys.exit(f"{origin.relative_to(ROOT)} links to {match[2]}: there is no such file")
            if target.is_dir():
                return match[1]
            return f"[{match[1]}]({relpath(self._copied(target), page.parent)}{match[3] or ''})"

        return LINK.sub(link, text)

    def _copied(self, target: Path) -> Path:
        """Return where a file of the repository is in the source, after copying it if need be."""
        if target.is_relative_to(ROOT / "docs"):
            return self._source / target.relative_to(ROOT / "docs")
        copy = self._source / "files" / target.relative_to(ROOT)
        if target.suffix != ".md":
            copy = copy.with_name(f"{copy.name}.txt")
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.touch()
            text = target.read_text()
            copy.write_text(self._linked(text, target, copy) if target.suffix == ".md" else text)
        return copy


def without_escapes(text: str) -> str:
    r"""Return the text with | for \| in the code of tables.

    GitHub needs the backslash there; the generator shows it.
    """

    def bare(row: re.Match[str]) -> str:
        return re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), row[0])

    return re.sub(r"^\|.*$", bare, text, flags=re.MULTILINE)


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Give each name that the file imports from torsh_runtime with the module that has it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torsh_runtime."):
            for each in node.names:
                yield each.asname or each.name, str(node.module).removeprefix("torsh_runtime.")


def package_names(package: str) -> list[str]:
    """Return the public names of a public package, sorted."""
    names = {name for name, _ in imported(PACKAGE / package / "__init__.py")}
    return sorted((name for name in names if not name.startswith("_")), key=str.lower)


def public_names() -> Iterator[tuple[str, str]]:
    """Give each public name of torsh_runtime with the module that has it."""
    return imported(PACKAGE / "__init__.pyi")


def page_of(module: str) -> str:
    """Return the reference page on which the names of this module stand."""
    if module in GROUPS:
        return "groups"
    found = {
        prefix: page
        for page, (_, prefixes) in REFERENCE.items()
        for prefix in prefixes
        if f"{module}.".startswith(prefix)
    }
    if not found:
        sys.exit(f"scripts/site.py: the names of {module} have no reference page; see REFERENCE")
    return found[max(found, key=len)]


def reference_pages() -> Iterator[tuple[str, str]]:
    """Give the name and the text of each reference page."""
    names: dict[str, list[str]] = {page: [] for page in REFERENCE}
    for name, module in public_names():
        names[page_of(module)].append(name)
    yield "index", index_of(names)
    for page, (title, _) in REFERENCE.items():
        listed = sorted(names[page], key=str.lower)
        entries = "\n\n".join(map(entry_of, listed))
        yield page, f"# {title}\n\n{entries}\n"
    for package in PACKAGES:
        parts = "\n\n".join(entry_of(f"{package}.{name}") for name in package_names(package))
        head = f"# torsh_runtime.{package}\n\n::: torsh_runtime.{package}\n    options:\n"
        yield package, f"{head}      members: false\n      show_root_heading: false\n\n{parts}\n"


def entry_of(name: str) -> str:
    """Return what the reference page says of a name, for the generator to fill in."""
    entry = f"::: torsh_runtime.{name}"
    return f"{entry}\n    options:\n      inherited_members: true" if name in OF_SEVERAL else entry


def index_of(names: dict[str, list[str]]) -> str:
    """Return the page that lists all public names, each with a link to what is said of it."""
    lines = [
        "# Reference",
        "",
        "Programs write `import torsh_runtime as tr`, and then `tr.all_reduce`.",
        "",
    ]
    for page, (title, _) in REFERENCE.items():
        listed = sorted(names[page], key=str.lower)
        links = [f"[`{name}`]({page}.md#torsh_runtime.{name})" for name in listed]
        lines += [f"## {title}", "", ", ".join(links), ""]
    lines += ["## Subpackages", ""]
    lines += [f"- [`torsh_runtime.{each}`]({each}.md)" for each in PACKAGES]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
