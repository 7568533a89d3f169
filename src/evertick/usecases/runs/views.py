"""Runs as a request shows them: with the reason why they wait for a worker."""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from evertick.contract.runs import Run
from evertick.domain.ids import format_run_id
from evertick.domain.schedule.instants import from_us, to_us
from evertick.domain.serving import UNSERVED_AFTER, waiting_text
from evertick.runtime.run_views import run_of
from evertick.store.engine import lanes
from evertick.store.jobs import runs
from evertick.store.jobs.runs import RunRow
from evertick.usecases import workers
from evertick.usecases.context import TenantContext


async def runs_of(tenant: TenantContext, rows: Sequence[RunRow]) -> list[Run]:
    """The runs of rows. Why runs wait is looked up only if any among them does."""
    texts: dict[int, str | None] = {}  # by position
    if any(map(_waits_for_worker, rows)):
        served = await workers.served(tenant)
        now_at = await lanes.clock(tenant.pool)
        for position, row in enumerate(rows):
            if row.seq is not None and row.queue is not None and _waits_for_worker(row):
                # A gate may have let it in just now: since when it is ready is not known.
                is_late = row.lane_id is not None and lanes.is_gated(row.lane_id)
                waits = UNSERVED_AFTER if is_late else now_at - from_us(row.seq)
                texts[position] = waiting_text(served, row.queue, row.handler, waits)
    oldest: dict[int, datetime] = {}
    for position, row in enumerate(rows):
        if row.is_queued:
            if row.job_id not in oldest:
                found = await runs.unfinished(tenant.pool, row.job_id, 1)
                oldest[row.job_id] = found[0].fire_at if found else row.fire_at
            if oldest[row.job_id] < row.fire_at:
                texts[position] = f"queued behind {format_run_id(row.job_id, to_us(oldest[row.job_id]))}"
    return [replace(run_of(row), waiting=texts.get(position)) for position, row in enumerate(rows)]


def _waits_for_worker(row: RunRow) -> bool:
    is_ready = row.seq is not None and row.result is None and not row.is_leased
    return is_ready and row.waits_at_gate is None and row.queue is not None
