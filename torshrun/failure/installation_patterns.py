"""Words about libraries that are missing, or do not fit each other or the program."""

from __future__ import annotations

from torshrun.failure.kinds import Kind, Pattern

INSTALLATION_PATTERNS = (
    Pattern(
        Kind.VERSION,
        r"version [`'](?P<name>GLIBC\w*_[\d.]+)' not found|"
        r"numpy\.dtype size changed|compiled using NumPy 1\.x cannot be run in|"
        r"\bcompiled (?:against|with|for).*version|was built (?:with|for|against).*version|"
        r"driver version is insufficient|no kernel image is available|"
        r"forward compatibility was attempted|undefined symbol: |unsupported pickle protocol|"
        r"\b(?:[Ii]ncompatible|[Uu]nsupported|[Dd]ifferent|[Mm]ismatched) (?:\w+ )?versions?\b|"
        r"\bversions? (?:mismatch|conflict|differ)|VersionConflict|DistributionNotFound|"
        r"\bversion \S+ (?:is required|or (?:newer|later|higher))|"
        r"\brequires (?:Python|python|torch|numpy|\w+ version)\b.*\d|"
        r"is required.*\bbut\b.*(?:found|installed|have)|bad magic number in '",
        "Two components of different versions do not fit together.",
        "Install versions on all nodes that fit: `pip check`, and compare `pip list` and "
        "`python --version` between the nodes and the environment that it was built for.",
    ),
    Pattern(
        Kind.VERSION,
        r"(?<![\w.])(?P<name>[\w.]+)`? (?:was|were|has been|have been) removed "
        r"(?:in|from|since|as of) (?:the )?"
        r"(?P<version>(?!step|epoch|round)[A-Za-z]\w* v?\d+\.\d[\w.]*)|"
        r"`(?P<old>[\w.]+)` was a deprecated alias[\s\S]*?"
        r"deprecated in (?P<by>[A-Za-z]\w* [\d.]*\d)",
        "The code was written for an older version of a library: {name} is gone (see its notes on "
        "{version}{by}).",
        "Use what its words name instead, or install the version of that library that the code was "
        "written for, the same one on all nodes.",
    ),
    Pattern(
        Kind.EXCEPTION,
        r"^AttributeError: (?:partially initialized )?module '(?P<name>[\w.]+)' has no attribute "
        r"'(?P<part>\w+)'",
        "The module {name} has no {part}: it is of another version than the code was written for, "
        "another file of that name is imported instead, or the name is a slip.",
        "See which file it is (its __file__) and its version (`pip list`), the same on all nodes.",
    ),
    Pattern(
        Kind.EXCEPTION,
        r"^TypeError: (?P<name>[\w.<>]+)\(\) got an unexpected keyword argument '(?P<part>\w+)'",
        "{name} takes no argument {part}: it is of another version than the code was written for, "
        "or the argument's name is a slip.",
        "See what it takes (`python -c 'import NAME; help(NAME)'`). If it is a library's, install "
        "the version that the code was written for, the same one on all nodes.",
    ),
    Pattern(
        Kind.VERSION,
        r"^RuntimeError: operator (?P<name>[\w.]+)::(?P<part>[\w.]+) does not exist",
        "Python's part of {name} is here, and its compiled part is not, or does not load: it was "
        "built for another torch than this one, which has no {part} therefore.",
        "Install both from the same place and of versions that fit, as `pip install torch "
        "torchvision` does in one command; a build for CUDA does not fit a torch for CPUs.",
    ),
    Pattern(
        Kind.IMPORT,
        r"\bNo module named '(?P<name>(?P<part>\w+)(?:\.\w+)+)'",
        "{program} finds {part}, and no {name} in it: {part} is of another version than the code "
        "was written for, or another folder or file of that name is found first.",
        "See which one is found (`python -c 'import NAME; print(NAME.__path__)'`): the script's "
        "own folder and PYTHONPATH come first. Else install the version that the code was written "
        "for, the same one on all nodes.",
    ),
    Pattern(
        Kind.IMPORT,
        r"\bNo module named '?(?P<name>[\w.]+)|"
        r"^ImportError: (?P<library>\S+\.so[\w.]*): |^ImportError: (?!cannot import name)|"
        r"(?<![^\s:])(?P<object>[^\s:]+): cannot open shared object file",
        "{program} cannot import {name}.",
        "Install it for that Python, or start torshrun with the one that has it (its environment "
        "active); a library has to be where the loader looks (LD_LIBRARY_PATH).",
    ),
    Pattern(
        Kind.IMPORT,
        r"\bcannot import name '(?P<part>\w+)'"
        r"(?: from (?:partially initialized module )?'(?P<name>[\w.]+)'(?P<where> \(.*\))?)?",
        "The module {name}{where} has no {part}: another file may shadow the one that is meant by "
        "the same name, or it is an old or another version of it.",
        "See whether that path is the file that is meant: the script's own folder and PYTHONPATH "
        "come first, so rename a file that is called like a library, remove stale copies, and "
        "install the same version on all nodes.",
    ),
)
