"""Calls about jobs."""

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

import msgspec

from evertick.client.request import PREFIX, Request, change, fetch, no_content, path_of, post, struct_of
from evertick.client.transport import Call, Calls, PagedCall, W
from evertick.contract.job import Job, JobFields

if TYPE_CHECKING:
    from evertick.contract.jobs import Upcoming, Verdict
    from evertick.contract.runs import Run, RunOrGap

    Verdicts: TypeAlias = list[Verdict]
    UpcomingTimes: TypeAlias = list[Upcoming]
    Entries: TypeAlias = list[RunOrGap]

JobPage: TypeAlias = list[Job]


class JobCalls(Calls[W]):
    """Create, read, change and run jobs."""

    @Call
    def create(self, *, idempotency_key: str | None = None, **fields: Unpack[JobFields]) -> Request[Job]:
        """Create a job. Calls with the same idempotency key create it once."""
        return post(path_of("jobs"), struct_of(Job), fields, key=idempotency_key)

    @Call
    def create_many(
        self, jobs: Iterable[Mapping[str, Any] | JobFields], *, idempotency_key: str | None = None
    ) -> "Request[Verdicts]":
        """Create up to 10,000 jobs. Returns a verdict on each, in their order. Invalid jobs do not stop the others."""
        from evertick.contract.jobs import Verdict  # noqa: PLC0415 - most calls need none

        return post(f"{PREFIX}/jobs:batch", struct_of(list[Verdict]), list(jobs), key=idempotency_key)

    @PagedCall
    def list(  # noqa: PLR0913 - as many filters as the API has
        self,
        *,
        status: str | None = None,
        labels: Mapping[str, str] | None = None,
        name_prefix: str | None = None,
        queue: str | None = None,
        finished: bool = True,
        page_size: int | None = None,
    ) -> Request[JobPage]:
        """All jobs that match, oldest first; without those that have finished if `finished` is False."""
        found = {"status": status, "label": labels, "name_prefix": name_prefix, "queue": queue, "limit": page_size}
        # Only where it is asked for: a server of an earlier version does not know it.
        others = {} if finished else {"finished": "false"}
        return fetch(path_of("jobs"), struct_of(JobPage), **found, **others)

    @Call
    def get(self, job_id: str) -> Request[Job]:
        """A job by its id."""
        return fetch(path_of("jobs", job_id), struct_of(Job))

    @Call
    def get_by_name(self, name: str) -> Request[Job]:
        """A job by its name."""
        return fetch(path_of("jobs", "by-name", name), struct_of(Job))

    @Call
    def update(self, job_id: str, /, *, if_match: int | None = None, **fields: Unpack[JobFields]) -> Request[Job]:
        """Change fields of a job; None resets one. `if_match`: only if its `spec_version` is still this."""
        return change("PATCH", path_of("jobs", job_id), struct_of(Job), fields, if_match=if_match)

    @Call
    def replace(self, name: str, /, *, if_match: int | None = None, **fields: Unpack[JobFields]) -> Request[Job]:
        """Create the job of this name, or replace it. An equal specification changes nothing."""
        request = change("PUT", path_of("jobs", "by-name", name), struct_of(Job), fields, if_match=if_match)
        return dataclasses.replace(request, is_repeatable=if_match is None)

    @Call
    def delete(self, job_id: str, *, if_match: int | None = None) -> Request[None]:
        """Delete a job: it does not fire any more. Attempts under way finish, and the history stays."""
        return change("DELETE", path_of("jobs", job_id), no_content, if_match=if_match)

    @Call
    def pause(self, job_id: str, reason: str | None = None, *, idempotency_key: str | None = None) -> Request[Job]:
        """Pause a job: no tick fires until it is resumed."""
        return post(path_of("jobs", job_id, "pause"), struct_of(Job), {"reason": reason}, key=idempotency_key)

    @Call
    def resume(
        self,
        job_id: str,
        *,
        missed: Literal["skip", "run_once", "run_all"] = "skip",
        idempotency_key: str | None = None,
    ) -> Request[Job]:
        """Resume a paused job. `missed`: what happens to the ticks of the pause."""
        return post(path_of("jobs", job_id, "resume"), struct_of(Job), {"missed": missed}, key=idempotency_key)

    @Call
    def trigger(
        self, job_id: str, payload: Any = msgspec.UNSET, *, force: bool = False, idempotency_key: str | None = None
    ) -> "Request[Run]":
        """Run a job now, with its own payload unless another is given. Its schedule is not affected.

        Conflict: its `concurrent_policy` allows no run beside one that is open; `force` starts it all the same.
        """
        from evertick.contract.runs import Run  # noqa: PLC0415 - most calls need none

        body = {} if payload is msgspec.UNSET else {"payload": payload}
        if force:
            body["force"] = True
        return post(path_of("jobs", job_id, "trigger"), struct_of(Run), body, key=idempotency_key)

    @Call
    def upcoming(self, job_id: str, *, count: int | None = None) -> "Request[UpcomingTimes]":
        """A job's next fire times."""
        from evertick.contract.jobs import Upcoming  # noqa: PLC0415 - as above

        return fetch(path_of("jobs", job_id, "upcoming"), struct_of(list[Upcoming]), count=count)

    @PagedCall
    def runs(  # noqa: PLR0913 - as many filters as the API has
        self,
        job_id: str,
        *,
        status: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        archive: bool = False,
        page_size: int | None = None,
    ) -> "Request[Entries]":
        """A job's runs, newest first, with gaps where ticks did not run. `archive`: also archived ones."""
        from evertick.client.runs import read_entries  # noqa: PLC0415 - as above

        found = {
            "status": status,
            "from": from_at,
            "to": to_at,
            "archive": "true" if archive else None,
            "limit": page_size,
        }
        return fetch(path_of("jobs", job_id, "runs"), read_entries, **found)
