"""A job's fields, each once, with its default, bounds and documentation. Requests and answers are built on them."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypedDict

from msgspec import Meta, Struct

from evertick.contract import patterns
from evertick.contract.annotations import (
    DEFAULT_TIMEZONE,
    LONGEST_WAIT_S,
    Count,
    EndAt,
    JobId,
    Ordinal,
    ScheduleText,
    Schema,
    StartAt,
    Time,
    Wait,
    ZoneName,
    accepted,
    checked,
    ref,
    words,
)
from evertick.contract.derived import request_of
from evertick.contract.target import TARGETS, Target, target_fields
from evertick.domain.alerts import MAX_SECONDS, TWICE_USUAL, JobRules, check_running, check_within
from evertick.domain.gate import KEY_MAX_LENGTH, GateFields
from evertick.domain.idempotency import DEFAULT_TEMPLATE, TEMPLATE_MAX_LENGTH, Template
from evertick.domain.job.checks import (
    LABEL_VALUE_MAX_LENGTH,
    MAX_LABELS,
    NAME_MAX_LENGTH,
    cached_template,
    check_gate_key,
    check_labels,
    check_name,
    check_payload,
    check_template,
)
from evertick.domain.limits import DEFAULT_MAX_MISSED, MAX_MISSED
from evertick.domain.policies import Backoff, ConcurrentPolicy, DstGap, DstOverlap, MissedWindow, Priority
from evertick.domain.states import JobStatus, RunStatus

if TYPE_CHECKING:
    from evertick.domain.job.timing import Timing

DEFAULT_RETRY_MAX_DELAY_SECONDS = 3600

JobName = Annotated[
    str,
    Meta(
        max_length=NAME_MAX_LENGTH,
        description="Unique; generated if left out.",
        extra_json_schema={"pattern": patterns.NAME},
    ),
    checked(check_name),
]
GateKey = Annotated[str, Meta(max_length=KEY_MAX_LENGTH), accepted(pattern=patterns.GATE_KEY), checked(check_gate_key)]
LabelValue = Annotated[str, Meta(extra_json_schema={"maxLength": LABEL_VALUE_MAX_LENGTH, "pattern": patterns.STORABLE})]
Payload = Annotated[Any, Meta(extra_json_schema=ref("Payload")), checked(check_payload)]


def _seconds_or(pattern: str) -> Schema:
    seconds = {"type": "number", "minimum": 1, "maximum": MAX_SECONDS}
    return {"anyOf": [seconds, {"type": "string", "pattern": pattern}, {"type": "null"}]}


class JobDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the author of a job decides, apart from its name."""

    schedule: ScheduleText
    timezone: ZoneName = DEFAULT_TIMEZONE
    dst_gap: Annotated[str, words(DstGap)] = DstGap.CATCH_UP
    dst_overlap: Annotated[str, words(DstOverlap)] = DstOverlap.FIRST
    start_at: StartAt | None = None
    end_at: EndAt | None = None
    target: Annotated[Any, accepted(oneOf=[ref(kind.__name__) for kind in TARGETS])]
    payload: Payload = None
    idempotency_key_template: Annotated[
        str,
        Meta(max_length=TEMPLATE_MAX_LENGTH),
        accepted(pattern=patterns.KEY_TEMPLATE),
        checked(check_template),
    ] = DEFAULT_TEMPLATE
    max_retries: Annotated[int, Meta(ge=0, le=1000)] = 3
    retry_backoff: Annotated[str, words(Backoff)] = Backoff.EXPONENTIAL
    retry_delay_seconds: Wait = 10
    retry_max_delay_seconds: Wait = DEFAULT_RETRY_MAX_DELAY_SECONDS
    timeout_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400,
            description="A webhook takes no longer than the tenant's `http_timeout_max_seconds` either: 300 unless it"
            " was changed.",
        ),
    ] = 300
    missed_window: Annotated[str, words(MissedWindow)] = MissedWindow.RUN_ONCE
    misfire_grace_seconds: Annotated[
        Wait | None, Meta(description="As long as the interval, an hour at most, unless given.")
    ] = None
    max_missed: Annotated[int, Meta(ge=1, le=MAX_MISSED)] = DEFAULT_MAX_MISSED
    concurrent_policy: Annotated[str, words(ConcurrentPolicy)] = ConcurrentPolicy.SKIP
    max_concurrent: Annotated[int, Meta(ge=1, le=10_000)] = 1
    max_running: Annotated[
        Annotated[int, Meta(ge=1, le=10_000)] | None,
        Meta(
            description="How many runs are at work at once, whatever made them: of all jobs with the same"
            " `concurrency_key`, else of this job. 1 with a `concurrency_key`, unless given; else unlimited."
        ),
    ] = None
    concurrency_key: Annotated[
        GateKey | None,
        Meta(
            description="Runs with the same key share `max_running`. May name top-level fields of the payload, such as"
            " `{{payload.account}}`."
        ),
    ] = None
    ordering_key: Annotated[
        GateKey | None,
        Meta(
            description="Runs with the same key are at work one at a time, in the order of their fire times; a run that"
            " waits for a retry keeps its place. In the form of `concurrency_key`, which a job cannot have too."
        ),
    ] = None
    jitter_seconds: Wait = 0
    priority: Annotated[str, words(Priority)] = Priority.NORMAL
    labels: Annotated[
        Mapping[str, LabelValue],
        Meta(extra_json_schema={"propertyNames": {"pattern": patterns.LABEL_KEY}, "maxProperties": MAX_LABELS}),
        checked(check_labels),
    ] = {}
    retain_seconds: Annotated[int, Meta(ge=0, le=10 * LONGEST_WAIT_S)] = 86_400
    must_succeed_within: Annotated[
        Any,
        Meta(
            description="An alert opens when no run has succeeded for so long: seconds, or text such as `26h`."
            " Counts from the last success, or from the job's creation or resumption.",
            extra_json_schema={"examples": ["26h", 3600]},
        ),
        accepted(**_seconds_or(patterns.LENGTH)),
        checked(check_within),
    ] = None
    alert_after_failures: Annotated[
        Annotated[int, Meta(ge=1, le=100)] | None,
        Meta(description="An alert opens when so many runs in a row have failed, each with its retries."),
    ] = None
    alert_if_late_seconds: Annotated[
        Wait | None, Meta(description="An alert opens when a run starts so long after it was due, or has not started.")
    ] = None
    alert_if_running_seconds: Annotated[
        Any,
        Meta(
            description="An alert opens when an attempt runs for longer: seconds, or `2x` for twice the usual duration,"
            " the median of the newest 20 successes (5 at least).",
            extra_json_schema={"examples": ["2x", 900]},
        ),
        accepted(**_seconds_or(f"^{TWICE_USUAL}$")),
        checked(check_running),
    ] = None


class JobSpec(JobDocument, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job's fields, read and checked: words are members of their enums. `job_reading.read_spec` makes them.

    A name of None is generated when the job is made. A grace of None is as long as the interval, an hour at most.
    """

    name: JobName | None = None
    target: Target
    dst_gap: DstGap = DstGap.CATCH_UP
    dst_overlap: DstOverlap = DstOverlap.FIRST
    retry_backoff: Backoff = Backoff.EXPONENTIAL
    missed_window: MissedWindow = MissedWindow.RUN_ONCE
    concurrent_policy: ConcurrentPolicy = ConcurrentPolicy.SKIP
    priority: Priority = Priority.NORMAL

    @property
    def template(self) -> Template:
        return cached_template(self.idempotency_key_template)

    @property
    def gate_fields(self) -> GateFields:
        return GateFields(self.max_running, self.concurrency_key, self.ordering_key)

    @property
    def has_alerts(self) -> bool:
        by_time = self.must_succeed_within, self.alert_if_late_seconds, self.alert_if_running_seconds
        return self.alert_after_failures is not None or by_time != (None, None, None)

    @property
    def alert_rules(self) -> JobRules:
        return JobRules.of(
            self.must_succeed_within,
            self.alert_after_failures,
            self.alert_if_late_seconds,
            self.alert_if_running_seconds,
        )

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self.timeout_seconds)


def job_fields(spec: JobSpec) -> dict[str, Any]:
    """The fields of a specification but its name, each with its value, as an answer has them."""
    return {name: getattr(spec, name) for name in JobDocument.__struct_fields__} | {
        "target": target_fields(spec.target)
    }


def timing_of(spec: JobDocument) -> "Timing":
    from evertick.domain.job.timing import Timing  # noqa: PLC0415 - clients read jobs without computing schedules

    return Timing._make(attrgetter(*Timing._fields)(spec))


class Job(JobDocument, frozen=True, kw_only=False, omit_defaults=False):
    """A job, every field with its value in force. `spec_version` is what `If-Match` takes."""

    job_id: JobId
    name: str
    status: Annotated[str, words(JobStatus)]
    next_run_at: Time | None
    spec_version: Ordinal
    created_at: Time
    updated_at: Time
    paused_at: Time | None
    pause_reason: str | None
    last_run_at: Annotated[Time | None, Meta(description="The nominal fire time of the latest run.")] = None
    last_run_status: Annotated[Annotated[str, words(RunStatus)] | None, Meta(description="Of the latest run.")] = None
    consecutive_failures: Annotated[
        Count,
        Meta(
            description="Runs that ended without success since the last that succeeded, counted among the newest 200"
            " attempts. Cancelled runs and retries do not count."
        ),
    ] = 0
    json_schema: ClassVar[Schema] = {
        "required": [*JobDocument.__struct_fields__, "last_run_at", "last_run_status", "consecutive_failures"]
    }


EXAMPLE_JOB: Schema = {
    "name": "send-weekly-report",
    "schedule": "0 9 * * 1",
    "timezone": "America/New_York",
    "target": {
        "type": "http",
        "url": "https://hooks.example.invalid/report",
        "method": "POST",
        "headers": {"X-Team": "growth"},
    },
    "payload": {"report_type": "weekly"},
    "idempotency_key_template": "report-{{week}}",
    "max_retries": 3,
    "retry_backoff": "exponential",
    "missed_window": "RUN_ONCE",
    "timeout_seconds": 120,
}


def _delays_in_order(*steps: int) -> Schema:
    """That the longest retry delay is none, or at least the delay, as far as JSON Schema can compare: by steps."""
    delay, longest = "retry_delay_seconds", "retry_max_delay_seconds"
    ordered = [{"properties": {delay: {"maximum": step}, longest: {"minimum": step}}} for step in steps]
    return {"anyOf": [{"properties": {longest: {"type": "null"}}}, *ordered]}


_DELAYS_IN_ORDER = _delays_in_order(10, 60, 3600, 86_400, LONGEST_WAIT_S)
_NAME: dict[str, tuple[Any, Any]] = {"name": (JobName | None, None)}

JobRequest = request_of(
    "JobRequest",
    JobDocument,
    "A job to create.",
    first=_NAME,
    json_schema={**_DELAYS_IN_ORDER, "examples": [EXAMPLE_JOB]},
)
JobReplacement = request_of(
    "JobReplacement",
    JobDocument,
    "A job to create or to replace; its name is in the path.",
    json_schema={
        **_DELAYS_IN_ORDER,
        "examples": [{name: value for name, value in EXAMPLE_JOB.items() if name != "name"}],
    },
)
JobPatch = request_of(
    "JobPatch",
    JobDocument,
    "Fields of a job to change.",
    first=_NAME,
    is_partial=True,
    json_schema={
        **_DELAYS_IN_ORDER,
        # No schema can see the fields that are not given: the job has them.
        "dependentRequired": {
            "retry_delay_seconds": ["retry_max_delay_seconds"],
            "retry_max_delay_seconds": ["retry_delay_seconds"],
        },
        "examples": [{"schedule": "0 10 * * 1", "max_retries": 5}],
    },
)


class JobPolicies(TypedDict, total=False):
    """The fields of a job but for what it does, for type checkers. None stands for a field's default."""

    timezone: str | None
    dst_gap: Literal["catch_up", "skip", "shift"] | None
    dst_overlap: Literal["first", "second", "both"] | None
    start_at: datetime | str | None
    end_at: datetime | str | None
    idempotency_key_template: str | None
    max_retries: int | None
    retry_backoff: Literal["fixed", "linear", "exponential"] | None
    retry_delay_seconds: float | None
    retry_max_delay_seconds: float | None
    timeout_seconds: int | None
    missed_window: Literal["SKIP", "RUN_ONCE", "RUN_ALL"] | None
    misfire_grace_seconds: float | None
    max_missed: int | None
    concurrent_policy: Literal["SKIP", "ALLOW", "QUEUE", "REPLACE"] | None
    max_concurrent: int | None
    max_running: int | None
    concurrency_key: str | None
    ordering_key: str | None
    jitter_seconds: float | None
    priority: Literal["high", "normal", "low"] | None
    labels: Mapping[str, str] | None
    retain_seconds: int | None
    must_succeed_within: float | str | None
    alert_after_failures: int | None
    alert_if_late_seconds: float | None
    alert_if_running_seconds: float | str | None


class JobFields(JobPolicies, total=False):
    """All fields of a job for type checkers. The server checks their values."""

    name: str | None
    schedule: str
    target: Mapping[str, Any]
    payload: Any
