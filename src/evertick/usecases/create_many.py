"""Creating jobs by the thousand, in one transaction. Those that cannot be created do not keep back the others.

While the database writes one part of a batch the next is read, so that both are busy all the time.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.domain.errors import Fault, InvalidFields
from evertick.domain.ids import Prefix, format_id
from evertick.store import jobs
from evertick.store.database import Session
from evertick.usecases.catalogue import Ids
from evertick.usecases.context import Tenant
from evertick.usecases.drafting import Draft, Drafter, refer, write
from evertick.usecases.writing import as_spec

_PART = 1000
_STRIDE = 50
"""Jobs that are read at a time: in between the event loop sends what the database waits for, and serves others."""


class Verdict(NamedTuple):
    """What became of one job of a batch: it has an id, or faults."""

    job_id: str | None
    faults: tuple[Fault, ...] = ()


async def create_many(tenant: Tenant, batch: Sequence[object]) -> list[Verdict]:
    """Create those of a batch, fields or specifications, that can be. Returns a verdict for each, in their order."""
    creation = await tenant.transact(lambda connection: _Creation(tenant, batch).run(connection))
    for ids in creation.referred:
        tenant.catalogue.remember(tenant.tenant_id, ids)
    tenant.notify(creation.created)
    return creation.verdicts()


class _Creation:
    """One batch on its way into the database."""

    def __init__(self, tenant: Tenant, batch: Sequence[object]) -> None:
        self._tenant = tenant
        self._batch = batch
        self._names: dict[str, int] = {}
        self._faults: dict[int, tuple[Fault, ...]] = {}
        self._job_ids: dict[int, int] = {}
        self.created: set[int] = set()
        self.referred: list[Ids] = []

    async def run(self, connection: Session) -> "_Creation":
        now_at, numbers = await jobs.numbers(connection, len(self._batch))
        drafter = Drafter(self._tenant, now_at)
        drafts: Sequence[Draft] = ()
        for start in range(0, len(self._batch), _PART):
            part = range(start, min(start + _PART, len(self._batch)))
            _, drafts = await asyncio.gather(
                self._write(connection, drafts, now_at), self._read(part, numbers, drafter)
            )
        await self._write(connection, drafts, now_at)
        return self

    def verdicts(self) -> list[Verdict]:
        return [self._verdict(line) for line in range(len(self._batch))]

    async def _read(self, part: range, numbers: Sequence[int], drafter: Drafter) -> list[Draft]:
        drafts: list[Draft] = []
        for line in part:
            if line % _STRIDE == 0:
                await asyncio.sleep(0)
            try:
                new = self._draft(line, numbers[line], drafter)
            except InvalidFields as refused:
                self._faults[line] = refused.faults
            else:
                drafts.append(new)
                self._job_ids[line] = new.job_id
        return drafts

    def _draft(self, line: int, number: int, drafter: Drafter) -> Draft:
        spec = as_spec(self._batch[line])
        if spec.name in self._names:
            raise InvalidFields([Fault("/name", f"is taken by line {self._names[spec.name] + 1} of this batch")])
        new = drafter.draft(spec, number)
        if spec.name is not None:
            self._names[spec.name] = line
        return new

    async def _write(self, connection: Session, drafts: Sequence[Draft], now_at: datetime) -> None:
        if drafts:
            ids = await refer(connection, self._tenant, drafts)
            self.referred.append(ids)
            self.created |= await write(connection, self._tenant, drafts, ids, now_at)

    def _verdict(self, line: int) -> Verdict:
        job_id = self._job_ids.get(line)
        if job_id is None:
            return Verdict(None, self._faults[line])
        if job_id not in self.created:
            return Verdict(None, (Fault("/name", "is taken by another job"),))
        return Verdict(format_id(Prefix.JOB, job_id))
