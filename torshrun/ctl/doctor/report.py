"""Renders a report for people and for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from textwrap import wrap

from torshrun.ctl.doctor.finding import SEVERITIES, Finding, Severity
from torshrun.ctl.doctor.links.judgement import Link, Reduced
from torshrun.text import printable

SCHEMA = 1
"""The version of the JSON. It grows when a key changes or is removed, not when one is added."""
_COLOURS: dict[Severity, str] = {"ok": "", "note": "36", "warning": "33", "problem": "31"}
_ADVICE_INDENT = " " * 6
_WIDEST = 34
"""Columns for what was examined. Longer texts have a line of their own."""


@dataclass(frozen=True, slots=True)
class Report:
    host: str
    version: str
    """The version of torshrun."""
    areas: Mapping[str, Sequence[Finding]]
    links: Sequence[Link] = ()
    reduced: Sequence[Reduced] = ()

    @property
    def findings(self) -> list[Finding]:
        return [finding for found in self.areas.values() for finding in found]

    @property
    def worst(self) -> Severity:
        return max((found.severity for found in self.findings), key=SEVERITIES.index, default="ok")


# ---- for programs


def in_json(report: Report) -> str:
    """Return the report as one JSON object on one line, as docs/doctor.md describes it."""
    content = {
        "schema": SCHEMA,
        "host": report.host,
        "torshrun": report.version,
        "worst": report.worst,
        "findings": [
            {"area": area, **asdict(finding)}
            for area, found in report.areas.items()
            for finding in found
        ],
        "links": [
            {
                "source": link.source,
                "target": link.target,
                "bytes_per_second": link.rate,
                "round_trip_seconds": link.latency,
            }
            for link in report.links
        ],
        "all_reduces": [_reduced(each) for each in report.reduced],
    }
    return json.dumps(content) + "\n"


def _reduced(each: Reduced) -> dict[str, object]:
    return {
        "nodes": list(each.pair),
        "failure": each.checked.failure,
        "bytes_per_second": each.checked.rate,
        "seconds_of_8_bytes": each.checked.latency,
        "tcp_bytes_per_second": each.tcp_rate,
    }


# ---- for people


def in_words(report: Report, *, color: bool, width: int = 80) -> str:
    """Return what is wrong with advice, the worst first, then all findings by area."""
    lines = [*_summary(report, color), *_remarks(report, color, width), *_table(report, color)]
    return "".join(f"{line}\n" for line in lines)


def _summary(report: Report, color: bool) -> Iterator[str]:
    number = dict.fromkeys(SEVERITIES, 0)
    for finding in report.findings:
        number[finding.severity] += 1
    told = ", ".join(
        _painted(_counted(number[each], each), each if number[each] else "ok", color)
        for each in ("problem", "warning", "note")
    )
    yield f"{printable(report.host)}: {told}"


def _counted(number: int, severity: Severity) -> str:
    return f"{number or 'no'} {severity}{'' if number == 1 else 's'}"


def _remarks(report: Report, color: bool, width: int) -> Iterator[str]:
    found = [finding for finding in report.findings if finding.severity != "ok"]
    for finding in sorted(found, key=lambda each: -SEVERITIES.index(each.severity)):
        yield ""
        label = _painted(finding.severity, finding.severity, color)
        yield f"  {label}: {printable(finding.what)}: {printable(finding.value)}"
        advice = printable(finding.advice)
        yield from wrap(
            advice,
            max(width, 40),
            initial_indent=_ADVICE_INDENT,
            subsequent_indent=_ADVICE_INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )


def _table(report: Report, color: bool) -> Iterator[str]:
    shown = [printable(finding.what) for finding in report.findings]
    width = max((len(what) for what in shown if len(what) <= _WIDEST), default=0)
    for area, found in report.areas.items():
        yield ""
        yield _bold(area, color)
        for finding in found:
            yield from _row(finding, width, color)


def _row(finding: Finding, width: int, color: bool) -> Iterator[str]:
    what, value = printable(finding.what), printable(finding.value)
    mark = {"ok": " ", "note": "-", "warning": "!", "problem": "x"}[finding.severity]
    if len(what) > width:
        yield _painted(f"{mark} {what}", finding.severity, color)
        yield f"  {'':{width}}  {value}".rstrip()
    else:
        yield f"{_painted(f'{mark} {what:{width}}', finding.severity, color)}  {value}".rstrip()


def _painted(text: str, severity: Severity, color: bool) -> str:
    code = _COLOURS[severity]
    return f"\x1b[{code}m{text}\x1b[0m" if color and code else text


def _bold(text: str, color: bool) -> str:
    return f"\x1b[1m{text}\x1b[0m" if color else text
