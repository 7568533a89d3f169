"""Charts: every text is escaped, and sizes follow the figures."""

import xml.etree.ElementTree as ET

import pytest
from markupsafe import Markup

from evertick.dashboard import charts
from evertick.dashboard.charts import Bar, Cell, Part, Span, Tick

HOSTILE = "\"><script>alert(1)</script>&'"
DRAWN = {
    "bars": charts.stacked_bars([Bar(HOSTILE, (Part("ok", 3), Part("bad", 1))), Bar("none", ())], HOSTILE, now=1),
    "spark": charts.sparkline([1, 5, 2], HOSTILE),
    "spark of nothing": charts.sparkline([], HOSTILE),
    "timeline": charts.timeline([Tick(0.5, "ok", HOSTILE), Tick(7, "bad", "beyond")], HOSTILE),
    "waterfall": charts.waterfall([Span("work", HOSTILE, 2.0, HOSTILE), Span("late", "", 0.0, "")], HOSTILE),
    "heat": charts.heat_map([(HOSTILE, [Cell(2, HOSTILE, "bad"), None, Cell(99, "hot")])], HOSTILE),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_chart_is_well_formed_and_has_a_label(name: str) -> None:
    chart = DRAWN[name]
    assert isinstance(chart, Markup)
    root = ET.fromstring(str(chart))
    assert root.get("aria-label") == HOSTILE
    assert root.find(".//script") is None
    assert "style=" not in str(chart)


def test_the_highest_bar_fills_the_chart_and_others_are_in_proportion() -> None:
    chart = charts.stacked_bars([Bar("a", (Part("ok", 50),)), Bar("b", (Part("ok", 100),))], "runs")
    low, high = (float(bar.get("height", 0)) for bar in ET.fromstring(str(chart)).iterfind(".//rect[@class='ok']"))
    assert high == pytest.approx(charts.HEIGHT - 4)
    assert low == pytest.approx(high / 2)


def test_marks_stay_inside_of_a_time_line() -> None:
    chart = charts.timeline([Tick(-3, "ok", ""), Tick(3, "ok", "")], "runs")
    places = [float(mark.get("x", -1)) for mark in ET.fromstring(str(chart)).iterfind(".//rect[@class='ok']")]
    assert places == [0, charts.WIDTH - 7]
