"""The operations of commands as calls of the HTTP API."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import UNSET

from evertick.cli.backends import (
    ForecastFilter,
    JobListFilter,
    LetterListFilter,
    Listing,
    OverviewFigures,
    RunListFilter,
    is_job_id,
)
from evertick.client.client import AsyncClient
from evertick.client.errors import NotFound
from evertick.contract.annotations import MAX_PER_PAGE
from evertick.domain.errors import Fault, InvalidFields
from evertick.domain.events import EventType

if TYPE_CHECKING:  # only calls about them import these
    from evertick.contract.alerts import Alert, AlertStatus, AlertTarget
    from evertick.contract.connections import BrokerConnection, ConnectionCheck
    from evertick.contract.events import Event, EventStream
    from evertick.contract.forecast import Forecast, ForecastAdvice, Smear
    from evertick.contract.job import Job, JobFields
    from evertick.contract.jobs import Verdict
    from evertick.contract.runs import DeadLetter, Replay, Replaying, RunDetail, RunOrGap
    from evertick.contract.target_hosts import TargetHost
    from evertick.contract.workers import Queue, Worker
    from evertick.domain.policies import Missed

_T = TypeVar("_T")

SMEAR_POLL_SECONDS = 0.5
_CLIENT_ARGUMENTS = frozenset({"self", "idempotency_key", "if_match"})
"""Keyword arguments of the client that are not fields of a job."""


class ApiBackend:
    """Each operation is one call of the client. A job given by name needs a call before it, to find the id."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def add_job(self, fields: Mapping[str, Any]) -> "Job":
        return await self._client.jobs.create(**_fields(fields))

    async def put_job(self, name: str, fields: Mapping[str, Any]) -> "Job":
        """Create the job of this name, or replace it."""
        return await self._client.jobs.replace(name, **_fields(fields))

    async def add_jobs(self, batch: Sequence[object]) -> "list[Verdict]":
        """Create the valid jobs. Returns a verdict for each job, in their order."""
        return await self._client.jobs.create_many(batch)  # type: ignore[arg-type] # the server validates each

    async def get_job(self, job: str) -> "Job":
        if is_job_id(job):
            return await self._client.jobs.get(job)
        return await self._client.jobs.get_by_name(job)

    async def list_jobs(self, filters: JobListFilter, limit: int) -> "Listing[Job]":
        return await _listing(limit, self._client.jobs.list(**filters._asdict(), page_size=_page(limit)))

    async def edit_job(self, job: str, fields: Mapping[str, Any]) -> "Job":
        return await self._client.jobs.update(await self._id(job), **_fields(fields))

    async def pause_job(self, job: str, reason: str | None) -> "Job":
        return await self._client.jobs.pause(await self._id(job), reason)

    async def resume_job(self, job: str, missed: "Missed") -> "Job":
        return await self._client.jobs.resume(await self._id(job), missed=missed.value)

    async def delete_job(self, job: str) -> str:
        """Returns the id of the deleted job."""
        job_id = await self._id(job)
        await self._client.jobs.delete(job_id)
        return job_id

    async def trigger_job(self, job: str, payload: Any = UNSET, *, force: bool = False) -> tuple[str, str | None]:
        """Returns the new run's id, and why it waits, if it does. Without a payload the run takes the job's."""
        run = await self._client.jobs.trigger(await self._id(job), payload, force=force)
        return run.run_id, run.waiting

    async def list_runs(self, filters: RunListFilter, limit: int) -> "Listing[RunOrGap]":
        options: Any = filters._asdict() | {"page_size": _page(limit)}
        job = options.pop("job")
        if job is None:
            found = await _listing(limit, self._client.runs.list(**options))
            return Listing(list(found.items), found.has_more)
        return await _listing(limit, self._client.jobs.runs(await self._id(job), **options))

    async def get_run(self, run_id: str, *, archive: bool = False) -> "RunDetail":
        return await self._client.runs.get(run_id, archive=archive)

    async def cancel_run(self, run_id: str) -> "RunDetail":
        return await self._client.runs.cancel(run_id)

    async def replay_run(self, run_id: str) -> str:
        """Returns the new run's id."""
        return (await self._client.runs.replay(run_id)).run_id

    async def list_dead_letters(self, job: str | None, limit: int) -> "Listing[DeadLetter]":
        job_id = None if job is None else await self._id(job)
        return await _listing(limit, self._client.dead_letters.list(job_id=job_id, page_size=_page(limit)))

    async def replay_dead_letter(self, run_id: str) -> str:
        """Returns the new run's id."""
        return (await self._client.dead_letters.replay(run_id)).run_id

    async def replay_dead_letters(
        self, filters: LetterListFilter, rate_per_second: float, *, background: bool
    ) -> "Replaying":
        """Replay all dead letters that match, or leave them to a replay."""
        job, *_ = filters
        chosen = filters._asdict()
        del chosen["job"]
        return await self._client.dead_letters.replay_many(
            job_id=None if job is None else await self._id(job),
            rate_per_second=rate_per_second,
            background=background,
            **chosen,
        )

    async def list_replays(self, limit: int) -> "Listing[Replay]":
        return await _listing(limit, self._client.replays.list(page_size=_page(limit)))

    async def get_replay(self, replay_id: str) -> "Replay":
        return await self._client.replays.get(replay_id)

    async def cancel_replay(self, replay_id: str) -> "Replay":
        return await self._client.replays.cancel(replay_id)

    async def dismiss_dead_letter(self, run_id: str) -> None:
        await self._client.dead_letters.dismiss(run_id)

    async def list_queues(self, limit: int) -> "Listing[Queue]":
        return await _listing(limit, self._client.queues.list(page_size=_page(limit)))

    async def list_workers(self, limit: int) -> "Listing[Worker]":
        return await _listing(limit, self._client.workers.list(page_size=_page(limit)))

    async def edit_queue(self, name: str, changes: Mapping[str, Any]) -> "Queue":
        limits: dict[str, Any] = {}
        with suppress(NotFound):  # it may get its limits before its first job
            from evertick.contract.workers import limits_of  # noqa: PLC0415 - as above

            limits = limits_of(await self._client.queues.get(name))
        return await self._client.queues.update(name, **limits | dict(changes))

    async def list_targets(self, limit: int) -> "Listing[TargetHost]":
        return await _listing(limit, self._client.targets.list(page_size=_page(limit)))

    async def limit_target(self, host: str, limits: Mapping[str, Any]) -> "TargetHost":
        return await self._client.targets.update(host, **limits)

    async def reset_target(self, host: str) -> "TargetHost":
        return await self._client.targets.reset(host)

    async def list_connections(self, limit: int) -> "Listing[BrokerConnection]":
        return await _listing(limit, self._client.connections.list(page_size=_page(limit)))

    async def get_connection(self, name: str) -> "BrokerConnection":
        return await self._client.connections.get(name)

    async def add_connection(self, name: str, fields: Mapping[str, Any], *, replaces: bool) -> "BrokerConnection":
        calls = self._client.connections
        return await (calls.replace(name, **fields) if replaces else calls.create(name, **fields))

    async def test_connection(self, name: str) -> "ConnectionCheck":
        return await self._client.connections.test(name)

    async def remove_connection(self, name: str) -> None:
        await self._client.connections.delete(name)

    async def list_alerts(self, status: "AlertStatus | None", limit: int) -> "Listing[Alert]":
        return await _listing(limit, self._client.alerts.list(status=status, page_size=_page(limit)))

    async def get_alert_target(self) -> "AlertTarget":
        return await self._client.alerts.target()

    async def put_alert_target(self, url: str, options: Mapping[str, Any]) -> "AlertTarget":
        return await self._client.alerts.set_target(url, **options)

    async def remove_alert_target(self) -> None:
        await self._client.alerts.remove_target()

    async def read_events(self, cursor: str | None, types: Sequence[EventType], limit: int) -> "Listing[Event]":
        found = self._client.events.list(cursor=cursor, types=[str(kind) for kind in types], page_size=_page(limit))
        return await _listing(limit, found)

    async def follow_events(self, cursor: str | None, types: Sequence[EventType]) -> "AsyncIterator[Event]":
        await self._client.events.stream()  # says at once if there is none; later, it waits for a server that is away
        async for event in self._client.events.follow(cursor=cursor, types=[str(kind) for kind in types]):
            yield event

    async def get_event_stream(self) -> "EventStream":
        return await self._client.events.stream()

    async def put_event_stream(self, options: Mapping[str, Any]) -> "EventStream":
        return await self._client.events.set_stream(**options)

    async def remove_event_stream(self) -> None:
        await self._client.events.remove_stream()

    async def overview(self, most_queues: int, most_runs: int) -> OverviewFigures:
        """Figures, what needs attention, and the first queues and runs."""
        client = self._client
        return OverviewFigures(
            await client.stats(),
            await client.cluster(),
            await client.attention(),
            (await self.list_queues(most_queues)).items,
            (await _listing(most_runs, client.runs.list(page_size=_page(most_runs)))).items,
        )

    async def forecast(self, filters: ForecastFilter) -> "Forecast":
        return await self._client.forecast.get(**filters._asdict())

    async def advise(self, labels: Mapping[str, str], queue: str | None) -> "ForecastAdvice":
        return await self._client.forecast.advice(labels=labels, queue=queue)

    async def apply_advice(self, advice: "ForecastAdvice", labels: Mapping[str, str], queue: str | None) -> "Smear":
        return await self._client.forecast.apply(advice, labels=labels, queue=queue)

    async def list_smears(self, limit: int) -> "Listing[Smear]":
        return await _listing(limit, self._client.forecast.smears(page_size=_page(limit)))

    async def undo_smear(self, smear_id: str) -> "Smear":
        return await self._client.forecast.undo(smear_id)

    async def finish_smear(self, smear_id: str, progress: "Callable[[Smear], None]") -> "Smear":
        """Wait until the server has worked off a smear."""
        import asyncio  # noqa: PLC0415 - simple calls need no event loop

        while (smear := await self._client.forecast.smear(smear_id)).finished_at is None:
            progress(smear)
            await asyncio.sleep(SMEAR_POLL_SECONDS)
        return smear

    async def test_alert_target(self) -> str:
        """Returns the run's id."""
        return (await self._client.alerts.test()).run_id

    async def _id(self, job: str) -> str:
        return job if is_job_id(job) else (await self.get_job(job)).job_id


def _fields(fields: Mapping[str, Any]) -> "JobFields":
    faults = [Fault(f"/{name}", "is not known") for name in fields if name in _CLIENT_ARGUMENTS]
    if faults:
        raise InvalidFields(faults)
    return cast("JobFields", fields)


def _page(limit: int) -> int:
    """One more than the limit, to know whether the list has more."""
    return min(limit + 1, MAX_PER_PAGE)


async def _listing(limit: int, found: AsyncIterator[_T]) -> Listing[_T]:
    items: list[_T] = []
    async for item in found:
        if len(items) == limit:
            return Listing(items, has_more=True)
        items.append(item)
    return Listing(items, has_more=False)
