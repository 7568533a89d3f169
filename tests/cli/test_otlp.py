"""Spans of processes that know nothing of each other, sent by OTLP over HTTP to a receiver."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from cli.processes import evertick
from engine import until
from evertick.client import AsyncClient
from evertick.domain.access import KeyRole
from evertick.domain.tracing import trace_id_of
from evertick.store.database import open_pool
from evertick.usecases.tenants import keys

APP = """
from evertick.sdk.app import App

app = App(name="shop")


@app.handler("greet")
async def greet(run):
    print(run.traceparent, flush=True)
"""


class Collector:
    """An OTLP receiver that is also the receiver of webhooks."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[tuple[str, Span]] = []
        self.headers: list[str] = []

    async def export(self, request: web.Request) -> web.Response:
        exported = ExportTraceServiceRequest.FromString(await request.read())
        for resource in exported.resource_spans:
            attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
            assert attributes["service.name"] == "evertick-test"
            found = (span for scope in resource.scope_spans for span in scope.spans)
            self.spans += [(attributes["service.instance.id"], span) for span in found]
        return web.Response(body=ExportTraceServiceResponse().SerializeToString())

    async def receive(self, request: web.Request) -> web.Response:
        self.headers.append(request.headers["traceparent"])
        return web.Response()

    def of(self, trace_id: int) -> dict[str, tuple[str, Span]]:
        return {
            span.name: (instance, span)
            for instance, span in self.spans
            if int.from_bytes(span.trace_id, "big") == trace_id
        }


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.export)
    app.router.add_post("/hook", collector.receive)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield collector
    await runner.cleanup()


async def test_processes_make_one_trace_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str, collector: Collector
) -> None:
    (tmp_path / "shop_tasks.py").write_text(APP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    settings = {
        "EVERTICK_DATABASE_URL": database_url,
        "EVERTICK_TRACING": "otlp",
        "EVERTICK_SECRET_KEY": "a key of at least thirty-two characters",
        "EVERTICK_EGRESS_ALLOW": "127.0.0.0/8",
        "EVERTICK_EGRESS_ALLOW_HTTP": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_SERVICE_NAME": "evertick-test",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    async with AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(evertick("scheduler", **settings))
        api = await stack.enter_async_context(evertick("up", "--roles", "api,dispatcher", **settings))
        worker = await stack.enter_async_context(evertick("worker", "shop_tasks:app", **settings))
        await scheduler.ready()
        address = (await api.ready()).split()[-1]
        await worker.ready()
        async with await open_pool(database_url, max_size=1) as pool:
            key = (await keys.create(pool, 1, KeyRole.EDITOR)).api_key
        async with AsyncClient(address, key) as client:
            target = {"type": "worker", "queue": "shop", "handler": "greet"}
            handled = await client.jobs.create(schedule="now", target=target)
            hook = {"type": "http", "url": f"{collector.url}/hook"}
            delivered = await client.jobs.create(schedule="now", target=hook)
            told = (await worker.line()).strip()
            runs = await _finished(client, 2)
        handle = await _trace(collector, runs[handled.job_id], "handle")
        deliver = await _trace(collector, runs[delivered.job_id], "deliver")
        assert len({instance for instance, _ in (*handle.values(), *deliver.values())}) == 3, "three processes"
        for spans, leg, handed_on in ((handle, "handle", told), (deliver, "deliver", collector.headers[0])):
            fire = spans["fire"][1]
            assert not fire.parent_span_id, "the firing is the root"
            assert {span.parent_span_id for _, span in spans.values() if span is not fire} == {fire.span_id}
            span = spans[leg][1]
            assert handed_on == f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"
        assert [await each.stop() for each in (worker, api, scheduler)] == [0, 0, 0]


async def test_a_collector_that_is_away_delays_no_stop(database_url: str) -> None:
    away = {"EVERTICK_TRACING": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    async with evertick("scheduler", "--database-url", database_url, **away) as scheduler:
        await scheduler.ready()
        assert await scheduler.stop() == 0


async def _finished(client: AsyncClient, count: int) -> dict[str, str]:
    found: dict[str, str] = {}

    async def are_over() -> bool:
        found.update({run.job_id: run.run_id async for run in client.runs.list(status="success")})
        return len(found) == count

    await until(are_over)
    return found


async def _trace(collector: Collector, run_id: str, leg: str) -> dict[str, tuple[str, Span]]:
    trace_id = trace_id_of(run_id)

    async def is_complete() -> bool:
        return collector.of(trace_id).keys() == {"fire", "lease", leg, "record"}

    await until(is_complete)
    return collector.of(trace_id)
