"""The instruments count right, the page is what Prometheus reads, and the number of series is bounded."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from prometheus_client.parser import text_string_to_metric_families

from evertick.metrics import catalog
from evertick.metrics.exposition import page
from evertick.metrics.instruments import Counter, Gauge, Histogram, Sample
from evertick.metrics.queue_labels import MAX_QUEUES, OTHER, QueueLabels

BOUNDS = (0.1, 1.0, 10.0)


def told(samples: Iterator[Sample]) -> dict[tuple[str, ...], float]:
    return {(sample.suffix, *(value for _, value in sample.labels)): sample.value for sample in samples}


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 5))))
def test_a_histogram_counts_each_value_in_all_buckets_that_hold_it(observed: list[tuple[float, int]]) -> None:
    histogram = Histogram("h", "text", bounds=BOUNDS)
    for value, times in observed:
        histogram.of().observe(value, times)
    values = [value for value, times in observed for _ in range(times)]
    found = told(histogram.samples())
    for bound, text in zip((*BOUNDS, float("inf")), ("0.1", "1.0", "10.0", "+Inf"), strict=True):
        assert found["_bucket", text] == sum(value <= bound for value in values)
    assert found["_count",] == len(values)
    assert found["_sum",] == pytest.approx(sum(values))


def test_a_counter_shows_what_it_may_count_before_it_did() -> None:
    counter = Counter("c", "text", "reason", known=[("a",), ("b",)])
    counter.add(2, "a")
    counter.add(1, "new")
    counter.add(0, "never")
    assert told(counter.samples()) == {("", "a"): 2, ("", "b"): 0, ("", "new"): 1}


def test_a_gauge_adds_up_what_is_watched_until_it_is_not_any_more() -> None:
    gauge = Gauge("g", "text", "role")
    assert told(gauge.samples()) == {}
    unwatch = gauge.watch_value(lambda: 2, "worker")
    gauge.watch_value(lambda: 3, "worker")
    assert told(gauge.samples()) == {("", "worker"): 5}
    assert told(gauge.samples({("api",): 7})) == {("", "api"): 7, ("", "worker"): 5}
    unwatch()
    unwatch()
    assert told(gauge.samples()) == {("", "worker"): 3}


def test_of_a_gauge_that_cannot_be_added_up_the_largest_is_shown() -> None:
    gauge = Gauge("g", "text", is_largest=True)
    for value in (0.1, 0.3, 0.2):
        gauge.watch_value(lambda value=value: value)  # type: ignore[misc]
    assert told(gauge.samples()) == {("",): 0.3}


def test_another_program_reads_the_page() -> None:
    catalog.LAG.of("worker", 'a "quoted"\\name\n').observe(0.2)
    text = page({catalog.READY: {("billing",): 4}, catalog.NODES: {(): 1}}).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["evertick_nodes"].samples[0].value == 1
    assert families["evertick_ready_attempts"].samples[0].labels == {"queue": "billing"}
    assert families["evertick_fired"].type == "counter"
    lag = families["evertick_lag_seconds"]
    assert lag.type == "histogram"
    assert 'a "quoted"\\name\n' in {sample.labels["queue"] for sample in lag.samples}
    kinds = {each.name.removesuffix("_total"): each.kind for each in catalog.ALL}
    assert {name: family.type for name, family in families.items() if name in kinds}.items() <= kinds.items()
    assert {"process_open_fds", "process_resident_memory_bytes"} <= families.keys()


def test_names_are_those_of_prometheus() -> None:
    """As promtool checks them: base units, counters end in `_total`, no other does."""
    names = [each.name for each in catalog.ALL]
    assert len(set(names)) == len(names)
    for each in catalog.ALL:
        assert each.name.endswith("_total") == isinstance(each, Counter)
        assert each.name.endswith("_seconds") or not isinstance(each, Histogram)
        assert each.text[0].isupper()
        assert not each.text.endswith(".")


def test_the_first_queues_have_series_and_all_others_share_one() -> None:
    labels = QueueLabels(most=2)
    assert [labels.of(name) for name in ("a", "b", "c", "a")] == ["a", "b", OTHER, "a"]
    assert list(labels.known) == ["a", "b"]


def test_chosen_queues_have_series_and_no_others() -> None:
    labels = QueueLabels()
    labels.choose(["billing"])
    assert [labels.of(name) for name in ("default", "billing")] == [OTHER, "billing"]
    labels.choose(None)
    assert labels.of("default") == "default"


def test_a_million_queues_make_no_more_series_than_fifty() -> None:
    labels = QueueLabels()
    assert len({labels.of(f"queue-{number}") for number in range(10_000)}) == MAX_QUEUES + 1


def test_bounds_are_fine_enough_for_a_p999() -> None:
    """Neighbours differ by a half at most where objectives are, and every objective of the rules is a bound."""
    bounds = [bound for bound in catalog.LAG_BOUNDS if 0.05 <= bound <= 1.5]
    assert all(after <= 1.51 * before for before, after in pairwise(bounds))
    assert catalog.LAG_BOUNDS[bisect_left(catalog.LAG_BOUNDS, 1.0)] == 1.0
