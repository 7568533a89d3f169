"""The bench's own plots: well-formed, the same each time, and with each value where its axes say."""

from typing import Any
from xml.etree import ElementTree as ET

from hypothesis import given, strategies as st

from evertick.bench.plot import Panel, Series, draw
from evertick.bench.scenarios.growth import panels

SVG = "{http://www.w3.org/2000/svg}"
counts = st.integers(1, 10**9)
values = st.none() | st.floats(0, 1e12, allow_subnormal=False)
lines = st.builds(Series, st.text("<&>\"'aµ ", max_size=8), st.lists(st.tuples(counts, values), max_size=5).map(tuple))
drawn = st.lists(st.builds(Panel, st.text("<&>\"'aµ ", max_size=8), st.tuples(lines) | st.tuples(lines, lines)))


def _circles(svg: str) -> list[tuple[float, float]]:
    return [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in ET.fromstring(svg).iter(f"{SVG}circle")]


@given(drawn)
def test_whatever_is_drawn_is_well_formed_and_repeatable(panels: list[Panel]) -> None:
    svg = draw("<costs> & more", "jobs", panels)
    assert draw("<costs> & more", "jobs", panels) == svg
    known = [point for panel in panels for line in panel.series for point in line.known]
    places = _circles(svg)
    assert len(places) == len(known)
    # Inside the axes, but for the rounding of places.
    assert all(61.9 <= x <= 336.1 and 35.9 <= y <= 204.1 for x, y in places)


def test_counts_are_logarithmic_and_values_linear() -> None:
    svg = draw("costs", "jobs", [Panel("µs", (Series("", ((100, 10.0), (1000, 20.0), (10000, 40.0))),))])
    (x1, y1), (x2, y2), (x3, y3) = _circles(svg)
    assert x2 - x1 == x3 - x2 > 0
    assert round((y1 - y3) / (y1 - y2), 2) == 3


def test_axes_have_round_labels() -> None:
    svg = draw("costs", "jobs", [Panel("µs", (Series("", ((100_000, 30.0), (10_000_000, 37.0))),))])
    texts = [each.text for each in ET.fromstring(svg).iter(f"{SVG}text")]
    assert texts == ["µs", "0", "10", "20", "30", "40", "100 k", "1 M", "10 M", "jobs"]


def test_growth_has_a_panel_for_each_cost() -> None:
    point: dict[str, Any] = {
        "jobs": 1000,
        "us_per_job_loaded": 50.0,
        "us_per_run": None,
        "bytes_per_job": 900,
        "look_up_ms": {"due": {"p50": 4.0}, "nothing_due": {"p50": 1.0}},
    }
    found = panels([point])
    assert [[line.known for line in panel.series] for panel in found] == [
        *([[(1000, 50.0)]], [[]], [[(1000, 4.0)], [(1000, 1.0)]], [[(1000, 900.0)]])
    ]
    assert len({panel.title for panel in found}) == 4
