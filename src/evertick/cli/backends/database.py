"""The operations of commands as use cases on the database."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, Protocol, TypeVar

from msgspec import UNSET

from evertick.cli.backends import (
    ACTOR,
    ForecastFilter,
    JobListFilter,
    LetterListFilter,
    Listing,
    OverviewFigures,
    RunListFilter,
    is_job_id,
)
from evertick.contract.alerts import Alert, AlertStatus, AlertTarget, AlertTargetRequest
from evertick.contract.annotations import MAX_PER_PAGE
from evertick.contract.connections import BrokerConnection, ConnectionCheck
from evertick.contract.events import Event, EventStream, EventStreamRequest
from evertick.contract.forecast import ApplyAdviceRequest, Forecast, ForecastAdvice, Smear
from evertick.contract.job import Job
from evertick.contract.jobs import Verdict
from evertick.contract.problem import InputError
from evertick.contract.reading import read_settings
from evertick.contract.runs import DeadLetter, LetterFilter, Replay, Replaying, RunDetail, RunOrGap
from evertick.contract.target_hosts import TargetHost, TargetSettings
from evertick.contract.workers import Queue, Worker
from evertick.domain.admission import OVERLOADED, Refused, Throttled
from evertick.domain.events import STORED, EventType
from evertick.domain.policies import Missed
from evertick.store.database import Pool
from evertick.usecases import attention, audit, engine_status, workers
from evertick.usecases.context import Page, TenantContext, unit_of_work
from evertick.usecases.doctor import LIFETIME
from evertick.usecases.errors import refusal_text
from evertick.usecases.forecast import reading as forecasts, smears
from evertick.usecases.forecast.reading import ForecastWish
from evertick.usecases.jobs import costs, edit, lifecycle, reading as jobs
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.create_many import LineResult, create_many
from evertick.usecases.runs import dead_letters, reading as runs, replays, requests
from evertick.usecases.tenants import alerts, connections, events, queues, target_hosts
from evertick.usecases.tenants.admission import TenantAdmission
from evertick.usecases.tenants.connections import ConnectionAccess

_Item = TypeVar("_Item")


EVENT_POLL_SECONDS = 1.0


class DatabaseBackend:
    """Each operation is one use case. Those that submit something are admitted as in the API."""

    def __init__(self, tenant: TenantContext, admission: TenantAdmission, access: ConnectionAccess) -> None:
        self._tenant = tenant
        self._admission = admission
        self._access = access

    async def add_job(self, fields: Mapping[str, Any]) -> Job:
        async with self._admission.of(costs.of_creation(fields)) as entry:
            job = await create(self._tenant, fields)
            entry.created = 1
            return job

    async def put_job(self, name: str, fields: Mapping[str, Any]) -> Job:
        async with self._admission.of(await costs.of_put(self._tenant, name, fields)) as entry:
            put = await edit.put(self._tenant, name, fields)
            entry.created = int(put.is_new)
            return put.job

    async def add_jobs(self, batch: Sequence[object]) -> list[Verdict]:
        async with self._admission.of(costs.of_batch(len(batch))) as entry:
            first, cut = batch[: entry.admitted.jobs], entry.admitted.cut
            overload = await self._admission.overload()
            lines = [line for line, job in enumerate(first, 1) if costs.priority_of(job) not in overload]
            chosen = [first[line - 1] for line in lines]
            async with self._admission.of(await costs.of_runs(chosen)):
                results = await create_many(self._tenant, chosen, lines=lines)
            entry.created = sum(result.job_id is not None for result in results)
        self._admission.give_back(len(first) - len(chosen))
        verdicts = {line: _verdict(line, result) for line, result in zip(lines, results, strict=True)}
        over = {line: _over_quota(line, OVERLOADED) for line in range(1, len(first) + 1) if line not in verdicts}
        rest = {line: _over_quota(line, cut) for line in range(len(first) + 1, len(batch) + 1) if cut is not None}
        return [verdict for _, verdict in sorted((verdicts | over | rest).items())]

    async def get_job(self, job: str) -> Job:
        find = jobs.get if is_job_id(job) else jobs.get_by_name
        return await find(self._tenant, job)

    async def list_jobs(self, filters: JobListFilter, limit: int) -> Listing[Job]:
        return await read_pages(partial(jobs.list_jobs, self._tenant, **filters._asdict()), limit)

    async def edit_job(self, job: str, fields: Mapping[str, Any]) -> Job:
        async with self._admission.of(costs.of_edit(fields)):
            return await edit.edit(self._tenant, await self._id(job), fields)

    async def pause_job(self, job: str, reason: str | None) -> Job:
        async with self._admission.of(costs.OF_CHANGE):
            return await lifecycle.pause(self._tenant, await self._id(job), reason)

    async def resume_job(self, job: str, missed: Missed) -> Job:
        async with self._admission.of(costs.OF_CHANGE):
            return await lifecycle.resume(self._tenant, await self._id(job), missed)

    async def delete_job(self, job: str) -> str:
        job_id = await self._id(job)
        await lifecycle.delete(self._tenant, job_id)
        return job_id

    async def trigger_job(self, job: str, payload: Any = UNSET, *, force: bool = False) -> tuple[str, str | None]:
        async with self._admission.of(costs.OF_RUN):
            run_id = await requests.trigger(self._tenant, await self._id(job), payload, force=force)
            return run_id, (await self.get_run(run_id)).waiting

    async def list_runs(self, filters: RunListFilter, limit: int) -> Listing[RunOrGap]:
        chosen = filters._asdict()
        del chosen["job"]
        if filters.job is None:
            found = await read_pages(partial(runs.tenant_runs, self._tenant, **chosen), limit)
            return Listing(list(found.items), found.has_more)
        return await read_pages(partial(runs.job_runs, self._tenant, await self._id(filters.job), **chosen), limit)

    async def get_run(self, run_id: str, *, archive: bool = False) -> RunDetail:
        return await runs.get_run(self._tenant, run_id, archive=archive)

    async def cancel_run(self, run_id: str) -> RunDetail:
        async with self._admission.of(costs.OF_CHANGE):
            await requests.cancel(self._tenant, run_id)
        return await self.get_run(run_id)

    async def replay_run(self, run_id: str) -> str:
        async with self._admission.of(costs.OF_RUN):
            return await requests.replay(self._tenant, run_id)

    async def list_dead_letters(self, job: str | None, limit: int) -> Listing[DeadLetter]:
        job_id = None if job is None else await self._id(job)
        return await read_pages(partial(dead_letters.list_letters, self._tenant, job_id=job_id), limit)

    async def replay_dead_letter(self, run_id: str) -> str:
        async with self._admission.of(costs.OF_RUN):
            return await requests.replay_letter(self._tenant, run_id)

    async def replay_dead_letters(
        self, filters: LetterListFilter, rate_per_second: float, *, background: bool
    ) -> Replaying:
        fields = filters._asdict()
        job = fields.pop("job")
        chosen = LetterFilter(job_id=None if job is None else await self._id(job), **fields)
        if background:
            return replays.in_background(await replays.start(self._tenant, chosen, rate_per_second, ACTOR))
        async with self._admission.of(costs.OF_REPLAYS), unit_of_work(self._tenant) as unit:
            done = await dead_letters.replay_letters(
                unit, chosen, rate_per_second, self._admission.draw_up_to, self._admission.give_back
            )
            rest = await replays.start_rest(unit, done, chosen, rate_per_second, ACTOR)
            return done.replaying(rest, len(done.runs))

    async def list_replays(self, limit: int) -> Listing[Replay]:
        return await read_pages(partial(replays.list_replays, self._tenant), limit)

    async def get_replay(self, replay_id: str) -> Replay:
        return await replays.get(self._tenant, replay_id)

    async def cancel_replay(self, replay_id: str) -> Replay:
        return await replays.cancel(self._tenant, replay_id)

    async def dismiss_dead_letter(self, run_id: str) -> None:
        await dead_letters.dismiss(self._tenant, run_id)

    async def list_queues(self, limit: int) -> Listing[Queue]:
        return await read_pages(partial(queues.list_queues, self._tenant), limit)

    async def list_workers(self, limit: int) -> Listing[Worker]:
        return await read_pages(partial(workers.list_workers, self._tenant), limit)

    async def edit_queue(self, name: str, changes: Mapping[str, Any]) -> Queue:
        async with unit_of_work(self._tenant) as unit:
            edited = await queues.edit_queue(unit, name, changes)
            await audit.record(unit, ACTOR, "put_queue", name)
            return edited

    async def list_targets(self, limit: int) -> Listing[TargetHost]:
        return await read_pages(partial(target_hosts.list_hosts, self._tenant), limit)

    async def limit_target(self, host: str, limits: Mapping[str, Any]) -> TargetHost:
        async with unit_of_work(self._tenant) as unit:
            limited = await target_hosts.limit_host(unit, host, read_settings(limits, TargetSettings))
            await audit.record(unit, ACTOR, "put_target", limited.host)
            return limited

    async def reset_target(self, host: str) -> TargetHost:
        async with unit_of_work(self._tenant) as unit:
            found = await target_hosts.reset_host(unit, host)
            await audit.record(unit, ACTOR, "reset_target", found.host)
            return found

    async def list_connections(self, limit: int) -> Listing[BrokerConnection]:
        return await read_pages(partial(connections.list_connections, self._tenant), limit)

    async def get_connection(self, name: str) -> BrokerConnection:
        return await connections.get(self._tenant, name)

    async def add_connection(self, name: str, fields: Mapping[str, Any], *, replaces: bool) -> BrokerConnection:
        given, seal = {"name": name, **fields}, self._access.seal
        async with self._admission.of(costs.OF_CHANGE), unit_of_work(self._tenant) as unit:
            if replaces:
                added, _ = await connections.put(unit, name, given, seal)
            else:
                added = await connections.create(unit, given, seal)
            await audit.record(unit, ACTOR, "put_connection" if replaces else "create_connection", name)
            return added

    async def test_connection(self, name: str) -> ConnectionCheck:
        return await self._access.check(self._tenant, await connections.row_of(self._tenant, name))

    async def remove_connection(self, name: str) -> None:
        async with unit_of_work(self._tenant) as unit:
            await connections.remove(unit, name)
            await audit.record(unit, ACTOR, "delete_connection", name)

    async def list_alerts(self, status: AlertStatus | None, limit: int) -> Listing[Alert]:
        return await read_pages(partial(alerts.list_alerts, self._tenant, status=status), limit)

    async def get_alert_target(self) -> AlertTarget:
        return await alerts.get_target(self._tenant)

    async def put_alert_target(self, url: str, options: Mapping[str, Any]) -> AlertTarget:
        given = read_settings({"url": url, **options}, AlertTargetRequest)
        async with self._admission.of(costs.OF_CHANGE), unit_of_work(self._tenant) as unit:
            target = await alerts.put_target(unit, given)
            await audit.record(unit, ACTOR, "put_alert_target", target.job_id)
            return target

    async def remove_alert_target(self) -> None:
        async with unit_of_work(self._tenant) as unit:
            await alerts.remove_target(unit)
            await audit.record(unit, ACTOR, "delete_alert_target", None)

    async def read_events(self, cursor: str | None, types: Sequence[EventType], limit: int) -> Listing[Event]:
        after = events.position_of(cursor)
        while True:
            found = await events.read(self._tenant, after=after, types=types or STORED, limit=limit)
            if found.events or found.is_last:
                return Listing(found.events, has_more=not found.is_last)
            after = found.cursor  # a page looks at so many events only

    async def follow_events(self, cursor: str | None, types: Sequence[EventType]) -> AsyncIterator[Event]:
        after = events.position_of(cursor)
        while True:
            found = await events.read(self._tenant, after=after, types=types or STORED, limit=MAX_PER_PAGE)
            for event in found.events:
                yield event
            after = found.cursor  # also past events of other types, which are not looked at again
            if found.is_last:
                await asyncio.sleep(EVENT_POLL_SECONDS)

    async def get_event_stream(self) -> EventStream:
        return await events.get_stream(self._tenant)

    async def put_event_stream(self, options: Mapping[str, Any]) -> EventStream:
        given = read_settings(options, EventStreamRequest)
        async with self._admission.of(costs.OF_CHANGE), unit_of_work(self._tenant) as unit:
            stream = await events.put_stream(unit, given)
            await audit.record(unit, ACTOR, "put_event_stream", None)
            return stream

    async def remove_event_stream(self) -> None:
        async with unit_of_work(self._tenant) as unit:
            await events.remove_stream(unit)
            await audit.record(unit, ACTOR, "delete_event_stream", None)

    async def overview(self, most_queues: int, most_runs: int) -> OverviewFigures:
        """Figures, what needs attention, and the first queues and runs."""
        pool = self._tenant.pool
        assert isinstance(pool, Pool)
        return OverviewFigures(
            await engine_status.tenant_stats(pool, self._tenant.tenant_id),
            await engine_status.cluster_status(pool, LIFETIME),
            await attention.attention(self._tenant),
            (await self.list_queues(most_queues)).items,
            (await read_pages(partial(runs.tenant_runs, self._tenant), most_runs)).items,
        )

    async def forecast(self, filters: ForecastFilter) -> Forecast:
        return await forecasts.forecast(self._tenant, ForecastWish(**filters._asdict()))

    async def advise(self, labels: Mapping[str, str], queue: str | None) -> ForecastAdvice:
        return await forecasts.advise(self._tenant, labels, queue)

    async def apply_advice(self, advice: ForecastAdvice, labels: Mapping[str, str], queue: str | None) -> Smear:
        rules = [rule.rule_id for rule in advice.rules if rule.rule_id is not None]
        texts = [f"{key}:{value}" for key, value in labels.items()]
        given = ApplyAdviceRequest(rules=rules, jitter_seconds=advice.jitter_seconds or 0, label=texts, queue=queue)
        async with self._admission.of(costs.OF_CHANGE), unit_of_work(self._tenant) as unit:
            smear = await smears.apply(unit, given, ACTOR)
            await audit.record(unit, ACTOR, "apply_advice", smear.smear_id)
            return smear

    async def list_smears(self, limit: int) -> Listing[Smear]:
        return await read_pages(partial(smears.list_smears, self._tenant), limit)

    async def undo_smear(self, smear_id: str) -> Smear:
        async with unit_of_work(self._tenant) as unit:
            smear = await smears.undo(unit, smear_id)
            await audit.record(unit, ACTOR, "undo_smear", smear_id)
            return smear

    async def finish_smear(self, smear_id: str, progress: Callable[[Smear], None]) -> Smear:
        """Work off a smear: there may be no janitor."""
        return await smears.work_off(self._tenant, smear_id, progress)

    async def test_alert_target(self) -> str:
        async with self._admission.of(costs.OF_RUN):
            return await alerts.send_test_notice(self._tenant, f"test:{token_hex(8)}")

    async def _id(self, job: str) -> str:
        return job if is_job_id(job) else (await jobs.get_by_name(self._tenant, job)).job_id


def _verdict(line: int, result: LineResult) -> Verdict:
    errors = tuple(InputError(pointer, reason) for pointer, reason in result.faults)
    return Verdict(line=line, status=422 if errors else 201, job_id=result.job_id, errors=errors)


def _over_quota(line: int, cut: Throttled | Refused) -> Verdict:
    errors = (InputError("", refusal_text(cut)),)
    return Verdict(line=line, status=429, quota=cut.quota, errors=errors)


class PageReader(Protocol[_Item]):
    """A use case that lists items page by page."""

    def __call__(self, *, limit: int, cursor: str | None) -> Awaitable[Page[_Item]]: ...


async def read_pages(page: PageReader[_Item], limit: int = sys.maxsize) -> Listing[_Item]:
    """The first items of a list, or all of them."""
    found: list[_Item] = []
    cursor: str | None = None
    while len(found) < limit:
        part = await page(limit=min(limit - len(found), MAX_PER_PAGE), cursor=cursor)
        found += part.items
        cursor = part.next
        if cursor is None:
            break
    return Listing(found, has_more=cursor is not None)
