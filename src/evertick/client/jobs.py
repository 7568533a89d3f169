"""Calls about jobs."""

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias, Unpack

import msgspec

from evertick.client.request import PREFIX, Request, change, look, nothing, path_of, post, shaped
from evertick.client.runs import read_entries
from evertick.client.sections import Listed, Section, Sent, W
from evertick.contract.job import Job, JobFields
from evertick.contract.jobs import Verdict
from evertick.contract.runs import Run, RunOrGap
from evertick.contract.schedules import Upcoming

_read_job = shaped(Job)
_read_jobs = shaped(list[Job])
_read_run = shaped(Run)
_read_upcoming = shaped(list[Upcoming])
_read_verdicts = shaped(list[Verdict])

Entries: TypeAlias = list[RunOrGap]
Verdicts: TypeAlias = list[Verdict]
UpcomingTimes: TypeAlias = list[Upcoming]
JobPage: TypeAlias = list[Job]


class Jobs(Section[W]):
    """Making, reading, changing and running jobs."""

    @Sent
    def create(self, *, idempotency_key: str | None = None, **fields: Unpack[JobFields]) -> Request[Job]:
        """Create a job. The same idempotency key creates it once, however often it is asked for."""
        return post(path_of("jobs"), _read_job, fields, key=idempotency_key)

    @Sent
    def create_many(
        self, jobs: Iterable[Mapping[str, Any] | JobFields], *, idempotency_key: str | None = None
    ) -> Request[Verdicts]:
        """Create up to 10,000 jobs; a verdict on each, in their order. Good ones are kept when others fail."""
        return post(f"{PREFIX}/jobs:batch", _read_verdicts, list(jobs), key=idempotency_key)

    @Listed
    def list(
        self,
        *,
        status: str | None = None,
        labels: Mapping[str, str] | None = None,
        name_prefix: str | None = None,
        queue: str | None = None,
        page_size: int | None = None,
    ) -> Request[JobPage]:
        """All jobs that match, oldest first."""
        found = {"status": status, "label": labels, "name_prefix": name_prefix, "queue": queue, "limit": page_size}
        return look(path_of("jobs"), _read_jobs, **found)

    @Sent
    def get(self, job_id: str) -> Request[Job]:
        """A job by its id."""
        return look(path_of("jobs", job_id), _read_job)

    @Sent
    def get_by_name(self, name: str) -> Request[Job]:
        """A job by its name."""
        return look(path_of("jobs", "by-name", name), _read_job)

    @Sent
    def update(self, job_id: str, /, *, if_match: int | None = None, **fields: Unpack[JobFields]) -> Request[Job]:
        """AuditEntry fields of a job; None resets one. `if_match`: only if its `spec_version` is still this."""
        return change("PATCH", path_of("jobs", job_id), _read_job, fields, if_match=if_match)

    @Sent
    def replace(self, name: str, /, *, if_match: int | None = None, **fields: Unpack[JobFields]) -> Request[Job]:
        """Create the job of this name, or replace it. An equal specification changes nothing."""
        request = change("PUT", path_of("jobs", "by-name", name), _read_job, fields, if_match=if_match)
        return dataclasses.replace(request, is_repeatable=if_match is None)

    @Sent
    def delete(self, job_id: str, *, if_match: int | None = None) -> Request[None]:
        """Delete a job. What runs finishes, nothing new fires, its history stays."""
        return change("DELETE", path_of("jobs", job_id), nothing, if_match=if_match)

    @Sent
    def pause(self, job_id: str, reason: str | None = None, *, idempotency_key: str | None = None) -> Request[Job]:
        """Let no tick of a job fire until it is resumed."""
        return post(path_of("jobs", job_id, "pause"), _read_job, {"reason": reason}, key=idempotency_key)

    @Sent
    def resume(
        self,
        job_id: str,
        *,
        missed: Literal["skip", "run_once", "run_all"] = "skip",
        idempotency_key: str | None = None,
    ) -> Request[Job]:
        """Let a paused job fire again. `missed`: what becomes of the ticks meanwhile."""
        return post(path_of("jobs", job_id, "resume"), _read_job, {"missed": missed}, key=idempotency_key)

    @Sent
    def trigger(self, job_id: str, payload: Any = msgspec.UNSET, *, idempotency_key: str | None = None) -> Request[Run]:
        """Run a job now, with its own payload unless another is given. No scheduled tick is used up."""
        body = {} if payload is msgspec.UNSET else {"payload": payload}
        return post(path_of("jobs", job_id, "trigger"), _read_run, body, key=idempotency_key)

    @Sent
    def upcoming(self, job_id: str, *, count: int | None = None) -> Request[UpcomingTimes]:
        """A job's next fire times."""
        return look(path_of("jobs", job_id, "upcoming"), _read_upcoming, count=count)

    @Listed
    def runs(
        self,
        job_id: str,
        *,
        status: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        page_size: int | None = None,
    ) -> Request[Entries]:
        """A job's runs, newest first, with gaps where ticks did not run."""
        found = {"status": status, "from": from_at, "to": to_at, "limit": page_size}
        return look(path_of("jobs", job_id, "runs"), read_entries, **found)
