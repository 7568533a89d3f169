"""Plots as SVG: panels side by side, a logarithmic x axis of counts, a linear y axis from zero.

The same values give the same text. Colours follow the light or dark mode of the reader.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLUMNS = 2
WIDTH, HEIGHT = 360, 250
"""Size of one panel with its labels and margins."""
LEFT, RIGHT, TOP, BOTTOM = 62, 24, 36, 46
NAME_WIDTH = 82
Y_STEPS = 4

_STYLE = """
  svg { font: 12px system-ui, sans-serif; }
  .paper { fill: #ffffff; } .text { fill: #1f2328; } .faint { fill: #59636e; }
  .axis { stroke: #59636e; } .grid { stroke: #d1d9e0; }
  .first { stroke: #0969da; fill: #0969da; } .second { stroke: #bc4c00; fill: #bc4c00; }
  .line { fill: none; stroke-width: 2; } .title { font-weight: 600; } .name { stroke: none; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; } .text { fill: #f0f6fc; } .faint { fill: #9198a1; }
    .axis { stroke: #9198a1; } .grid { stroke: #3d444d; }
    .first { stroke: #4493f8; fill: #4493f8; } .second { stroke: #f0883e; fill: #f0883e; }
    .line { fill: none; } .name { stroke: none; }
  }
"""
_KINDS = ("first", "second")


@dataclass(frozen=True, slots=True)
class Series:
    """Values over counts. None is a missing value. A panel with several series shows their names."""

    name: str
    values: tuple[tuple[int, float | None], ...]

    @property
    def known(self) -> list[tuple[int, float]]:
        return [(count, value) for count, value in self.values if value is not None]


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity, with its unit in the title, and at most two series."""

    title: str
    series: tuple[Series, ...]


def draw(title: str, x_label: str, panels: Sequence[Panel]) -> str:
    """All panels as one SVG document."""
    rows = math.ceil(len(panels) / COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, COLUMNS)
        parts.append(f'<g transform="translate({column * WIDTH} {row * HEIGHT})">')
        parts += _panel(panel, x_label)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps counts and values to coordinates: decades on x, up to a round number on y."""

    first_decade: int
    last_decade: int
    step: float

    def x(self, count: float) -> float:
        share = (math.log10(count) - self.first_decade) / (self.last_decade - self.first_decade)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / (Y_STEPS * self.step) * (HEIGHT - TOP - BOTTOM)


def _scale(lines: Sequence[Series]) -> _Scale:
    known = [point for line in lines for point in line.known] or [(1, 1.0)]
    first = math.floor(math.log10(min(count for count, _ in known)))
    last = math.ceil(math.log10(max(count for count, _ in known)))
    return _Scale(first, max(last, first + 1), _round_step(max(value for _, value in known) / Y_STEPS))


def _round_step(least: float) -> float:
    """The next of 1, 2, 2.5, 5 and 10 times a power of ten."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10, 20) if factor * power >= least)


def _panel(panel: Panel, x_label: str) -> Iterator[str]:
    scale = _scale(panel.series)
    yield _text(LEFT, TOP - 16, panel.title, "text title", "start")
    yield from _axes(scale, x_label)
    for kind, line in zip(_KINDS, panel.series, strict=False):
        yield from _line(scale, line, kind)
    if len(panel.series) > 1:
        # Beside the title, where no line is drawn.
        for offset, kind, line in zip((NAME_WIDTH, 0), _KINDS, panel.series, strict=False):
            yield _text(WIDTH - RIGHT - offset, TOP - 16, line.name, f"{kind} name", "end")


def _axes(scale: _Scale, x_label: str) -> Iterator[str]:
    floor = HEIGHT - BOTTOM
    for number in range(Y_STEPS + 1):
        value = number * scale.step
        y = scale.y(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT - 8, y + 4, f"{value:,.10g}", "faint", "end")
    for decade in range(scale.first_decade, scale.last_decade + 1):
        x = scale.x(10**decade)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{floor}" y2="{floor + 5}"/>'
        yield _text(x, floor + 19, _count(10**decade), "faint", "middle")
    yield f'<path class="axis" fill="none" d="M{LEFT} {TOP}V{floor}H{WIDTH - RIGHT}"/>'
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 9, x_label, "faint", "middle")


def _line(scale: _Scale, line: Series, kind: str) -> Iterator[str]:
    points = [(scale.x(count), scale.y(value)) for count, value in line.known]
    if len(points) > 1:
        yield f'<polyline class="{kind} line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
    for (count, value), (x, y) in zip(line.known, points, strict=True):
        tooltip = f"<title>{count:,}: {value:,.6g}</title>"
        yield f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{tooltip}</circle>'


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _count(number: int) -> str:
    """A short form: 10 k, 1 M."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number // size:,} {letter}"
    return str(number)
