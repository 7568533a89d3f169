"""What an app declares in its code: handlers, and jobs that call them on a schedule."""

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from evertick.config.values import schema_name
from evertick.contract.job import JobSpec
from evertick.contract.job_reading import read_spec
from evertick.contract.target import check_queue
from evertick.domain.errors import Fault, InvalidFields, InvalidInput
from evertick.domain.job.checks import Json
from evertick.domain.job.faults import Faults
from evertick.domain.job.timing import parse_text
from evertick.domain.schedule.interval import MAX_US, parse_words
from evertick.domain.schedule.text import is_one_off
from evertick.executor.handlers.registry import Handlers, Misfit, to_json

Function = Callable[..., Any]

logger = logging.getLogger("evertick")

APP_LABEL = "app"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The queue of an app's worker, further ones, and how many runs it executes at once."""

    name: str
    queue: str
    concurrency: int
    threads: int
    more_queues: tuple[str, ...] = ()

    @property
    def queues(self) -> tuple[str, ...]:
        return self.queue, *self.more_queues


class Orphans(StrEnum):
    """What happens to jobs that the code of an app declares no more."""

    WARN = "warn"  # they go on, and are named in the log
    PAUSE = "pause"
    DELETE = "delete"


class InvalidDeclaration(InvalidFields):
    """A job that cannot be declared like this: names the job, its place in the code, and the arguments at fault."""

    def __init__(self, faults: Iterable[Fault], job: str, place: str) -> None:
        super().__init__(faults)
        self.job = job
        self.place = place
        self.args = (f"{place}: job {job!r}: " + "; ".join(map(_as_argument, self.faults)),)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.faults, self.job, self.place)


def _as_argument(fault: Fault) -> str:
    """A fault as the author of a decorator knows the field: `max_retries=`, not `/max_retries`."""
    first, *inner = fault.pointer.lstrip("/").split("/")
    place = "".join(f"[{each!r}]" for each in inner)
    return f"{first}={place} {fault.reason}" if first else fault.reason


class Declared(NamedTuple):
    """A job that the code declares, and where: file and line of its decorator."""

    fields: Mapping[str, Any]
    place: str

    @property
    def name(self) -> str:
        return str(self.fields["name"])

    @property
    def is_one_off(self) -> bool:
        return is_one_off(self.fields["schedule"])

    @property
    def digest(self) -> bytes:
        """Of the declaration: another one is another declaration, also under the same name."""
        return _digest(to_json(self.fields))

    def refusal(self, faults: Iterable[Fault]) -> InvalidDeclaration:
        return InvalidDeclaration(faults, self.name, self.place)


class Declarations:
    """The handlers of one app, and its jobs by name. An invalid one raises where it is declared."""

    def __init__(self, app: str, queue: str, orphans: Orphans = Orphans.WARN) -> None:
        self._app = app
        self._queue = queue
        self.orphans = orphans
        self._functions: dict[str, Function] = {}
        self.handlers = Handlers()
        self.jobs: dict[str, Declared] = {}

    @property
    def digest(self) -> bytes:
        """Of the names of all jobs: the version of the app, as far as its jobs are concerned."""
        return _digest(sorted(self.jobs))

    def add_handler(self, name: str, function: Function, *, keep_result: bool = True) -> None:
        """The same function may be added again, with a second schedule. One that keeps no result is enough."""
        if self._functions.get(name) is not function:
            self.handlers.add(name, function)
            self._functions[name] = function
        if not keep_result:
            self.handlers[name].keeps_result = False

    def add_job(
        self,
        function: Function,
        schedule: str,
        name: str | None,
        fields: Mapping[str, Any],
        *,
        keep_result: bool = True,
    ) -> str:
        """Returns the name of the job's handler."""
        handler = name_of(function)
        job, place = name or handler, _caller()
        if job in self.jobs:
            places = f"at {self.jobs[job].place} and at {place}"
            raise InvalidInput("name", f"there are two jobs named {job!r}, {places}: give one of them another by name=")
        try:
            labels = {APP_LABEL: self._app, **(fields.get("labels") or {})}
            target = target_of(handler, self._queue)
            declared = {**fields, "name": job, "schedule": schedule, "target": target, "labels": labels}
            if "payload" in declared:
                declared["payload"] = to_json(declared["payload"])
            check(declared)
            self.add_handler(handler, function, keep_result=keep_result)
        except InvalidFields as refused:
            raise InvalidDeclaration(refused.faults, job, place) from None
        except InvalidInput as refused:
            raise InvalidInput(refused.field, f"{refused.reason} (job {job!r} at {place})") from None
        self.jobs[job] = Declared(declared, place)
        return handler

    def check_payloads(self) -> None:
        """Refuse a declared payload that does not fit its handler. Not before the code is loaded: the annotations of a
        handler may name what is defined after it.
        """
        for job in self.jobs.values():
            try:
                self.check_payload(job.fields["target"]["handler"], job.fields.get("payload"))
            except InvalidInput as refused:
                raise job.refusal([Fault(f"/{refused.field}", refused.reason)]) from None

    def warn(self) -> None:
        """Log what is probably not meant."""
        for text in self.handlers.unwrapped():
            logger.warning("%s", text)

    def check_payload(self, handler: str, payload: Json) -> None:
        """Refuse a payload that does not fit a handler of this app; other apps may have handlers of other names."""
        found = self.handlers.named(handler)
        if found is None:
            return
        try:
            found.binding.check(None if payload is None else msgspec.json.encode(payload).decode())
        except Misfit as misfit:
            raise InvalidInput("payload", str(misfit).removeprefix("the payload ")) from None
        except (OverflowError, UnicodeEncodeError):
            return  # beyond 64 bits, or no text: the check of payloads decides

    def job_of(self, function: Function) -> str:
        """The name of the job that a function was declared with."""
        handler = self.handler_of(function)
        names = [job.name for job in self.jobs.values() if job.fields["target"]["handler"] == handler]
        if len(names) == 1:
            return names[0]
        reason = (
            f"has several jobs, {', '.join(names)}: name one" if names else "is declared with no schedule: name a job"
        )
        raise InvalidInput("job", f"{name_of(function)!r} {reason}")

    def read_output(self, handler: str) -> Callable[[Any], Any] | None:
        """What makes the result of a handler of this app from JSON."""
        found = self.handlers.named(handler)
        return None if found is None else found.read_output

    def handler_of(self, wanted: str | Function) -> str:
        """The name under which a function is registered, or the name itself: another worker may have it."""
        if isinstance(wanted, str):
            return wanted
        for name, function in self._functions.items():
            if function is wanted:
                return name
        raise InvalidInput("handler", f"{name_of(wanted)!r} is no handler of this app: decorate it, or give a name")


def _digest(value: Any) -> bytes:
    return blake2b(msgspec.json.encode(value, order="deterministic"), digest_size=16).digest()


def _caller() -> str:
    """File and line of the innermost frame outside of this package: of the decorator, since they are applied there."""
    frame = sys._getframe(1)  # noqa: SLF001 - the documented way to look at callers
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "evertick":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def queue_of(app: str, queue: str | None) -> str:
    """The queue of an app: the given one, else the one with the app's name."""
    name, faults = app if queue is None else queue, Faults()
    check_queue(name, "", faults)
    for fault in faults.found:
        if queue is None:
            raise InvalidInput("name", f"names the app's queue too, which {fault.reason}: give that by queue=")
        raise InvalidInput("queue", fault.reason)
    return name


def checked_schema(name: str) -> str:
    try:
        return schema_name(name)
    except ValueError as error:
        raise InvalidInput("schema", str(error)) from None


def orphans_of(word: str) -> Orphans:
    try:
        return Orphans(word)
    except ValueError:
        raise InvalidInput("orphans", f"must be one of {', '.join(Orphans)}, not {word!r}") from None


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
    return f"every {_seconds_text(interval) if isinstance(interval, timedelta) else interval}"


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
    text = _seconds_text(delay) if isinstance(delay, timedelta) else delay
    if (delay_us := parse_words(text)) is None or delay_us > MAX_US:
        raise InvalidInput("delay", f"{delay!r}: write it as '90s', '2h' or '3d', or as a timedelta, at most 100 years")
    return f"in {text}"


def _seconds_text(span: timedelta) -> str:
    """To the microsecond, without an exponent."""
    return f"{span.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"
