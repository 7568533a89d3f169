"""Charts as inline SVG. Pure functions from figures to markup; colours come from classes of the stylesheet.

Texts are escaped. Every chart is an image with a label that says what it shows; bars and cells have titles.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from evertick.dashboard.formatting import milliseconds, number

WIDTH, HEIGHT = 1200, 120
_NOTHING = Markup()
_TICK_WIDTH = 7
_LEG_HEIGHT = 12
_GAP = 0.22
"""Of a bar's width, left free."""
_LEAST_BARS = 40
"""Fewer are not wider."""
_SMALL_SCALES = (2, 4, 6, 8, 10)
_SCALES = (1.2, 1.6, 2, 3, 4, 5, 6, 8, 10)
_NAME_PERCENT = 14.0
"""Of the height of a chart, for the name of a level."""


class Part(NamedTuple):
    """A part of a bar. `name` is its class: ok, bad, other, planned, unknown."""

    name: str
    value: float


class Bar(NamedTuple):
    title: str
    parts: tuple[Part, ...]


class Tick(NamedTuple):
    """A mark on a time line. `at` is from 0 to 1. `name` is its class, and gives its height: see `_EXTENTS`."""

    at: float
    name: str
    title: str


class Span(NamedTuple):
    """A leg of a way: its class, what it is, how many seconds it took, and these as people read them."""

    name: str
    text: str
    seconds: float
    took: str


class Holding(NamedTuple):
    """A cell of the map of partitions. `colour` is its holder's; None: nobody holds it."""

    colour: int | None
    title: str


class Cell(NamedTuple):
    """A cell of a heat map. `level` is from 0 to 4. `mark` is drawn into it: bad is a cross, gap a dash."""

    level: int
    title: str
    mark: str = ""


_EXTENTS = {"bad": (0.0, 1.0), "run": (0.3, 1.0), "skipped": (0.65, 1.0), "missed": (0.0, 0.35)}
"""From where to where a mark on a time line reaches, so that colour is not needed to tell them; others as `ok`."""
_OK_EXTENT = (0.3, 1.0)
_NAME_WIDTH, _HEAD_HEIGHT = 44, 18
"""Of the names of a heat map's rows and columns."""
_MARKS = {"bad": "M-3,-3L3,3M3,-3L-3,3", "gap": "M-3,0L3,0"}


def stacked_bars(bars: Sequence[Bar], label: str, *, now: int | None = None, labels: Sequence[str] = ()) -> Markup:
    """Bars from left to right, each of parts from the bottom, with a scale at the left.

    `now`: a line stands before this bar. `labels` are spread below, from the first bar to the last.
    """
    top = _round_up(_highest(bars))
    drawn = _bars(bars, top)
    if now is not None:
        x = now * WIDTH / max(len(bars), _LEAST_BARS)
        drawn.append(_tag("line", x1=x, x2=x, y1=0, y2=HEIGHT, class_="now"))
    below = _spread("chart-labels", labels) if labels else _NOTHING
    return _plot(_svg("chart bars", WIDTH, HEIGHT, label, drawn) + below, top, number)


def duration_bars(bars: Sequence[Bar], label: str, levels: Sequence[tuple[str, float]]) -> Markup:
    """The same of milliseconds. At each of the levels there is a line across, with its name at the right."""
    top = _round_up(_highest(bars))
    drawn = _bars(bars, top)
    for _, level in levels:
        y = HEIGHT * (1 - level / top)
        drawn.append(_tag("line", x1=0, x2=WIDTH, y1=y, y2=y, class_="level"))
    return _plot(_svg("chart bars", WIDTH, HEIGHT, label, drawn) + _level_names(levels, top), top, milliseconds)


def _highest(bars: Iterable[Bar]) -> float:
    return max((sum(part.value for part in bar.parts) for bar in bars), default=0)


def _bars(bars: Sequence[Bar], top: float) -> list[Markup]:
    """With the lines of the scale behind them. A few bars stand at the right, where the newest is."""
    slots = max(len(bars), _LEAST_BARS)
    step = WIDTH / slots
    lines = [("grid", 0.0), ("grid", HEIGHT / 2), ("axis", float(HEIGHT))]
    drawn = [_tag("line", x1=0, x2=WIDTH, y1=y, y2=y, class_=name) for name, y in lines]
    return drawn + [_bar(bar, place * step, step, top) for place, bar in enumerate(bars, slots - len(bars))]


def _plot(chart: Markup, top: float, text_of: Callable[[float], str]) -> Markup:
    return _tag("div", _spread("scale", map(text_of, (top, top / 2, 0.0))) + chart, class_="plot")


def _spread(name: str, texts: Iterable[str]) -> Markup:
    return _tag("div", _NOTHING.join(_tag("span", escape(text)) for text in texts), class_=name, aria_hidden="true")


def _level_names(levels: Sequence[tuple[str, float]], top: float) -> Markup:
    """At the heights of their lines, in percent; as far apart as they need to be read."""
    drawn, lowest = [], 100.0
    for name, level in sorted(levels, key=lambda each: each[1]):
        lowest = min(100 * (1 - level / top), lowest)
        drawn.append(_tag("text", escape(name), x=0, y=f"{lowest:.1f}%", dy="0.35em"))
        lowest -= _NAME_PERCENT
    return _tag("svg", _NOTHING.join(drawn), class_="chart level-names", aria_hidden="true")


def _round_up(value: float) -> float:
    """The top of a scale: a round number, and its half is one too."""
    if value <= _SMALL_SCALES[-1]:
        return next(each for each in _SMALL_SCALES if each >= value)
    power = 10.0 ** math.floor(math.log10(value))
    return next(each * power for each in _SCALES if each * power >= value)


def _bar(bar: Bar, x: float, step: float, top: float) -> Markup:
    width, y, drawn = step * (1 - _GAP), float(HEIGHT), []
    for name, value in bar.parts:
        if name == "unknown":
            drawn.append(_tag("rect", x=x, y=0, width=step, height=HEIGHT, class_=name))
        elif value > 0:
            height = max(value / top * HEIGHT, 1.5)
            y -= height
            drawn.append(_tag("rect", x=x + step * _GAP / 2, y=y, width=width, height=height, class_=name))
    hover = _tag("rect", x=x, y=0, width=step, height=HEIGHT, class_="hover")
    return _tag("g", _tag("title", escape(bar.title)) + hover + _NOTHING.join(drawn))


def sparkline(values: Sequence[float], label: str, *, width: int = 120, height: int = 28) -> Markup:
    """A line through some values, with the area below it."""
    if len(values) < 2:
        return _svg("chart spark", width, height, label, [])
    highest = max(values) or 1
    step = width / (len(values) - 1)
    points = [
        f"{place * step:.1f},{height - 1 - value / highest * (height - 3):.1f}" for place, value in enumerate(values)
    ]
    area = f"0,{height} {' '.join(points)} {width},{height}"
    drawn = [_tag("polygon", points=area, class_="area"), _tag("polyline", points=" ".join(points), class_="line")]
    return _svg("chart spark", width, height, label, drawn)


def timeline(ticks: Iterable[Tick], label: str, *, width: int = WIDTH, height: int = 24) -> Markup:
    """Marks along a line, such as the latest runs of a job."""
    drawn = [_tick(tick, width, height) for tick in ticks]
    return _svg("chart timeline", width, height, label, drawn)


def waterfall(spans: Sequence[Span], label: str) -> Markup:
    """A row for each leg: what it is, a bar that begins where the one before ended, and how long it took."""
    total = sum(span.seconds for span in spans) or 1.0
    rows, x = [], 0.0
    for span in spans:
        width = span.seconds / total * WIDTH
        rows.append(_tag("li", _leg(span, x, width)))
        x += width
    return _tag("ol", _NOTHING.join(rows), class_="waterfall", aria_label=label)


def _leg(span: Span, x: float, width: float) -> Markup:
    ground = _tag("rect", x=0, y=0, width=WIDTH, height=_LEG_HEIGHT, class_="level-0")
    bar = _tag("rect", x=min(x, WIDTH - 3.0), y=0, width=max(width, 3.0), height=_LEG_HEIGHT, class_=span.name)
    box = f"0 0 {WIDTH} {_LEG_HEIGHT}"
    drawn = _tag("svg", ground + bar, class_="chart leg", viewBox=box, preserveAspectRatio="none", aria_hidden="true")
    return _tag("span", escape(span.text)) + drawn + _tag("span", escape(span.took), class_="took")


def partition_map(holdings: Sequence[Holding], label: str, *, columns: int = 32, size: int = 20) -> Markup:
    """A cell for each partition, with the colour and the letter of its holder. What nobody holds is an outline."""
    drawn = [
        _partition(holding, place % columns * size, place // columns * size, size)
        for place, holding in enumerate(holdings)
    ]
    rows = -(-len(holdings) // columns)
    return _svg("chart map", columns * size, max(rows, 1) * size, label, drawn)


def _partition(holding: Holding, x: int, y: int, size: int) -> Markup:
    name, letter = "unheld", _NOTHING
    if holding.colour is not None:
        name = f"holder-{holding.colour}"
        letter = _tag("text", escape(letter_of(holding.colour)), x=x + size / 2 - 0.5, y=y + size / 2 + 3.0)
    cell = _tag("rect", x=x + 1, y=y + 1, width=size - 3, height=size - 3, rx=3, class_=name)
    return _tag("g", _tag("title", escape(holding.title)) + cell + letter)


def letter_of(colour: int) -> str:
    """The letter of a holder: told apart without its colour."""
    return chr(ord("A") + colour - 1)


def _tick(tick: Tick, width: int, height: int) -> Markup:
    top, bottom = _EXTENTS.get(tick.name, _OK_EXTENT)
    x = min(max(tick.at, 0.0), 1.0) * (width - _TICK_WIDTH)
    hover = _tag("rect", x=x - 1, y=0, width=_TICK_WIDTH + 2, height=height, class_="hover")
    mark = _tag(
        "rect",
        x=x,
        y=float(height * top),
        width=_TICK_WIDTH,
        height=float(height * (bottom - top)),
        rx=2,
        class_=tick.name,
    )
    return _tag("g", _tag("title", escape(tick.title)) + hover + mark)


def heat_map(
    rows: Sequence[tuple[str, Sequence[Cell | None]]],
    label: str,
    *,
    columns: Sequence[str] = (),
    size: tuple[int, int] = (14, 14),
) -> Markup:
    """Rows of cells, each with a name at its left. A None is left free. `columns` are names above them, or empty."""
    (width, height), top = size, _HEAD_HEIGHT if columns else 0
    drawn = [
        _tag("text", escape(name), x=_NAME_WIDTH + place * width, y=top - 6)
        for place, name in enumerate(columns)
        if name
    ]
    for place, (name, cells) in enumerate(rows):
        y = top + place * height
        drawn.append(_tag("text", escape(name), x=0, y=y + height - 4))
        drawn += [
            _cell(cell, _NAME_WIDTH + column * width, y, size) for column, cell in enumerate(cells) if cell is not None
        ]
    most = max((len(cells) for _, cells in rows), default=0)
    return _svg("chart heat", _NAME_WIDTH + most * width, top + max(len(rows), 1) * height, label, drawn)


def heat_key(least: str, most: str) -> Markup:
    """What the colours of a heat map mean."""
    cells = [_tag("rect", x=14 * level, y=0, width=12, height=12, rx=2, class_=f"level-{level}") for level in range(5)]
    drawn = _tag("svg", _NOTHING.join(cells), class_="chart heat-colours", viewBox="0 0 68 12", aria_hidden="true")
    return _tag("span", _tag("span", escape(least)) + drawn + _tag("span", escape(most)), class_="heat-key")


def _cell(cell: Cell, x: int, y: int, size: tuple[int, int]) -> Markup:
    width, height = size
    name = f"level-{min(max(cell.level, 0), 4)} {cell.mark}".strip()
    square = _tag("rect", x=x, y=y, width=width - 2, height=height - 2, rx=2, class_=name)
    if cell.mark in _MARKS:
        place = f"translate({x + width / 2 - 1:g},{y + height / 2 - 1:g})"
        square += _tag("path", d=_MARKS[cell.mark], transform=place, class_=f"mark {cell.mark}")
    return _tag("g", _tag("title", escape(cell.title)) + square)


def _svg(name: str, width: float, height: float, label: str, drawn: Iterable[Markup]) -> Markup:
    stretch = "none" if name in {"chart bars", "chart spark", "chart timeline"} else "xMinYMin meet"
    return _tag(
        "svg",
        _NOTHING.join(drawn),
        class_=name,
        viewBox=f"0 0 {width:g} {height:g}",
        preserveAspectRatio=stretch,
        role="img",
        aria_label=label,
    )


def _tag(name: str, content: Markup = _NOTHING, **attributes: object) -> Markup:
    """An element. A name of an attribute may end in an underscore, and has dashes for others."""
    text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(f"{value:.2f}" if isinstance(value, float) else value)}"'
        for key, value in attributes.items()
    )
    return Markup(f"<{name}{text}>{content}</{name}>")  # noqa: S704 - names are ours, values are escaped above
