"""Requests about jobs besides their fields, and the verdicts on a batch of them."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import UNSET, Meta, Struct

from evertick.contract import patterns
from evertick.contract.annotations import CURSOR, JobId, Limit, Name, Ordinal, Schema
from evertick.contract.job import JobStatus, Payload
from evertick.contract.problem import InputError

Label = Annotated[str, Meta(pattern=patterns.LABEL, max_length=400)]


class JobsQuery(Struct, forbid_unknown_fields=True):
    status: JobStatus | None = None
    label: Annotated[list[Label], Meta(max_length=64, description="`key:value`; several must all be there.")] = []
    name_prefix: Name | None = None
    queue: Annotated[str, Meta(max_length=63, pattern=patterns.STORABLE)] | None = None
    limit: Limit = 50
    cursor: Annotated[JobId, CURSOR] | None = None


class PauseRequest(Struct, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=1000, pattern=patterns.STORABLE)] | None = None


class Missed(StrEnum):
    """What a resume does with the ticks that its pause swallowed."""

    SKIP = "skip"  # they are a gap
    RUN_ONCE = "run_once"  # the newest runs, the others are a gap
    RUN_ALL = "run_all"  # the newest `max_missed` run, oldest first; older ones are a gap


class ResumeRequest(Struct, forbid_unknown_fields=True):
    missed: Missed = Missed.SKIP


class TriggerRequest(Struct, forbid_unknown_fields=True):
    payload: Payload = UNSET
    json_schema: ClassVar[Schema] = {"examples": [{}, {"payload": {"report_type": "daily"}}]}


class Nothing(Struct, forbid_unknown_fields=True):
    """An empty object, or no body at all."""


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one job of a batch: created if it has a `job_id`, else `errors` say why not."""

    line: Ordinal
    status: Annotated[int, Meta(extra_json_schema={"enum": [201, 400, 422]})]
    job_id: JobId | None = None
    errors: tuple[InputError, ...] = ()
