"""A provider of OpenTelemetry's SDK that sends spans by OTLP over HTTP, as the standard `OTEL_*` variables say."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from evertick.runtime.otel import SERVICE, RunTracer
from evertick.version import __version__


class GivenIds(RandomIdGenerator):
    """Random ids, but for those that a thread asks for."""

    def __init__(self) -> None:
        self._given = threading.local()

    @contextmanager
    def given(self, trace_id: int, span_id: int) -> Iterator[None]:
        self._given.ids = trace_id, span_id
        try:
            yield
        finally:
            self._given.ids = None

    def generate_trace_id(self) -> int:
        ids: tuple[int, int] | None = getattr(self._given, "ids", None)
        return super().generate_trace_id() if ids is None else ids[0]

    def generate_span_id(self) -> int:
        ids: tuple[int, int] | None = getattr(self._given, "ids", None)
        return super().generate_span_id() if ids is None else ids[1]


def exporting(processor: SpanProcessor, instance: str) -> tuple[TracerProvider, RunTracer]:
    """A provider whose spans go to a processor, and the tracer of runs on it."""
    ids = GivenIds()
    ours = Resource({"service.name": SERVICE, "service.version": __version__, "service.instance.id": instance})
    # The environment overrides ours. The process has an end of its own, which waits less than the SDK would.
    provider = TracerProvider(
        resource=ours.merge(OTELResourceDetector().detect()), id_generator=ids, shutdown_on_exit=False
    )
    provider.add_span_processor(processor)
    return provider, RunTracer(provider, ids.given)


def exporting_otlp(instance: str) -> tuple[TracerProvider, RunTracer]:
    """A provider that sends its spans in batches, from a thread. It serves the handlers' own spans too."""
    provider, tracer = exporting(BatchSpanProcessor(OTLPSpanExporter()), instance)
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # the program has set none up
        trace.set_tracer_provider(provider)
    return provider, tracer
