"""Calls about jobs and their runs: jobs, runs, dead letters, and the workers that pull attempts."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias, Unpack

import msgspec

from evertick.client.request import PREFIX, Request, change, look, nothing, path_of, post, shaped
from evertick.client.transport import Listed, Section, Sent, W
from evertick.contract.job import Job, JobFields
from evertick.contract.jobs import Upcoming, Verdict
from evertick.contract.runs import DeadLetter, Gap, Replaying, Run, RunDetail, RunOrGap
from evertick.contract.workers import Heartbeat, Lease, OutcomeReport, Recorded

Entries: TypeAlias = list[RunOrGap]
Verdicts: TypeAlias = list[Verdict]
UpcomingTimes: TypeAlias = list[Upcoming]
JobPage: TypeAlias = list[Job]
RunPage: TypeAlias = list[Run]
LetterPage: TypeAlias = list[DeadLetter]

_DEAD_LETTERS = "dead-letters"


class _Identity(msgspec.Struct):
    run_id: str | None


def read_entries(data: bytes) -> list[RunOrGap]:
    """Runs, and gaps, which have no run id."""
    return [
        shaped(Gap)(raw) if shaped(_Identity)(raw).run_id is None else shaped(Run)(raw)
        for raw in shaped(list[msgspec.Raw])(data)
    ]


class Jobs(Section[W]):
    """Making, reading, changing and running jobs."""

    @Sent
    def create(self, *, idempotency_key: str | None = None, **fields: Unpack[JobFields]) -> Request[Job]:
        """Create a job. The same idempotency key creates it once, however often it is asked for."""
        return post(path_of("jobs"), shaped(Job), fields, key=idempotency_key)

    @Sent
    def create_many(
        self, jobs: Iterable[Mapping[str, Any] | JobFields], *, idempotency_key: str | None = None
    ) -> Request[Verdicts]:
        """Create up to 10,000 jobs; a verdict on each, in their order. Good ones are kept when others fail."""
        return post(f"{PREFIX}/jobs:batch", shaped(Verdicts), list(jobs), key=idempotency_key)

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
        return look(path_of("jobs"), shaped(JobPage), **found)

    @Sent
    def get(self, job_id: str) -> Request[Job]:
        """A job by its id."""
        return look(path_of("jobs", job_id), shaped(Job))

    @Sent
    def get_by_name(self, name: str) -> Request[Job]:
        """A job by its name."""
        return look(path_of("jobs", "by-name", name), shaped(Job))

    @Sent
    def update(self, job_id: str, /, *, if_match: int | None = None, **fields: Unpack[JobFields]) -> Request[Job]:
        """Change fields of a job; None resets one. `if_match`: only if its `spec_version` is still this."""
        return change("PATCH", path_of("jobs", job_id), shaped(Job), fields, if_match=if_match)

    @Sent
    def replace(self, name: str, /, *, if_match: int | None = None, **fields: Unpack[JobFields]) -> Request[Job]:
        """Create the job of this name, or replace it. An equal specification changes nothing."""
        request = change("PUT", path_of("jobs", "by-name", name), shaped(Job), fields, if_match=if_match)
        return dataclasses.replace(request, is_repeatable=if_match is None)

    @Sent
    def delete(self, job_id: str, *, if_match: int | None = None) -> Request[None]:
        """Delete a job. What runs finishes, nothing new fires, its history stays."""
        return change("DELETE", path_of("jobs", job_id), nothing, if_match=if_match)

    @Sent
    def pause(self, job_id: str, reason: str | None = None, *, idempotency_key: str | None = None) -> Request[Job]:
        """Let no tick of a job fire until it is resumed."""
        return post(path_of("jobs", job_id, "pause"), shaped(Job), {"reason": reason}, key=idempotency_key)

    @Sent
    def resume(
        self,
        job_id: str,
        *,
        missed: Literal["skip", "run_once", "run_all"] = "skip",
        idempotency_key: str | None = None,
    ) -> Request[Job]:
        """Let a paused job fire again. `missed`: what becomes of the ticks meanwhile."""
        return post(path_of("jobs", job_id, "resume"), shaped(Job), {"missed": missed}, key=idempotency_key)

    @Sent
    def trigger(self, job_id: str, payload: Any = msgspec.UNSET, *, idempotency_key: str | None = None) -> Request[Run]:
        """Run a job now, with its own payload unless another is given. No scheduled tick is used up."""
        body = {} if payload is msgspec.UNSET else {"payload": payload}
        return post(path_of("jobs", job_id, "trigger"), shaped(Run), body, key=idempotency_key)

    @Sent
    def upcoming(self, job_id: str, *, count: int | None = None) -> Request[UpcomingTimes]:
        """A job's next fire times."""
        return look(path_of("jobs", job_id, "upcoming"), shaped(UpcomingTimes), count=count)

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


class Runs(Section[W]):
    """Reading, cancelling and repeating runs."""

    @Listed
    def list(
        self,
        *,
        status: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        page_size: int | None = None,
    ) -> Request[RunPage]:
        """The runs of all jobs, latest first."""
        found = {"status": status, "from": from_at, "to": to_at, "limit": page_size}
        return look(path_of("runs"), shaped(RunPage), **found)

    @Sent
    def get(self, run_id: str) -> Request[RunDetail]:
        """A run with its attempts."""
        return look(path_of("runs", run_id), shaped(RunDetail))

    @Sent
    def cancel(self, run_id: str, *, idempotency_key: str | None = None) -> Request[RunDetail]:
        """Cancel a run, whatever its worker comes to."""
        return post(path_of("runs", run_id, "cancel"), shaped(RunDetail), key=idempotency_key)

    @Sent
    def replay(self, run_id: str, *, idempotency_key: str | None = None) -> Request[Run]:
        """Run a finished run again, as a new one."""
        return post(path_of("runs", run_id, "replay"), shaped(Run), key=idempotency_key)


class DeadLetters(Section[W]):
    """Reading, replaying and dismissing dead letters."""

    @Listed
    def list(self, *, job_id: str | None = None, page_size: int | None = None) -> Request[LetterPage]:
        """The dead letters, or a job's, those that died last first."""
        return look(path_of(_DEAD_LETTERS), shaped(LetterPage), job_id=job_id, limit=page_size)

    @Sent
    def replay(self, run_id: str, *, idempotency_key: str | None = None) -> Request[Run]:
        """Run a dead letter's run again, and remove the letter."""
        return post(path_of(_DEAD_LETTERS, run_id, "replay"), shaped(Run), key=idempotency_key)

    @Sent
    def replay_many(
        self,
        *,
        job_id: str | None = None,
        died_from: datetime | None = None,
        died_before: datetime | None = None,
        rate_per_second: float = 100.0,
        idempotency_key: str | None = None,
    ) -> Request[Replaying]:
        """Replay all that match, at a rate: each becomes a run at once, and is due at its turn."""
        chosen = {"job_id": job_id, "died_from": died_from, "died_before": died_before}
        body = {"filter": chosen, "rate_per_second": rate_per_second}
        return post(f"{PREFIX}/{_DEAD_LETTERS}:replay", shaped(Replaying), body, key=idempotency_key)

    @Sent
    def dismiss(self, run_id: str) -> Request[None]:
        """Remove a dead letter. Its run stays in the history."""
        return change("DELETE", path_of(_DEAD_LETTERS, run_id), nothing)


class Workers(Section[W]):
    """Leasing attempts, keeping them, and telling how they ended. `evertick.Worker` makes these calls for you."""

    @Sent
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
        """Lease up to `max` attempts, of these handlers or any; waits for the first for up to `wait_seconds`.

        With an idempotency key, an answer that got lost comes again; the server then keeps a copy of it for a day.
        """
        path = path_of("queues", queue, "lease")
        body: dict[str, Any] = {"worker_id": worker_id, "max": max, "wait_seconds": wait_seconds}
        if handlers is not None:
            body["handlers"] = list(handlers)
        if idempotency_key is None:
            return dataclasses.replace(change("POST", path, shaped(Lease), body), may_take=wait_seconds)
        return dataclasses.replace(post(path, shaped(Lease), body, key=idempotency_key), may_take=wait_seconds)

    @Sent
    def heartbeat(self, worker_id: str, tokens: Sequence[str] | None = None) -> Request[Heartbeat]:
        """Keep what the worker has leased: of these attempts, or all of it.

        Of the tokens, those that it has lost come back among those to stop.
        """
        body = {} if tokens is None else {"tokens": tokens}
        return post(path_of("workers", worker_id, "heartbeat"), shaped(Heartbeat), body, is_change=False)

    @Sent
    def record(self, worker_id: str, outcomes: Iterable[OutcomeReport]) -> Request[Recorded]:
        """Tell how attempts ended. Told again, what counted the first time is among the stale."""
        body = {"worker_id": worker_id, "outcomes": list(outcomes)}
        return post(path_of("outcomes"), shaped(Recorded), body, is_change=False)
