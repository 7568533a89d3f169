import threading
from typing import Any

import pytest
from hypothesis import given, strategies as st
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult

from evertick.domain.schedule.instants import from_us, to_us
from evertick.domain.tracing import (
    FiredRun,
    TraceContext,
    attempt_context,
    fire_span_id,
    parse_traceparent,
    trace_id_of,
)
from evertick.executor.sources.http.source import RemoteAttempt
from evertick.runtime.otel import MAX_WAITING, RunTracer
from evertick.runtime.otlp import exporting
from evertick.runtime.tracing import traceparent_of, using

contexts = st.builds(TraceContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())


@given(contexts)
def test_a_context_is_read_as_it_was_written(context: TraceContext) -> None:
    assert parse_traceparent(str(context)) == context


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
    ],
)
def test_what_is_not_valid_counts_as_missing(text: str) -> None:
    assert parse_traceparent(text) is None


def test_a_later_version_may_say_more_and_only_one_flag_counts() -> None:
    later = parse_traceparent("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03-more")
    assert later == (0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, True)


@given(st.text())
def test_no_text_breaks_the_reading(text: str) -> None:
    read = parse_traceparent(text)
    assert read is None or read.trace_id > 0


def test_all_attempts_of_a_run_share_a_trace_and_each_has_a_span() -> None:
    first, second, other = attempt_context("run_a", 5), attempt_context("run_a", 6), attempt_context("run_b", 5)
    assert first == attempt_context("run_a", 5)
    assert first.trace_id == second.trace_id != other.trace_id
    assert first.span_id != second.span_id
    assert first.is_sampled


@given(contexts)
def test_a_run_that_was_asked_for_within_a_trace_belongs_to_it(caller: TraceContext) -> None:
    context = attempt_context("run_a", 5, caller)
    assert (context.trace_id, context.is_sampled) == (caller.trace_id, caller.is_sampled)
    assert context.span_id == attempt_context("run_a", 5).span_id


def test_the_samplers_of_all_processes_agree_on_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    exporter = InMemorySpanExporter()
    _, scheduler = exporting(SimpleSpanProcessor(exporter), "scheduler")
    _, worker = exporting(SimpleSpanProcessor(InMemorySpanExporter()), "worker")
    attempts = [_attempt(number) for number in range(200)]
    scheduler.fired(
        [FiredRun(256, to_us(each.fire_at), to_us(each.fire_at), 1, "tick", None, None) for each in attempts], 0
    )
    scheduler.close()
    fired = {(each.context.trace_id, each.context.span_id) for each in exporter.get_finished_spans() if each.context}
    sampled = {context[:2] for each in attempts if (context := worker.context_to_hand_on(each)) and context.is_sampled}
    assert fired == sampled
    assert 20 <= len(fired) <= 80


class _Stuck(SpanProcessor):
    """Holds the first span up until it is told to go on."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.ended = 0

    def on_end(self, span: ReadableSpan) -> None:
        self.may_go_on.wait()
        self.ended += 1


def test_what_waits_for_spans_is_bounded_in_runs(caplog: pytest.LogCaptureFixture) -> None:
    processor = _Stuck()
    _, tracer = exporting(processor, "scheduler")
    sampled = FiredRun(256, 10**15, 10**15, 1, "tick", None, None)
    unsampled = sampled._replace(caller=str(TraceContext(1, 1, is_sampled=False)))
    tracer.fired([sampled], 0)
    tracer.fired([sampled], 0)
    tracer.fired([unsampled] * MAX_WAITING, 0)
    tracer.fired([sampled], 0)
    tracer.fired([sampled], 0)
    processor.may_go_on.set()
    tracer.close()
    assert processor.ended == 2
    assert [record.message for record in caplog.records if "spans are dropped" in record.message] == [
        "spans are dropped: more runs are traced than this process can make spans for"
    ]


class _Broken(Sampler):
    def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
        raise ValueError("broken")

    def get_description(self) -> str:
        return "broken"


def test_a_sampler_that_fails_stops_no_attempt() -> None:
    tracer = RunTracer(TracerProvider(sampler=_Broken()))
    attempt = _attempt(1)
    without = traceparent_of(attempt)
    with using(tracer):
        assert traceparent_of(attempt) == without
        assert tracer.begin(attempt, 0) is None
    tracer.close()


def _attempt(number: int) -> RemoteAttempt:
    return RemoteAttempt(
        token=(1, number),
        lease_id=1,
        job_id=256,
        name="nightly",
        fire_at=from_us(10**15 + number),
        reason="tick",
        attempt=1,
        deferrals=0,
        handler="handle",
        payload=None,
        timeout_seconds=60,
        idempotency_key="key",
        due_at=from_us(10**15 + number),
    )


def test_ids_are_the_same_in_every_release() -> None:
    """Two releases that run side by side must agree on them."""
    assert f"{trace_id_of('run_a'):032x}" == "a90985b511291bc8f8e6bf75a0c88648"
    assert f"{fire_span_id('run_a', 1_781_532_000_000_001):016x}" == "dbf86da7b987d3aa"
