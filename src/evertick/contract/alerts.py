"""Alerts, the target of a tenant's notices, and the notices themselves."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from evertick.contract import patterns
from evertick.contract.annotations import (
    CURSOR,
    AlertId,
    JobId,
    Limit,
    Ordinal,
    RunId,
    Schema,
    Time,
    accepted,
    checked,
    words,
)
from evertick.domain.alerts import CloseReason, Condition
from evertick.domain.job.http_target import MAX_HEADERS, URL_MAX_LENGTH, check_headers, check_url

ConditionName = Annotated[str, words(Condition)]


class AlertStatus(StrEnum):
    """Whether the condition of an alert holds."""

    OPEN = "open"
    CLOSED = "closed"


class NoticeType(StrEnum):
    """What a notice tells."""

    OPENED = "alert.opened"
    CLOSED = "alert.closed"
    TEST = "alert.test"


class NoticeStatus(StrEnum):
    """What became of the last notice of an alert."""

    UNDER_WAY = "under_way"  # it is being delivered, or waits for a retry
    DELIVERED = "delivered"
    FAILED = "failed"  # no attempt is left, or it was cancelled


class Alert(Struct, frozen=True, kw_only=True):
    """An alert: a condition of a subject. It opens and closes, and has a notice for each; `openings` counts."""

    alert_id: AlertId
    condition: ConditionName
    subject: Annotated[str, Meta(description="A job's id, a host, or the name of a quota; empty for the tenant.")]
    job_id: JobId | None
    job_name: str | None
    status: Annotated[str, words(AlertStatus)]
    opened_at: Annotated[Time, Meta(description="When it was opened last.")]
    closed_at: Time | None
    close_reason: Annotated[str, words(CloseReason)] | None
    openings: Annotated[Ordinal, Meta(description="How often it was opened, since it was closed for a day.")]
    detail: Annotated[str, Meta(description="Why it was opened.")]
    notice_status: Annotated[
        Annotated[str, words(NoticeStatus)] | None,
        Meta(description="Of its last notice; null if there was none, or history has it no more."),
    ] = None
    notice_run_id: Annotated[RunId | None, Meta(description="The run that delivers its last notice.")] = None


class Notice(Struct, frozen=True, kw_only=True):
    """The body of a notice. `notice_id` is the same in all attempts to deliver it."""

    notice_id: str
    type: Annotated[str, words(NoticeType)]
    alert_id: AlertId | None = None
    condition: ConditionName | None = None
    subject: str = ""
    job_id: JobId | None = None
    job_name: str | None = None
    opened_at: Time | None = None
    closed_at: Time | None = None
    close_reason: Annotated[str, words(CloseReason)] | None = None
    openings: int = 0
    detail: str = ""


class AlertTarget(Struct, frozen=True, kw_only=True):
    """Where the notices of a tenant go, and of which conditions. `job_id`: the job whose runs deliver them."""

    url: str
    headers: Mapping[str, str]
    conditions: tuple[ConditionName, ...]
    job_id: JobId


class AlertTargetRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where notices shall go. They are signed with the tenant's webhook secrets."""

    url: Annotated[
        str, Meta(extra_json_schema={"maxLength": URL_MAX_LENGTH}), accepted(pattern=patterns.URL), checked(check_url)
    ]
    headers: Annotated[
        Mapping[str, Annotated[str, Meta(extra_json_schema={"pattern": patterns.HEADER_VALUE})]],
        Meta(extra_json_schema={"maxProperties": MAX_HEADERS}),
        checked(check_headers),
    ] = {}
    conditions: Annotated[
        tuple[Condition, ...],
        Meta(min_length=1, max_length=100, description="Notices are sent of these; all, unless given."),
    ] = tuple(Condition)
    json_schema: ClassVar[Schema] = {"examples": [{"url": "https://hooks.example.invalid/alerts"}]}


class AlertsQuery(Struct, forbid_unknown_fields=True):
    status: AlertStatus | None = None
    condition: Condition | None = None
    limit: Limit = 50
    cursor: Annotated[AlertId, CURSOR] | None = None
