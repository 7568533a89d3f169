"""Charts: every text is escaped, and sizes follow the figures."""

import itertools
import xml.etree.ElementTree as ET

import pytest
from markupsafe import Markup

from evertick.dashboard import charts
from evertick.dashboard.charts import Bar, Cell, Part, Span, Tick

HOSTILE = "\"><script>alert(1)</script>&'"
DRAWN = {
    "bars": charts.stacked_bars([Bar(HOSTILE, (Part("ok", 3), Part("bad", 1))), Bar("none", ())], HOSTILE, now=1),
    "durations": charts.duration_bars([Bar(HOSTILE, (Part("ok", 3),))], HOSTILE, [(HOSTILE, 3), ("p99", 3)]),
    "spark": charts.sparkline([1, 5, 2], HOSTILE),
    "spark of nothing": charts.sparkline([], HOSTILE),
    "timeline": charts.timeline([Tick(0.5, "ok", HOSTILE), Tick(7, "bad", "beyond")], HOSTILE),
    "waterfall": charts.waterfall([Span("work", HOSTILE, 2.0, HOSTILE), Span("late", "", 0.0, "")], HOSTILE),
    "heat": charts.heat_map([(HOSTILE, [Cell(2, HOSTILE, "bad"), None, Cell(99, "hot")])], HOSTILE, columns=[HOSTILE]),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_chart_is_well_formed_and_has_a_label(name: str) -> None:
    chart = DRAWN[name]
    assert isinstance(chart, Markup)
    root = ET.fromstring(str(chart))
    assert HOSTILE in {each.get("aria-label") for each in root.iter()}
    assert root.find(".//script") is None
    assert "style=" not in str(chart)


def test_bars_are_in_proportion_to_a_scale_of_round_numbers() -> None:
    chart = charts.stacked_bars([Bar("a", (Part("ok", 45),)), Bar("b", (Part("ok", 90),))], "runs")
    root = ET.fromstring(str(chart))
    low, high = (float(bar.get("height", 0)) for bar in root.iterfind(".//rect[@class='ok']"))
    assert [each.text for each in root.iterfind("div[@class='scale']/span")] == ["100", "50", "0"]
    assert high == pytest.approx(charts.HEIGHT * 0.9)
    assert low == pytest.approx(high / 2)


@pytest.mark.parametrize(
    ("highest", "top"), [(0, "2"), (1, "2"), (7, "8"), (10, "10"), (11, "12"), (13, "16"), (4_310, "5,000")]
)
def test_a_scale_ends_at_the_next_round_number(highest: int, top: str) -> None:
    root = ET.fromstring(str(charts.stacked_bars([Bar("", (Part("ok", highest),))], "runs")))
    assert root.findtext("div[@class='scale']/span") == top


def test_names_of_levels_that_are_close_do_not_cover_each_other() -> None:
    levels = [("p50", 20.0), ("p95", 99.0), ("p99", 100.0)]
    root = ET.fromstring(str(charts.duration_bars([Bar("", (Part("ok", 100.0),))], "took", levels)))
    places = [float(each.get("y", "").rstrip("%")) for each in root.iterfind(".//text")]
    assert all(below - above > 10 for below, above in itertools.pairwise(places))


def test_a_few_bars_stand_at_the_right_and_are_not_wide() -> None:
    root = ET.fromstring(str(charts.stacked_bars([Bar("", (Part("ok", 1),))], "runs")))
    bar = root.find(".//rect[@class='ok']")
    assert bar is not None
    width, x = float(bar.get("width", 0)), float(bar.get("x", 0))
    assert width < charts.WIDTH / 40
    assert x + width == pytest.approx(charts.WIDTH, abs=5)


def test_marks_stay_inside_of_a_time_line() -> None:
    chart = charts.timeline([Tick(-3, "ok", ""), Tick(3, "ok", "")], "runs")
    places = [float(mark.get("x", -1)) for mark in ET.fromstring(str(chart)).iterfind(".//rect[@class='ok']")]
    assert places == [0, charts.WIDTH - 7]
