"""Draws the documentation's pictures: boxes, arrows, labels and lanes, written as SVG.

A picture is as wide as the page. It has its own background, so that it can be read on light and
dark pages, and two colours besides greys, which follow the reader's colour scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH = 600
"""Width of all pictures, in units of their own; text of 12 units has 14 pixels on a page of 700."""

STYLE = """\
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  font-size: 15px; fill: #1f2630 }
.mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace }
.bold { font-weight: 600 }
.small { font-size: 13px }
.tiny { font-size: 12px }
.plot { font-size: 21px }
.muted { fill: #596273 }
.card { fill: #ffffff; stroke: #d3d8df }
.ground { fill: #ffffff }
.line { fill: none; stroke: #7b8594; stroke-width: 1.5 }
.dashed { stroke-dasharray: 5 4 }
.grid { fill: none; stroke: #d3d8df }
.head { fill: #7b8594 }
.plain { fill: #f1f3f6; stroke: #a9b1bd }
.blue { fill: #dce9f9; stroke: #2f6fb5 }
.orange { fill: #fbe3d2; stroke: #c0591c }
.empty { fill: none; stroke: #a9b1bd }
.blue-line { fill: none; stroke: #2f6fb5; stroke-width: 1.5 }
.orange-line { fill: none; stroke: #c0591c; stroke-width: 1.5 }
.thick { stroke-width: 3.5 }
.blue-head, .blue-text { fill: #2a65a6 }
.orange-head, .orange-text { fill: #ab4c14 }
@media (prefers-color-scheme: dark) {
text { fill: #e7eaee }
.muted { fill: #aab3c0 }
.card { fill: #1d222a; stroke: #3a424e }
.ground { fill: #1d222a }
.line { stroke: #8b95a4 }
.head { fill: #8b95a4 }
.grid { stroke: #3a424e }
.plain { fill: #2b323c; stroke: #687282 }
.blue { fill: #1f3d60; stroke: #74aeee }
.orange { fill: #5b3317; stroke: #f0a36b }
.empty { stroke: #687282 }
.blue-line { stroke: #74aeee }
.orange-line { stroke: #f0a36b }
.blue-head, .blue-text { fill: #86baf2 }
.orange-head, .orange-text { fill: #f2ad7b }
}"""
"""Colours and fonts. The classes of boxes are plain, blue, orange and empty."""


class Picture:
    """Collects the parts of one picture, whose height follows from what is drawn."""

    def __init__(self, name: str, title: str, description: str) -> None:
        self.name, self.title, self.description = name, title, description
        self.parts: list[str] = []
        self.bottom = 0.0

    def _add(self, part: str, bottom: float) -> None:
        self.parts.append(part)
        self.bottom = max(self.bottom, bottom)

    def label(self, x: float, y: float, text: str, style: str = "", anchor: str = "middle") -> None:
        """Write a line of text whose baseline is at y; the anchor is start, middle or end."""
        spaces = ' xml:space="preserve"' if "mono" in style else ""
        self._add(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{style}"{spaces}>'
            f"{escape(text, quote=False)}</text>",
            y + 4,
        )

    def box(
        self,
        place: tuple[float, float, float, float],
        lines: Sequence[str] = (),
        style: str = "plain",
        text: str = "",
    ) -> None:
        """Draw a box at (x, y, width, height); the first of its lines is bold if there are more.

        The style is that of the box, and text is one of all its lines, such as "small".
        """
        x, y, width, height = place
        self._add(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'rx="{min(7, height / 5):g}" class="{style}"/>',
            y + height,
        )
        styles = [f"{text} bold".strip(), *["small muted"] * len(lines)]
        for number, line in enumerate(lines):
            under = (number - (len(lines) - 1) / 2) * 19
            style = styles[number] if len(lines) > 1 else text
            self.label(x + width / 2, y + height / 2 + 5 + under, line, style)

    def line(self, points: Sequence[tuple[float, float]], style: str = "line") -> None:
        """Draw a line through these points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._add(f'<polyline points="{path}" class="{style}"/>', max(y for _, y in points))

    def arrow(
        self, points: Sequence[tuple[float, float]], colour: str = "", dashed: bool = False
    ) -> None:
        """Draw a line through these points that ends in an arrow's head; colour is blue, orange."""
        (x0, y0), (x, y) = points[-2:]
        length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
        ahead, aside = ((x - x0) / length, (y - y0) / length), 4
        back = (x - 9 * ahead[0], y - 9 * ahead[1])
        prefix = f"{colour}-" if colour else ""
        self.line([*points[:-1], back], f"{prefix}line" + " dashed" * dashed)
        corners = (
            (x, y),
            (back[0] + aside * ahead[1], back[1] - aside * ahead[0]),
            (back[0] - aside * ahead[1], back[1] + aside * ahead[0]),
        )
        path = " ".join(f"{a:g},{b:g}" for a, b in corners)
        self._add(f'<polygon points="{path}" class="{prefix}head"/>', y)

    def dot(self, x: float, y: float, style: str, radius: float = 3.5) -> None:
        """Draw a dot, as where a line begins."""
        self._add(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{style}"/>', y)

    def lane(
        self, y: float, name: str, spans: Sequence[tuple[float, float, str, str]], height: float
    ) -> None:
        """Draw a lane over time: its name, and spans of (start, end, text, style)."""
        self.label(20, y + height / 2 + 5, name, "small", "start")
        for start, end, text, style in spans:
            self.box((start, y, end - start, height), (text,) * bool(text), style, "tiny")

    def svg(self) -> str:
        """Return the picture as an SVG document, without a fixed size."""
        height = self.bottom + 16
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
                f'role="img" aria-labelledby="title desc">',
                f'<title id="title">{escape(self.title)}</title>',
                f'<desc id="desc">{escape(self.description)}</desc>',
                f"<style>\n{STYLE}\n</style>",
                f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="10" '
                f'class="card"/>',
                *self.parts,
                "</svg>\n",
            )
        )


class Talk:
    """Draws who tells whom what: a column for each party, and time from top to bottom."""

    def __init__(self, picture: Picture, parties: Sequence[tuple[str, float, str]]) -> None:
        """Draw the heads of the columns, each a name, the middle of the column, and a style."""
        self.picture = picture
        self.columns = {name: x for name, x, _ in parties}
        for name, x, style in parties:
            picture.box((x - 62, 18, 124, 34), (name,), style)
        self.begin = len(picture.parts)
        self.y = 52.0

    def tell(
        self, senders: Sequence[str], receivers: Sequence[str], text: str, colour: str = ""
    ) -> None:
        """Draw arrows from parties to others, at one time, with a text above them."""
        self.y += 36
        starts = [self.columns[sender] for sender in senders]
        ends = [self.columns[receiver] for receiver in receivers]
        far = max(starts, key=lambda x: abs(x - ends[0]))
        for end in ends:
            self.picture.arrow([(far, self.y), (end, self.y)], colour)
        for start in starts:
            self.picture.dot(start, self.y, f"{colour}-head" if colour else "head")
        everywhere = [*starts, *ends]
        middle = (min(everywhere) + max(everywhere)) / 2
        width = 7.6 * len(text)
        self.picture.box((middle - width / 2, self.y - 22, width, 17), style="ground")
        self.picture.label(middle, self.y - 9, text, "small")

    def note(
        self, parties: Sequence[str], lines: Sequence[str], style: str, same: bool = False
    ) -> None:
        """Draw a box over these columns that says what happens there, or beside the last one."""
        height = 14 + 19 * len(lines)
        self.y += -height if same else 18
        ends = [self.columns[party] for party in parties]
        left, right = min(ends) - 62, max(ends) + 62
        self.picture.box((left, self.y, right - left, height), lines, style, "small")
        self.y += height

    def end(self) -> None:
        """Draw the columns' lines behind everything else."""
        front = self.picture.parts[self.begin :]
        del self.picture.parts[self.begin :]
        for x in self.columns.values():
            self.picture.line([(x, 52), (x, self.y + 14)], "line dashed")
        self.picture.parts += front
