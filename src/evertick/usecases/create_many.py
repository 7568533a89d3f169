"""Creating jobs by the thousand, in one transaction. Those that cannot be created do not keep back the others.

1. Before the transaction, draft in the background thread what may take long: no lock should wait for that.
2. In it, while the database writes one part of a batch the next is read, so that both are busy all the time.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.contract.job import JobSpec
from evertick.domain.errors import Fault, InvalidFields
from evertick.domain.ids import Prefix, format_id
from evertick.domain.schedule.budget import metered
from evertick.domain.schedule.text import is_costly
from evertick.runtime import background
from evertick.runtime.background import Steps
from evertick.runtime.event_loop import Slices
from evertick.store import jobs
from evertick.store.database import Session
from evertick.usecases.context import Tenant
from evertick.usecases.transactions import retry_transaction
from evertick.usecases.jobs.drafting import Draft, Drafter, numbered, write
from evertick.usecases.jobs.rows import as_spec

_PART = 1000
BATCH_STEPS = 15_000_000
"""Of looking for the ticks of one batch (see `schedule.budget`): 10,000 different weekly schedules take 10 million."""
_TOO_COSTLY = (Fault("/schedule", "is too costly to compute after those before it: send fewer schedules at once"),)


class Verdict(NamedTuple):
    """What became of one job of a batch: it has an id, or faults."""

    job_id: str | None
    faults: tuple[Fault, ...] = ()


class Ahead(NamedTuple):
    """What was done before the transaction: the jobs are numbered, and some drafted or refused, by their place."""

    now_at: datetime
    numbers: Sequence[int]
    drafter: Drafter
    drafted: Mapping[int, Draft | tuple[Fault, ...]]


async def draft_ahead(tenant: Tenant, batch: Sequence[object]) -> Ahead:
    """Number a batch, and draft what may take long. For who opens a transaction around `create_many`."""
    now_at, numbers = await jobs.numbers(tenant.pool, len(batch))
    drafter = Drafter(tenant, now_at)
    costly = [place for place, job in enumerate(batch) if is_costly(_schedule_of(job))]
    steps = _draft_each(drafter, [(place, batch[place], numbers[place]) for place in costly])
    drafted = await background.run_steps(tenant.tenant_id, steps) if costly else {}
    return Ahead(now_at, numbers, drafter, drafted)


async def create_many(
    tenant: Tenant, batch: Sequence[object], ahead: Ahead | None = None, lines: Sequence[int] | None = None
) -> list[Verdict]:
    """Create those of a batch, fields or specifications, that can be. Returns a verdict for each, in their order.

    `lines` is what their author calls them; 1, 2, 3 … unless it is given.
    """
    names = lines or range(1, len(batch) + 1)
    given = [] if ahead is None else [ahead]

    async def work() -> _Creation:
        done = given.pop() if given else await draft_ahead(tenant, batch)
        # Again where two batches deadlock: each adds its rules part by part, and they may be the same ones.
        return await retry_transaction(
            lambda: tenant.transact(lambda connection: _Creation(tenant, batch, done, names).run(connection))
        )

    creation = await numbered(work)
    tenant.notify(creation.created)
    return creation.verdicts()


def _schedule_of(job: object) -> str:
    found = job.get("schedule") if isinstance(job, Mapping) else job.schedule if isinstance(job, JobSpec) else None
    return found if isinstance(found, str) else ""


def _draft_each(
    drafter: Drafter, jobs: Sequence[tuple[int, object, int]]
) -> Steps[dict[int, Draft | tuple[Fault, ...]]]:
    """What becomes of jobs, given with their place and number."""
    drafted: dict[int, Draft | tuple[Fault, ...]] = {}
    with metered() as meter:
        for place, job, number in jobs:
            try:
                drafted[place] = drafter.draft(as_spec(job), number) if meter.steps < BATCH_STEPS else _TOO_COSTLY
            except InvalidFields as refused:
                drafted[place] = refused.faults
            yield
    return drafted


class _Creation:
    """One batch on its way into the database."""

    def __init__(self, tenant: Tenant, batch: Sequence[object], ahead: Ahead, lines: Sequence[int]) -> None:
        self._tenant = tenant
        self._batch = batch
        self._ahead = ahead
        self._lines = lines
        self._names: dict[str, int] = {}
        self._faults: dict[int, tuple[Fault, ...]] = {}
        self._job_ids: dict[int, int] = {}
        self._slices = Slices()
        self.created: set[int] = set()

    async def run(self, connection: Session) -> "_Creation":
        drafts: Sequence[Draft] = ()
        for start in range(0, len(self._batch), _PART):
            part = range(start, min(start + _PART, len(self._batch)))
            _, drafts = await asyncio.gather(self._write(connection, drafts), self._read(part))
        await self._write(connection, drafts)
        return self

    def verdicts(self) -> list[Verdict]:
        return [self._verdict(place) for place in range(len(self._batch))]

    async def _read(self, part: range) -> list[Draft]:
        drafts: list[Draft] = []
        for place in part:
            if self._slices.is_over:
                await self._slices.pause()
            try:
                new = self._draft(place)
            except InvalidFields as refused:
                self._faults[place] = refused.faults
            else:
                drafts.append(new)
                self._job_ids[place] = new.job_id
        return drafts

    def _draft(self, place: int) -> Draft:
        new = self._ahead.drafted.get(place)
        if new is None:
            new = self._ahead.drafter.draft(as_spec(self._batch[place]), self._ahead.numbers[place])
        if not isinstance(new, Draft):
            raise InvalidFields(new)
        name = str(new.spec.name)
        first = self._names.setdefault(name, self._lines[place])
        if first != self._lines[place]:
            raise InvalidFields([Fault("/name", f"is taken by line {first} of this batch")])
        return new

    async def _write(self, connection: Session, drafts: Sequence[Draft]) -> None:
        if drafts:
            self.created |= await write(connection, self._tenant, drafts, self._ahead.now_at)

    def _verdict(self, place: int) -> Verdict:
        job_id = self._job_ids.get(place)
        if job_id is None:
            return Verdict(None, self._faults[place])
        if job_id not in self.created:
            return Verdict(None, (Fault("/name", "is taken by another job"),))
        return Verdict(format_id(Prefix.JOB, job_id))
