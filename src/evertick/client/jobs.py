"""Calls about jobs and their runs: jobs, runs, dead letters, and the workers that pull attempts."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias, Unpack

import msgspec

from evertick.client.request import PREFIX, Request, change, fetch, no_content, path_of, post, struct_of
from evertick.client.transport import Call, Calls, PagedCall, W
from evertick.contract.job import Job, JobFields
from evertick.contract.jobs import Upcoming, Verdict
from evertick.contract.runs import DeadLetter, Gap, Replay, Replaying, Run, RunDetail, RunOrGap
from evertick.contract.workers import Heartbeat, Lease, OutcomeReport, Queue, Recorded, Worker
from evertick.domain.backpressure import DEFAULT_MAX_READY

Entries: TypeAlias = list[RunOrGap]
Verdicts: TypeAlias = list[Verdict]
UpcomingTimes: TypeAlias = list[Upcoming]
JobPage: TypeAlias = list[Job]
RunPage: TypeAlias = list[Run]
LetterPage: TypeAlias = list[DeadLetter]
QueuePage: TypeAlias = list[Queue]
WorkerPage: TypeAlias = list[Worker]
ReplayPage: TypeAlias = list[Replay]

_DEAD_LETTERS = "dead-letters"


class _Identity(msgspec.Struct):
    run_id: str | None


def read_entries(data: bytes) -> list[RunOrGap]:
    """Runs, and gaps, which have no run id."""
    return [
        struct_of(Gap)(raw) if struct_of(_Identity)(raw).run_id is None else struct_of(Run)(raw)
        for raw in struct_of(list[msgspec.Raw])(data)
    ]


class JobCalls(Calls[W]):
    """Create, read, change and run jobs."""

    @Call
    def create(self, *, idempotency_key: str | None = None, **fields: Unpack[JobFields]) -> Request[Job]:
        """Create a job. Calls with the same idempotency key create it once."""
        return post(path_of("jobs"), struct_of(Job), fields, key=idempotency_key)

    @Call
    def create_many(
        self, jobs: Iterable[Mapping[str, Any] | JobFields], *, idempotency_key: str | None = None
    ) -> Request[Verdicts]:
        """Create up to 10,000 jobs. Returns a verdict on each, in their order. Invalid jobs do not stop the others."""
        return post(f"{PREFIX}/jobs:batch", struct_of(Verdicts), list(jobs), key=idempotency_key)

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
    ) -> Request[Run]:
        """Run a job now, with its own payload unless another is given. Its schedule is not affected.

        Conflict: its `concurrent_policy` allows no run beside one that is open; `force` starts it all the same.
        """
        body = {} if payload is msgspec.UNSET else {"payload": payload}
        if force:
            body["force"] = True
        return post(path_of("jobs", job_id, "trigger"), struct_of(Run), body, key=idempotency_key)

    @Call
    def upcoming(self, job_id: str, *, count: int | None = None) -> Request[UpcomingTimes]:
        """A job's next fire times."""
        return fetch(path_of("jobs", job_id, "upcoming"), struct_of(UpcomingTimes), count=count)

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
    ) -> Request[Entries]:
        """A job's runs, newest first, with gaps where ticks did not run. `archive`: also archived ones."""
        found = {
            "status": status,
            "from": from_at,
            "to": to_at,
            "archive": "true" if archive else None,
            "limit": page_size,
        }
        return fetch(path_of("jobs", job_id, "runs"), read_entries, **found)


class RunCalls(Calls[W]):
    """Read, cancel and replay runs."""

    @PagedCall
    def list(
        self,
        *,
        status: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        archive: bool = False,
        page_size: int | None = None,
    ) -> Request[RunPage]:
        """The runs of all jobs, newest first. `archive`: also archived ones."""
        found = {
            "status": status,
            "from": from_at,
            "to": to_at,
            "archive": "true" if archive else None,
            "limit": page_size,
        }
        return fetch(path_of("runs"), struct_of(RunPage), **found)

    @Call
    def get(self, run_id: str, *, archive: bool = False) -> Request[RunDetail]:
        """A run with its attempts. `archive`: also archived ones."""
        return fetch(path_of("runs", run_id), struct_of(RunDetail), archive="true" if archive else None)

    @Call
    def cancel(self, run_id: str, *, idempotency_key: str | None = None) -> Request[RunDetail]:
        """Cancel a run. The outcome of a running handler is ignored."""
        return post(path_of("runs", run_id, "cancel"), struct_of(RunDetail), key=idempotency_key)

    @Call
    def replay(self, run_id: str, *, idempotency_key: str | None = None) -> Request[Run]:
        """Run a finished run again, as a new run."""
        return post(path_of("runs", run_id, "replay"), struct_of(Run), key=idempotency_key)


class DeadLetterCalls(Calls[W]):
    """Read, replay and dismiss dead letters."""

    @PagedCall
    def list(self, *, job_id: str | None = None, page_size: int | None = None) -> Request[LetterPage]:
        """The dead letters of all jobs or of one, newest first."""
        return fetch(path_of(_DEAD_LETTERS), struct_of(LetterPage), job_id=job_id, limit=page_size)

    @Call
    def replay(self, run_id: str, *, idempotency_key: str | None = None) -> Request[Run]:
        """Run a dead letter's run again, and remove the letter."""
        return post(path_of(_DEAD_LETTERS, run_id, "replay"), struct_of(Run), key=idempotency_key)

    @Call
    def replay_many(  # noqa: PLR0913 - the fields of the request
        self,
        *,
        job_id: str | None = None,
        queue: str | None = None,
        error: str | None = None,
        label: str | None = None,
        died_from: datetime | None = None,
        died_before: datetime | None = None,
        rate_per_second: float = 100.0,
        background: bool = False,
        idempotency_key: str | None = None,
    ) -> Request[Replaying]:
        """Replay all that match, at a rate: their runs are created at once, and become due one after the other.

        What is too much for one request, or all with `background`, is left to the replay `replay_id`.
        """
        chosen = {
            "job_id": job_id,
            "queue": queue,
            "error": error,
            "label": label,
            "died_from": died_from,
            "died_before": died_before,
        }
        body = {"filter": chosen, "rate_per_second": rate_per_second, "background": background}
        return post(f"{PREFIX}/{_DEAD_LETTERS}:replay", struct_of(Replaying), body, key=idempotency_key)

    @Call
    def dismiss(self, run_id: str) -> Request[None]:
        """Remove a dead letter. Its run stays in the history."""
        return change("DELETE", path_of(_DEAD_LETTERS, run_id), no_content)


class ReplayCalls(Calls[W]):
    """Read and cancel replays of many dead letters, which `dead_letters.replay_many` starts."""

    @PagedCall
    def list(self, *, page_size: int | None = None) -> Request[ReplayPage]:
        """The replays, newest first."""
        return fetch(path_of("replays"), struct_of(ReplayPage), limit=page_size)

    @Call
    def get(self, replay_id: str) -> Request[Replay]:
        """A replay, and how much is left of it."""
        return fetch(path_of("replays", replay_id), struct_of(Replay))

    @Call
    def cancel(self, replay_id: str, *, idempotency_key: str | None = None) -> Request[Replay]:
        """Cancel a replay. Runs that it has made stay."""
        return post(path_of("replays", replay_id, "cancel"), struct_of(Replay), key=idempotency_key)


class WorkerCalls(Calls[W]):
    """Lease attempts, extend their leases, and record their outcomes. `evertick.Worker` makes these calls for you."""

    @PagedCall
    def list(self, *, page_size: int | None = None) -> Request[WorkerPage]:
        """The workers and dispatchers, by name, with the queues and handlers that each serves."""
        return fetch(path_of("workers"), struct_of(WorkerPage), limit=page_size)

    @Call
    def lease(  # noqa: PLR0913 - the fields of the request
        self,
        queue: str,
        worker_id: str,
        *,
        max: int = 100,  # noqa: A002 - the API's name
        wait_seconds: float = 20.0,
        handlers: Sequence[str] | None = None,
        idempotency_key: str | None = None,
    ) -> Request[Lease]:
        """Lease up to `max` attempts, of these handlers or of any. Waits up to `wait_seconds` for the first.

        With an idempotency key, a repeated call gets the same answer. The server keeps a copy of it for a day.
        """
        path = path_of("queues", queue, "lease")
        body: dict[str, Any] = {"worker_id": worker_id, "max": max, "wait_seconds": wait_seconds}
        if handlers is not None:
            body["handlers"] = list(handlers)
        if idempotency_key is None:
            return dataclasses.replace(change("POST", path, struct_of(Lease), body), may_take=wait_seconds)
        return dataclasses.replace(post(path, struct_of(Lease), body, key=idempotency_key), may_take=wait_seconds)

    @Call
    def heartbeat(
        self, worker_id: str, tokens: Sequence[str] | None = None, progress: Mapping[str, str] | None = None
    ) -> Request[Heartbeat]:
        """Extend the leases of these attempts, or of all that the worker has, and say how far they are.

        Tokens of lost leases are returned among those to stop.
        """
        given = {"tokens": tokens, "progress": progress}
        body = {name: value for name, value in given.items() if value is not None}
        return post(path_of("workers", worker_id, "heartbeat"), struct_of(Heartbeat), body, is_change=False)

    @Call
    def record(
        self, worker_id: str, outcomes: Iterable[OutcomeReport], *, with_dead: bool = False
    ) -> Request[Recorded]:
        """Record outcomes. Outcomes that were recorded before are returned as stale.

        `with_dead`: failures that no attempt follows are named.
        """
        body: dict[str, Any] = {"worker_id": worker_id, "outcomes": list(outcomes)}
        if with_dead:
            body["with_dead"] = True
        return post(path_of("outcomes"), struct_of(Recorded), body, is_change=False)


class QueueCalls(Calls[W]):
    """Queues, what limits them, how full they are, and who serves them."""

    @PagedCall
    def list(self, *, page_size: int | None = None) -> Request[QueuePage]:
        """The queues, by name."""
        return fetch(path_of("queues"), struct_of(QueuePage), limit=page_size)

    @Call
    def get(self, queue: str) -> Request[Queue]:
        """A queue by its name."""
        return fetch(path_of("queues", queue), struct_of(Queue))

    @Call
    def update(
        self,
        queue: str,
        *,
        max_running: int | None = None,
        max_ready: int = DEFAULT_MAX_READY,
        rate_limit: float | None = None,
        rate_burst: int | None = None,
    ) -> Request[Queue]:
        """Replace the limits of a queue: how many attempts run at once and how many start per second, in all workers
        together (None: no limit), and how many may wait.
        """
        limits = {
            "max_running": max_running,
            "max_ready": max_ready,
            "rate_limit": rate_limit,
            "rate_burst": rate_burst,
        }
        return change("PUT", path_of("queues", queue), struct_of(Queue), limits)
