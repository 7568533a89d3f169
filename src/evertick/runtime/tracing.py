"""Whether this process traces runs, and the trace context that an attempt hands on.

Off by default: then `active()` is None and the roles do nothing more. The spans are made in `runtime/otel`, which is
imported only when tracing is turned on.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from evertick.config.values import Tracing
from evertick.domain.attempt import Attempt
from evertick.domain.ids import format_run_id
from evertick.domain.schedule.instants import to_us
from evertick.domain.tracing import TraceContext, attempt_context, attempt_traceparent, parse_traceparent
from evertick.runtime.extras import MissingExtra

if TYPE_CHECKING:
    from opentelemetry.trace import Span as Span  # noqa: PLC0414 - for those that keep one

    from evertick.runtime.otel import RunTracer

SHUTDOWN_SECONDS = 3.0
"""How long the end of a process waits for its last spans to be sent."""

_active: "RunTracer | None" = None


def active() -> "RunTracer | None":
    """What makes the spans of this process. None: it does not trace."""
    return _active


@asynccontextmanager
async def tracing(mode: Tracing, instance: str) -> AsyncIterator[None]:
    """Trace runs for the duration of the block, as the settings say. Within another such block nothing changes."""
    if mode is Tracing.OFF or _active is not None:
        yield
        return
    try:
        if mode is Tracing.OTLP:
            from evertick.runtime.otlp import exporting_otlp  # noqa: PLC0415 - only here it has to be installed

            provider, tracer = exporting_otlp(instance)
            shutdown: Callable[[], object] = provider.shutdown
        else:
            from opentelemetry.trace import get_tracer_provider  # noqa: PLC0415 - as above

            from evertick.runtime.otel import RunTracer  # noqa: PLC0415 - as above

            tracer, shutdown = RunTracer(get_tracer_provider()), _nothing
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise MissingExtra("tracing needs OpenTelemetry: pip install 'evertick[otel]'") from error
    try:
        with using(tracer):
            yield
    finally:
        await _shut_down(tracer, shutdown)


@contextmanager
def using(tracer: "RunTracer") -> Iterator[None]:
    """Make spans by this for the duration of the block."""
    _activate(tracer)
    try:
        yield
    finally:
        _activate(None)


def _activate(tracer: "RunTracer | None") -> None:
    global _active  # noqa: PLW0603 - one for the process, as OpenTelemetry has one provider
    _active = tracer


def _nothing() -> None:
    """A provider of the program is the program's to shut down."""


async def _shut_down(tracer: "RunTracer", shutdown: Callable[[], object]) -> None:
    """Send the last spans, but do not wait for a collector that is away: a daemon thread may go on without us."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        try:
            tracer.close()
            shutdown()
        finally:
            with suppress(RuntimeError):  # the loop is closed by now
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=end, name="last spans", daemon=True).start()
    with suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), SHUTDOWN_SECONDS)


def current_traceparent() -> str | None:
    """The context of the span that the caller is in. None: it is in none, or its program does not use OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.trace import get_current_span  # noqa: PLC0415 - it was imported by the program, if at all

    current = get_current_span().get_span_context()
    if not current.is_valid:
        return None
    return str(TraceContext(current.trace_id, current.span_id, is_sampled=current.trace_flags.sampled))


def traceparent_of(attempt: Attempt, run_id: str | None = None) -> str:
    """The trace context that an attempt hands on: to a receiver, a handler or a remote worker. `run_id`: if known."""
    if _active is not None and (context := _active.context_to_hand_on(attempt)) is not None:
        return str(context)
    given, seq = attempt.trace_parent, attempt.token[1]
    if given is not None and attempt.due_at is None:
        return given  # what the server gave a remote worker
    run_id = run_id or format_run_id(attempt.job_id, to_us(attempt.fire_at))
    if given is None:
        return attempt_traceparent(run_id, seq)
    return str(attempt_context(run_id, seq, parse_traceparent(given)))
