"""What an app declares in its code: handlers, and jobs that call them on a schedule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from evertick.contract.job import JobSpec
from evertick.contract.job_reading import read_spec
from evertick.contract.target import check_queue
from evertick.domain.errors import InvalidFields, InvalidInput
from evertick.domain.job.faults import Faults
from evertick.domain.job.timing import parse_text
from evertick.executor.handlers.registry import Handlers

Function = Callable[..., Any]

APP_LABEL = "app"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The queue of an app's worker, and how many runs it executes at once."""

    name: str
    queue: str
    concurrency: int
    threads: int


class Declarations:
    """The handlers of one app, and its jobs as fields by name. An invalid one raises where it is declared."""

    def __init__(self, app: str, queue: str) -> None:
        self._app = app
        self._queue = queue
        self._functions: dict[str, Function] = {}
        self.handlers = Handlers()
        self.jobs: dict[str, Mapping[str, Any]] = {}

    def add_handler(self, name: str, function: Function) -> None:
        """The same function may be added again, with a second schedule."""
        if self._functions.get(name) is not function:
            self.handlers.add(name, function)
            self._functions[name] = function

    def add_job(self, function: Function, schedule: str, name: str | None, fields: Mapping[str, Any]) -> None:
        handler = name_of(function)
        job = name or handler
        if job in self.jobs:
            raise InvalidInput("name", f"there are two jobs named {job!r}: give one of them another by name=")
        labels = {APP_LABEL: self._app, **(fields.get("labels") or {})}
        target = target_of(handler, self._queue)
        declared = {**fields, "name": job, "schedule": schedule, "target": target, "labels": labels}
        check(declared)
        self.add_handler(handler, function)
        self.jobs[job] = declared

    def handler_of(self, wanted: str | Function) -> str:
        """The name under which a function is registered, or the name itself: another worker may have it."""
        if isinstance(wanted, str):
            return wanted
        for name, function in self._functions.items():
            if function is wanted:
                return name
        raise InvalidInput("handler", f"{name_of(wanted)!r} is no handler of this app: decorate it, or give a name")


def queue_of(app: str, queue: str | None) -> str:
    """The queue of an app: the given one, else the one with the app's name."""
    name, faults = app if queue is None else queue, Faults()
    check_queue(name, "", faults)
    for fault in faults.found:
        if queue is None:
            raise InvalidInput("name", f"names the app's queue too, which {fault.reason}: give that by queue=")
        raise InvalidInput("queue", fault.reason)
    return name


def name_of(function: Function) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise InvalidInput("handler", f"{function!r} has no name: give it one by @app.handler(name)")
    return name


def target_of(handler: str, queue: str) -> dict[str, str]:
    return {"type": "worker", "queue": queue, "handler": handler}


def check(fields: Mapping[str, Any]) -> JobSpec:
    """Refuse an invalid job, as far as its text alone shows that."""
    spec = read_spec(fields)
    faults = parse_text(spec.schedule, spec.timezone, spec.dst_gap, spec.dst_overlap).faults
    if faults:
        raise InvalidFields(faults)
    return spec


def every_text(interval: str | timedelta) -> str:
    return f"every {interval.total_seconds():g}s" if isinstance(interval, timedelta) else f"every {interval}"


def rrule_text(rule: str) -> str:
    return rule if ":" in rule else f"RRULE:{rule}"


def when_text(delay: str | timedelta | None, at: datetime | None) -> str:
    """The schedule of a one-off."""
    if delay is not None and at is not None:
        raise InvalidInput("at", "and delay= exclude each other")
    if at is not None:
        if at.utcoffset() is None:
            raise InvalidInput("at", "needs a zone, as in datetime(2026, 6, 9, tzinfo=UTC)")
        return at.isoformat()
    if delay is None:
        return "now"
    return f"in {delay.total_seconds():g}s" if isinstance(delay, timedelta) else f"in {delay}"
