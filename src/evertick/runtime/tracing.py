"""Whether this process traces runs, and the trace context that an attempt hands on.

Off by default: then `active()` is None and the roles do nothing more. The spans are made in `runtime/otel`, which is
imported only when tracing is turned on.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from evertick.config import Tracing
from evertick.domain.attempt import Attempt
from evertick.domain.ids import format_run_id
from evertick.domain.schedule.instants import to_us
from evertick.domain.tracing import attempt_context, parse_traceparent
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


def traceparent_of(attempt: Attempt, run_id: str | None = None) -> str:
    """The trace context that an attempt hands on: to a receiver, a handler or a remote worker. `run_id`: if known."""
    if _active is not None and (context := _active.context_to_hand_on(attempt)) is not None:
        return str(context)
    if attempt.due_at is None and attempt.trace_parent is not None:
        return attempt.trace_parent  # what the server gave a remote worker
    caller = None if attempt.trace_parent is None else parse_traceparent(attempt.trace_parent)
    run_id = run_id or format_run_id(attempt.job_id, to_us(attempt.fire_at))
    return str(attempt_context(run_id, attempt.token[1], caller))
