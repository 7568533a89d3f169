"""Creating jobs by the thousand, in one transaction. A job that cannot be created does not affect the others.

1. Before the transaction, draft in the background thread what may take long: no lock should wait for that.
2. In it, while the database writes one part of a batch the next is read, so that both are busy all the time. If rules
   and queues are added in the same transaction, all of them have to come first: then everything is read before it.
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
from evertick.runtime.loop import Slices
from evertick.store.database import Session
from evertick.store.jobs import jobs
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import Draft, Drafter, add_references, numbered, write

PART_SIZE = 1000
BATCH_STEPS = 15_000_000
"""Of looking for the ticks of one batch (see `schedule.budget`): 10,000 different weekly schedules take 10 million."""
_TOO_COSTLY = (Fault("/schedule", "is too costly to compute after those before it: send fewer schedules at once"),)


class LineResult(NamedTuple):
    """The result of one job of a batch: its id, or its faults."""

    job_id: str | None
    faults: tuple[Fault, ...] = ()


class DraftedBatch(NamedTuple):
    """A batch before its transaction: the jobs are numbered, and the costly ones drafted or refused, by their index."""

    now_at: datetime
    numbers: Sequence[int]
    drafter: Drafter
    drafted: Mapping[int, Draft | tuple[Fault, ...]]


async def draft_batch(tenant: TenantContext, batch: Sequence[object]) -> DraftedBatch:
    """Number a batch, and draft the costly jobs. For callers that open a transaction around `create_many`."""
    drawn = await jobs.numbers(tenant.pool, tenant.tenant_id, len(batch))
    now_at, numbers, drafter = drawn.now_at, drawn.numbers, Drafter(tenant, drawn)
    costly = [index for index, job in enumerate(batch) if is_costly(_schedule_of(job))]
    steps = _draft_each(drafter, [(index, batch[index], numbers[index]) for index in costly])
    drafted = await background.run_steps(tenant.tenant_id, steps) if costly else {}
    return DraftedBatch(now_at, numbers, drafter, drafted)


async def create_many(
    tenant: TenantContext,
    batch: Sequence[object],
    drafted: DraftedBatch | None = None,
    lines: Sequence[int] | None = None,
) -> list[LineResult]:
    """Create those of a batch, fields or specifications, that can be. Returns a result for each, in their order.

    `lines` are the numbers by which messages name them; 1, 2, 3 … unless given.
    """
    names = lines or range(1, len(batch) + 1)
    first = [] if drafted is None else [drafted]

    async def work() -> _Creation:
        ready = first.pop() if first else await draft_batch(tenant, batch)
        creation = _Creation(tenant, batch, ready, names)
        if not tenant.references.is_committed_apart:
            await creation.read_all()
        return await tenant.in_transaction(creation.run)

    creation = await numbered(work)
    tenant.notify(creation.created)
    return creation.results()


def _schedule_of(job: object) -> str:
    found = job.get("schedule") if isinstance(job, Mapping) else job.schedule if isinstance(job, JobSpec) else None
    return found if isinstance(found, str) else ""


def _draft_each(
    drafter: Drafter, jobs: Sequence[tuple[int, object, int]]
) -> Steps[dict[int, Draft | tuple[Fault, ...]]]:
    """Drafts or faults of jobs, given with their index and number, by their index."""
    drafted: dict[int, Draft | tuple[Fault, ...]] = {}
    with metered() as meter:
        for index, job, number in jobs:
            try:
                drafted[index] = drafter.draft(drafter.read(job), number) if meter.steps < BATCH_STEPS else _TOO_COSTLY
            except InvalidFields as refused:
                drafted[index] = refused.faults
            yield
    return drafted


class _Creation:
    """Writes one batch to the database."""

    def __init__(
        self, tenant: TenantContext, batch: Sequence[object], drafted: DraftedBatch, lines: Sequence[int]
    ) -> None:
        self._tenant = tenant
        self._batch = batch
        self._drafted = drafted
        self._lines = lines
        self._names: dict[str, int] = {}
        self._faults: dict[int, tuple[Fault, ...]] = {}
        self._job_ids: dict[int, int] = {}
        self._slices = Slices()
        self._parts = [range(start, min(start + PART_SIZE, len(batch))) for start in range(0, len(batch), PART_SIZE)]
        self._all_read: list[list[Draft]] = []
        self.created: set[int] = set()

    async def read_all(self) -> None:
        """Read everything. Not in the transaction: the server ends one that is idle for as long as this may take."""
        self._all_read = [await self._read(part) for part in self._parts]

    async def run(self, connection: Session) -> "_Creation":
        self.created = set()  # an earlier try was undone
        if self._tenant.references.is_committed_apart:
            await self._write_while_reading(connection)
        else:
            # What it refers to stays locked to its end, so all of that has to come first, in one order.
            await add_references(connection, self._tenant, [draft for drafts in self._all_read for draft in drafts])
            for drafts in self._all_read:
                await self._write(connection, drafts)
        return self

    async def _write_while_reading(self, connection: Session) -> None:
        drafts: Sequence[Draft] = ()
        for part in self._parts:
            _, drafts = await asyncio.gather(self._write(connection, drafts), self._read(part))
        await self._write(connection, drafts)

    def results(self) -> list[LineResult]:
        return [self._result(index) for index in range(len(self._batch))]

    async def _read(self, part: range) -> list[Draft]:
        drafts: list[Draft] = []
        for index in part:
            if self._slices.is_over:
                await self._slices.pause()
            try:
                new = self._draft(index)
            except InvalidFields as refused:
                self._faults[index] = refused.faults
            else:
                drafts.append(new)
                self._job_ids[index] = new.job_id
        return drafts

    def _draft(self, index: int) -> Draft:
        new = self._drafted.drafted.get(index)
        if new is None:
            drafter = self._drafted.drafter
            new = drafter.draft(drafter.read(self._batch[index]), self._drafted.numbers[index])
        if not isinstance(new, Draft):
            raise InvalidFields(new)
        name = str(new.spec.name)
        first = self._names.setdefault(name, self._lines[index])
        if first != self._lines[index]:
            raise InvalidFields([Fault("/name", f"is taken by line {first} of this batch")])
        return new

    async def _write(self, connection: Session, drafts: Sequence[Draft]) -> None:
        if drafts:
            self.created |= await write(connection, self._tenant, drafts, self._drafted.now_at)

    def _result(self, index: int) -> LineResult:
        job_id = self._job_ids.get(index)
        if job_id is None:
            return LineResult(None, self._faults[index])
        if job_id not in self.created:
            return LineResult(None, (Fault("/name", "is taken by another job"),))
        return LineResult(format_id(Prefix.JOB, job_id))
