"""Spans of runs in one process, read from an exporter in memory."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from engine import until
from evertick import App, Run
from evertick.client import AsyncClient
from evertick.config.values import Tracing
from evertick.domain.tracing import parse_traceparent, trace_id_of
from evertick.executor.handlers.registry import Handlers
from evertick.roles.worker import DatabaseWorker
from evertick.runtime.extras import MissingExtra
from evertick.runtime.otlp import exporting
from evertick.runtime.tracing import active, tracing, using
from sdk.served import Served, submitted, worker_of, worker_target

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
LEGS = ["fire", "lease", "handle", "record"]


class Traces:
    """The spans that were exported."""

    def __init__(self, provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
        self.provider = provider
        self._exporter = exporter

    def of(self, run_id: str) -> list[ReadableSpan]:
        """In the order of the legs, then of time."""
        spans = [
            each for each in self._exporter.get_finished_spans() if _attributes(each).get("evertick.run_id") == run_id
        ]
        return sorted(spans, key=lambda span: (LEGS.index(span.name), span.start_time))

    async def complete(self, run_id: str, attempts: int = 1) -> list[ReadableSpan]:
        async def are_recorded() -> bool:
            return sum(span.name == "record" for span in self.of(run_id)) == attempts

        await until(are_recorded)
        return self.of(run_id)

    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()


@pytest.fixture
def traces() -> Iterator[Traces]:
    exporter = InMemorySpanExporter()
    provider, tracer = exporting(SimpleSpanProcessor(exporter), "test")
    with using(tracer):
        yield Traces(provider, exporter)
    tracer.close()


@pytest.fixture
async def seen(database_url: str, house: Served, traces: Traces) -> AsyncIterator[list[tuple[str, trace.SpanContext]]]:
    """What handlers of a worker on the database were told: the context to hand on, and the current span."""
    seen: list[tuple[str, trace.SpanContext]] = []

    def note(run: Run) -> None:
        seen.append((run.traceparent, trace.get_current_span().get_span_context()))
        with traces.provider.get_tracer("shop").start_as_current_span(
            "child", attributes={"of": run.run_id, "token": run.fencing_token}
        ):
            pass

    async def handle(run: Run) -> None:
        note(run)

    async def fail_once(run: Run) -> None:
        note(run)
        if run.attempt == 1:
            raise ValueError("not yet")

    worker = DatabaseWorker(database_url, Handlers({"handle": handle, "in_thread": note, "fail_once": fail_once}))
    await worker.start()
    yield seen
    await worker.stop()


def _attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def _ids(span: ReadableSpan) -> tuple[int, int, int | None]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id, None if span.parent is None else span.parent.span_id


def _check_attempt(fire: ReadableSpan, legs: Sequence[ReadableSpan]) -> None:
    """All legs are under the firing."""
    trace_id, fire_id, _ = _ids(fire)
    assert [_ids(leg)[::2] for leg in legs] == [(trace_id, fire_id)] * len(legs)
    assert all((span.start_time or 0) <= (span.end_time or 0) for span in (fire, *legs))


@pytest.mark.parametrize("handler", ["handle", "in_thread"])
async def test_a_tick_is_one_trace_from_fire_to_record(
    handler: str, client: AsyncClient, traces: Traces, seen: list[tuple[str, trace.SpanContext]]
) -> None:
    job = await client.jobs.create(schedule="now", target=worker_target(handler))
    run_id = await _run_of(client, job.job_id)
    spans = await traces.complete(run_id)
    assert [span.name for span in spans] == LEGS
    fire, *legs = spans
    assert _ids(fire)[::2] == (trace_id_of(run_id), None), "a tick has a trace of its own"
    _check_attempt(fire, legs)
    ((handed_on, current),) = seen
    assert (current.trace_id, current.span_id) == _ids(legs[1])[:2], "the handler runs in its span"
    context = parse_traceparent(handed_on)
    assert context == (current.trace_id, current.span_id, True)
    (child,) = (span for span in traces.all() if _attributes(span).get("of") == run_id)
    assert _ids(child)[::2] == (current.trace_id, current.span_id), "what the handler traces belongs to its run"
    assert _attributes(legs[1])["evertick.outcome"] == "success"
    assert _attributes(legs[1])["evertick.fencing_token"] == _attributes(child)["token"], "as the handler knows it"


async def test_a_run_that_was_asked_for_within_a_trace_continues_it(
    house: Served, client: AsyncClient, traces: Traces, seen: list[tuple[str, trace.SpanContext]]
) -> None:
    job = await client.jobs.create(schedule="manual", target=worker_target("fail_once"), retry_delay_seconds=0.1)
    run_id = await _triggered(house, job.job_id, CALLER)
    spans = await traces.complete(run_id, attempts=2)
    assert [span.name for span in spans] == ["fire"] * 2 + ["lease"] * 2 + ["handle"] * 2 + ["record"] * 2
    for number in (0, 1):
        fire, *legs = spans[number::2]
        caller = parse_traceparent(CALLER)
        assert caller is not None
        assert _ids(fire)[::2] == (caller.trace_id, caller.span_id)
        _check_attempt(fire, legs)
    failed, succeeded = spans[4:6]
    assert (_attributes(failed)["evertick.outcome"], failed.status.description) == ("failed", "ValueError: not yet")
    assert _attributes(succeeded)["evertick.attempt"] == 2


EDITOR = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_firing_links_to_the_request_that_created_or_edited_its_job(
    house: Served, client: AsyncClient, traces: Traces, seen: list[tuple[str, trace.SpanContext]]
) -> None:
    job = {"schedule": "manual", "target": worker_target("handle")}
    made = await _answered(house, "POST", "/jobs", CALLER, {"name": "posted", **job})
    await _answered(house, "PUT", "/jobs/by-name/put", CALLER, job)
    await _answered(house, "POST", "/jobs:batch", CALLER, [{"name": "of-a-batch", **job}])
    for name in ("posted", "put", "of-a-batch"):
        found = await client.jobs.get_by_name(name)
        assert await _linked(client, traces, found.job_id) == [CALLER]
    await _answered(house, "PATCH", f"/jobs/{made['job_id']}", EDITOR, {"payload": 2})
    assert await _linked(client, traces, made["job_id"]) == [EDITOR]
    await client.jobs.update(made["job_id"], payload=3)
    assert await _linked(client, traces, made["job_id"]) == [], "its request had no trace"


async def test_a_firing_of_what_an_app_submits_links_to_the_span_that_submits_it(
    database_url: str, house: Served, client: AsyncClient, traces: Traces, seen: list[tuple[str, trace.SpanContext]]
) -> None:
    app = App(name="handled", queue="default", database_url=database_url)
    app.handler("handle")(_nothing)
    with traces.provider.get_tracer("shop").start_as_current_span("order") as order:
        run = await app.submit("handle")
    await app.close()
    fire, *_ = await traces.complete(run.run_id)
    (link,) = fire.links
    submitted_in = order.get_span_context()
    assert (link.context.trace_id, link.context.span_id) == (submitted_in.trace_id, submitted_in.span_id)


def _nothing(run: Run) -> None:
    """A worker elsewhere has the handler."""


async def test_a_replay_belongs_to_the_trace_of_its_request(
    house: Served, client: AsyncClient, traces: Traces, seen: list[tuple[str, trace.SpanContext]]
) -> None:
    first = await submitted(client, "handle")
    await traces.complete(first)
    assert _ids(traces.of(first)[0])[0] == trace_id_of(first)
    replayed = await _posted(house, f"/runs/{first}/replay", CALLER)
    fire, *_ = await traces.complete(replayed)
    assert f"{_ids(fire)[0]:032x}" in CALLER


async def test_what_a_caller_does_not_sample_makes_no_spans(
    house: Served, client: AsyncClient, traces: Traces, seen: list[tuple[str, trace.SpanContext]]
) -> None:
    job = await client.jobs.create(schedule="manual", target=worker_target("handle"))
    run_id = await _triggered(house, job.job_id, UNSAMPLED)
    await house.until_run(client, run_id, "success")
    assert not traces.all(), "nor does the handler"
    ((handed_on, _),) = seen
    context = parse_traceparent(handed_on)
    assert context is not None
    assert (context.is_sampled, f"{context.trace_id:032x}" in UNSAMPLED) == (False, True)


async def test_a_remote_worker_continues_the_trace_that_the_server_names(
    house: Served, client: AsyncClient, traces: Traces
) -> None:
    told: list[str] = []

    async def handle(run: Run) -> None:
        told.append(run.traceparent)

    async with (await worker_of(house, {"handle": handle})).running():
        run_id = await submitted(client, "handle")
        fire, *legs = await traces.complete(run_id)
    assert [leg.name for leg in legs] == LEGS[1:]
    _check_attempt(fire, legs)
    context = parse_traceparent(told[0])
    assert context is not None
    assert (context.trace_id, context.span_id) == _ids(legs[1])[:2]


async def test_a_tick_that_another_run_keeps_out_has_no_span(
    house: Served, client: AsyncClient, traces: Traces, database_url: str
) -> None:
    may_end = asyncio.Event()

    async def wait(run: Run) -> None:
        await may_end.wait()

    worker = DatabaseWorker(database_url, Handlers({"wait": wait}))
    await worker.start()
    job = await client.jobs.create(schedule="every 1s", target=worker_target("wait"))
    gaps = "SELECT sum(ticks) >= 2 FROM gaps WHERE reason = 'overlap'"
    await until(lambda: house.pool.fetchval(gaps))
    may_end.set()
    await traces.complete(await _run_of(client, job.job_id))  # spans are made in the order of what they are about
    fired = {_attributes(span)["evertick.run_id"] for span in traces.all() if span.name == "fire"}
    assert fired <= {run.run_id async for run in client.runs.list()}
    await worker.stop()


async def test_without_a_provider_of_the_program_a_run_is_as_ever(
    house: Served, client: AsyncClient, database_url: str
) -> None:
    told: list[str] = []

    async def handle(run: Run) -> None:
        told.append(run.traceparent)

    async with tracing(Tracing.PROVIDER, "test"):
        worker = DatabaseWorker(database_url, Handlers({"handle": handle}))
        await worker.start()
        run_id = await submitted(client, "handle")
        await house.until_run(client, run_id, "success")
        await worker.stop()
    context = parse_traceparent(told[0])
    assert context is not None
    assert context.trace_id == trace_id_of(run_id)
    assert active() is None


async def test_tracing_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "evertick.runtime.otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(MissingExtra, match=r"evertick\[otel\]"):
        async with tracing(Tracing.OTLP, "test"):
            pytest.fail("it traces")
    assert active() is None


async def _run_of(client: AsyncClient, job_id: str) -> str:
    found: list[str] = []

    async def has_run() -> bool:
        found.extend([run.run_id async for run in client.runs.list() if run.job_id == job_id])
        return bool(found)

    await until(has_run)
    return found[-1]


async def _linked(client: AsyncClient, traces: Traces, job_id: str) -> list[str]:
    """What the firing of a run of a job links to."""
    run = await client.jobs.trigger(job_id)
    fire, *_ = await traces.complete(run.run_id)
    spans = [link.context for link in fire.links]
    return [f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}" for span in spans]


async def _answered(house: Served, method: str, path: str, traceparent: str, body: Any) -> Any:
    headers = {"Authorization": f"Bearer {house.api_key}", "traceparent": traceparent}
    async with httpx.AsyncClient(
        base_url=f"{house.url}/api/v1", headers=headers, trust_env=False, timeout=120
    ) as caller:
        answer = await caller.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json()


async def _triggered(house: Served, job_id: str, traceparent: str) -> str:
    return await _posted(house, f"/jobs/{job_id}/trigger", traceparent)


async def _posted(house: Served, path: str, traceparent: str) -> str:
    return str((await _answered(house, "POST", path, traceparent, {}))["run_id"])
