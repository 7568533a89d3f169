"""Spans of runs by OpenTelemetry: fire, lease, handle or deliver, record.

One span of each kind for each attempt, under the span of its firing:

    fire       due → fired, by the scheduler; the root, or a child of the span that asked for the run. It links to the
    │          span in which the job was created or last edited, if that is known
    ├ lease    fired → leased: the time in the queue
    ├ handle   the call of the handler; `deliver` for a webhook. It is the current span while the handler runs
    └ record   finished → recorded

The sampler decides by the trace id, which follows from the run, so all processes with the same sampler agree, and a
run that is not sampled costs one hash in each step. All times are by the database's clock.
"""

import functools
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import ParamSpec, TypeAlias, TypeVar, assert_never

from opentelemetry import trace
from opentelemetry.context import Context, attach
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
    set_span_in_context,
)

from evertick.domain.attempt import Attempt, AttemptOutcome, Deferred, Failed, HandedOver, NotStarted, Succeeded
from evertick.domain.ids import Prefix, format_id, format_run_id, format_token
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import Outcome
from evertick.domain.tracing import FiredRun, TraceContext, fire_span_id, parse_traceparent, trace_id_of
from evertick.version import __version__

logger = logging.getLogger("evertick.tracing")

SERVICE = "evertick"
MAX_WAITING = 20_000
"""Runs that may wait for their spans when a batch comes: attempts are kept with their payloads. More are dropped."""
WithIds: TypeAlias = Callable[[int, int], AbstractContextManager[None]]
"""A block in which the next root span gets this trace id, and the next span this span id."""
_P = ParamSpec("_P")
_R = TypeVar("_R")
_NS = 1000  # nanoseconds of a microsecond


def _harmless(method: Callable[_P, _R]) -> Callable[_P, _R | None]:
    """A trace must not stop what it traces."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        try:
            return method(*args, **kwargs)
        except Exception:
            logger.exception("spans were lost")
            return None

    return call


class RunTracer:
    """Makes the spans of this process with a provider."""

    def __init__(self, provider: TracerProvider, with_ids: WithIds | None = None) -> None:
        self._tracer = provider.get_tracer(SERVICE, __version__)
        self._sampler = getattr(provider, "sampler", None)  # that of the SDK
        self._with_ids = with_ids
        self._batches: queue.SimpleQueue[tuple[int, Callable[[], object]] | None] = queue.SimpleQueue()
        # Each counter has one writer: the event loop, and the thread.
        self._taken = self._made = 0
        self._has_dropped = False
        self._thread = threading.Thread(target=self._work, name="spans", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Make the spans that are left, and end the thread."""
        self._batches.put(None)
        self._thread.join()

    def fired(self, runs: Iterable[FiredRun], now_us: int) -> None:
        """Runs were appended to their lanes."""
        fired = list(runs)
        self._later(len(fired), partial(self._fired, fired, now_us))

    def leased(self, attempts: Iterable[Attempt], now_us: int) -> None:
        """Attempts came to this worker."""
        leased = list(attempts)
        self._later(len(leased), partial(self._leased, leased, now_us))

    def recorded(self, attempts: Iterable[tuple[Attempt, int]], now_us: int) -> None:
        """Outcomes were recorded, of attempts that finished at these times."""
        recorded = list(attempts)
        self._later(len(recorded), partial(self._recorded, recorded, now_us))

    def _later(self, runs: int, make: Callable[[], object]) -> None:
        """A batch may be thousands of runs: their spans are made in a thread, so that the event loop goes on."""
        if self._taken - self._made < MAX_WAITING:
            self._taken += runs
            self._batches.put((runs, make))
        elif not self._has_dropped:
            self._has_dropped = True
            logger.warning("spans are dropped: more runs are traced than this process can make spans for")

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            runs, make = batch
            make()
            self._made += runs
            del batch, make  # the attempts of the last batch are not kept until the next one

    @_harmless
    def _fired(self, runs: Iterable[FiredRun], now_us: int) -> None:
        for run in runs:
            run_id = format_run_id(run.job_id, run.fire_at_us)
            caller = None if run.caller is None else parse_traceparent(run.caller)
            context = self._fire_context(run_id, run.due_us, caller)
            if context.is_sampled:
                attributes = {
                    "evertick.tenant_id": format_id(Prefix.TENANT, run.tenant_id),
                    "evertick.job_id": format_id(Prefix.JOB, run.job_id),
                    "evertick.run_id": run_id,
                    "evertick.timer": run.kind,
                }
                author = None if run.author is None else parse_traceparent(run.author)
                links = [] if author is None else [Link(_span_context(author))]
                span = self._start_fire(context, caller, min(run.due_us, now_us), attributes, links)
                span.end(now_us * _NS)

    @_harmless
    def _leased(self, attempts: Iterable[Attempt], now_us: int) -> None:
        for attempt in attempts:
            self._add("lease", attempt, min(attempt.token[1], now_us), now_us)

    @_harmless
    def _recorded(self, attempts: Iterable[tuple[Attempt, int]], now_us: int) -> None:
        for attempt, finished_us in attempts:
            self._add("record", attempt, min(finished_us, now_us), now_us)

    @_harmless
    def begin(self, attempt: Attempt, started_us: int) -> Span | None:
        """The handler of an attempt is about to be called in the current context: its spans belong to this one."""
        parent = self._context_of(attempt)
        span: Span = NonRecordingSpan(_span_context(parent))
        if parent.is_sampled:
            name, kind = ("deliver", SpanKind.CLIENT) if attempt.handler is None else ("handle", SpanKind.CONSUMER)
            span = self._tracer.start_span(
                name, _parent(parent), kind, _attributes(attempt), start_time=started_us * _NS
            )
        attach(set_span_in_context(span))
        return span if parent.is_sampled else None

    @_harmless
    def end(self, span: Span, outcome: AttemptOutcome | None, finished_us: int) -> None:
        """The handler's attempt ended. None: the attempt is not ours any more."""
        span.set_attribute("evertick.outcome", _word(outcome))
        if isinstance(outcome, Failed):
            span.set_status(Status(StatusCode.ERROR, outcome.error.split("\n", 1)[0]))
            if outcome.code is not None:
                span.set_attribute("http.response.status_code", outcome.code)
        elif isinstance(outcome, Succeeded) and outcome.code is not None:
            span.set_attribute("http.response.status_code", outcome.code)
        elif isinstance(outcome, HandedOver) and outcome.receipt is not None:
            span.set_attribute("evertick.receipt", outcome.receipt)
        span.end(finished_us * _NS)

    @_harmless
    def context_to_hand_on(self, attempt: Attempt) -> TraceContext:
        """The context of the current span if it is of the attempt's trace, else that of the attempt's firing."""
        context = self._context_of(attempt)
        current = trace.get_current_span().get_span_context()
        if current.trace_id != context.trace_id:
            return context
        return TraceContext(current.trace_id, current.span_id, is_sampled=current.trace_flags.sampled)

    def _add(self, name: str, attempt: Attempt, start_us: int, end_us: int) -> None:
        parent = self._context_of(attempt)
        if parent.is_sampled:
            span = self._tracer.start_span(
                name, _parent(parent), attributes=_attributes(attempt), start_time=start_us * _NS
            )
            span.end(end_us * _NS)

    def _context_of(self, attempt: Attempt) -> TraceContext:
        """The context of an attempt's firing."""
        given = None if attempt.trace_parent is None else parse_traceparent(attempt.trace_parent)
        run_id = format_run_id(attempt.job_id, to_us(attempt.fire_at))
        if attempt.due_at is None:  # a remote worker: the server gave it the firing's context
            return given or self._fire_context(run_id, 0, None)
        return self._fire_context(run_id, to_us(attempt.due_at), given)

    def _fire_context(self, run_id: str, due_us: int, caller: TraceContext | None) -> TraceContext:
        span_id = fire_span_id(run_id, due_us)
        if caller is not None:
            return caller._replace(span_id=span_id)
        trace_id = trace_id_of(run_id)
        return TraceContext(trace_id, span_id, self._is_sampled(trace_id))

    @_harmless
    def is_sampled(self, job_id: int, fire_at_us: int) -> bool:
        """Whether the spans of a run are recorded that nobody has asked for."""
        return self._is_sampled(trace_id_of(format_run_id(job_id, fire_at_us)))

    def _is_sampled(self, trace_id: int) -> bool:
        if self._sampler is None:
            return True
        return bool(self._sampler.should_sample(Context(), trace_id, "fire").decision.is_sampled())

    def _start_fire(
        self,
        context: TraceContext,
        caller: TraceContext | None,
        start_us: int,
        attributes: dict[str, str],
        links: list[Link],
    ) -> Span:
        kind = SpanKind.PRODUCER
        if self._with_ids is None:
            # A provider of others gives the span an id of its own: then it is beside the others of its attempt.
            return self._tracer.start_span("fire", _parent(context), kind, attributes, links, start_us * _NS)
        parent = Context() if caller is None else _parent(caller)
        with self._with_ids(context.trace_id, context.span_id):
            return self._tracer.start_span("fire", parent, kind, attributes, links, start_us * _NS)


def _span_context(context: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=flags)


def _parent(context: TraceContext) -> Context:
    return set_span_in_context(NonRecordingSpan(_span_context(context)), Context())


def _attributes(attempt: Attempt) -> dict[str, str | int]:
    tenant = {"evertick.tenant_id": format_id(Prefix.TENANT, attempt.tenant_id)} if attempt.tenant_id else {}
    return {
        **tenant,
        "evertick.job_id": format_id(Prefix.JOB, attempt.job_id),
        "evertick.job_name": attempt.name,
        "evertick.run_id": format_run_id(attempt.job_id, to_us(attempt.fire_at)),
        "evertick.attempt": attempt.attempt,
        "evertick.fencing_token": format_token(*attempt.token),
    }


def _word(outcome: AttemptOutcome | None) -> str:
    match outcome:
        case None:
            return Outcome.LOST.value
        case Succeeded():
            return Outcome.SUCCESS.value
        case Failed():
            return outcome.result.value
        case Deferred():
            return Outcome.DEFERRED.value
        case NotStarted():
            return "put_back"
        case HandedOver():
            return "handed_over"
        case _:
            assert_never(outcome)
