"""The result of a campaign: verdicts of the checkers, and numbers that are printed in any case."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from evertick.domain.schedule.instants import to_us
from evertick.store.engine import lanes
from faults.checkers import Verdict, check_all
from faults.checkers.summary import Summary, summarise
from faults.full_cluster import RECURRING, FullCluster
from faults.ledger import read_deliveries

BOUND_US = 600_000_000
"""How late a start may be. Punctuality is reported as the longest gap and not checked: the machine may be busy."""
OPEN = "SELECT count(*) FROM attempts LEFT JOIN outcomes USING (lane_id, seq) WHERE outcomes.seq IS NULL"
WAITING = "SELECT count(*) FROM timers WHERE kind <> 'tick'"
SILENT = f"""
SELECT count(*)
  FROM jobs
 WHERE name LIKE '{RECURRING}%'
   AND NOT EXISTS (SELECT FROM attempts
                    WHERE attempts.job_id = jobs.job_id AND fire_at > $1 AND reason IN ('tick', 'late', 'catch_up'))
"""
# Queue, rule and lane of every timer are there, and its tenant's own.
ASTRAY = """
SELECT count(*)
  FROM timers
  LEFT JOIN queues USING (queue_id)
  LEFT JOIN rules USING (rule_id)
  LEFT JOIN lanes ON lanes.lane_id = lane_id_of(
       timers.queue_id, timers.partition, timers.priority, timers.gate_id IS NOT NULL)
 WHERE timers.kind = 'tick'
   AND (queues.tenant_id IS DISTINCT FROM timers.tenant_id OR rules.rule_id IS NULL OR lanes.lane_id IS NULL)
"""


@dataclass(frozen=True, slots=True)
class CampaignReport:
    """Numbers of one campaign."""

    summary: Summary
    unrecorded: int
    """Starts of attempts whose commits were lost."""
    stuck: int
    """Runs that never ended."""
    silent: int
    """Jobs that did not fire any more after the fault."""

    def __str__(self) -> str:
        return f"{self.summary}  unrecorded {self.unrecorded}  stuck {self.stuck}  silent {self.silent}"


async def still_fire(cluster: FullCluster, after: datetime, seconds: float) -> int:
    """Wait until every recurring job has fired after an instant. Returns how many have not."""
    return await _none_left(cluster, SILENT, after, seconds=seconds)


async def count_unfinished(cluster: FullCluster, seconds: float) -> int:
    """Stop all ticks, and wait until every run has ended. Returns how many have not."""
    await cluster.pool.execute("UPDATE timers SET due_at = 'infinity' WHERE kind = 'tick'")
    waiting = await _none_left(cluster, f"SELECT ({OPEN}) + ({WAITING})", seconds=seconds)
    if waiting:
        return waiting
    return int(await cluster.value("SELECT count(*) FROM open_runs"))


async def _none_left(cluster: FullCluster, query: str, *arguments: Any, seconds: float) -> int:
    async def is_none() -> bool:
        return bool(await cluster.value(query, *arguments) == 0)

    try:
        await cluster.until(is_none, query, seconds)
    except AssertionError:
        return int(await cluster.value(query, *arguments))
    return 0


async def report_on(
    cluster: FullCluster, *, silent: int, stuck: int, ended_us: int
) -> tuple[CampaignReport, Sequence[Verdict]]:
    """The numbers and the verdicts on the history. Starts that are not in the history are only counted.

    `ended_us`: when the ticks were stopped. Time without starts after it does not count.
    """
    ledger = await cluster.ledger()
    deliveries = read_deliveries(cluster.folder.glob("*.receipts"))
    on_record = {(run.key, attempt.seq) for job in ledger.jobs for run in job.runs for attempt in run.attempts}
    known = [delivery for delivery in deliveries if (delivery.run_key, delivery.seq) in on_record]
    now_at = await lanes.clock(cluster.pool)
    verdicts = check_all(
        ledger.jobs,
        now_us=to_us(now_at + timedelta(days=1)),
        start_bound_us=BOUND_US,
        end_bound_us=BOUND_US,
        allow_gaps=True,
        allow_cancelled=True,
        timers=(),
        deliveries=known,
        writes=ledger.writes,
    )
    starts_us = (each.at_us for each in deliveries if each.at_us < ended_us)
    report = CampaignReport(
        summarise(verdicts, ledger.jobs, deliveries, starts_us), len(deliveries) - len(known), stuck, silent
    )
    return report, verdicts
