"""Reads what the checkers judge: the ledger in Postgres, its ticks computed anew from each version's schedule text."""

import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from evertick.contract.job import JobSpec
from evertick.domain.ids import Prefix, format_id, parse_run_id, parse_token
from evertick.domain.schedule.instants import to_us
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.states import GapReason, Outcome, RunReason
from evertick.usecases.jobs.rows import read_stored
from faults.checkers import (
    AttemptRecord,
    Delivery,
    FencedWrite,
    GapRecord,
    JobHistory,
    OutcomeRecord,
    PendingTimer,
    RunRecord,
)

_ATTEMPTS = """
SELECT attempt.job_id, attempt.fire_at, attempt.reason::text, attempt.lane_id, attempt.seq, attempt.attempt,
       attempt.spec_version, attempt.due_at, attempt.epoch, outcome.result::text, outcome.is_final, outcome.started_at,
       outcome.finished_at, outcome.worker
  FROM attempts attempt
  LEFT JOIN outcomes outcome USING (lane_id, seq)
"""
_WITHDRAWALS = "SELECT job_id, fire_at, reason::text, withdrawn_at FROM withdrawals"
_GAPS = "SELECT job_id, first_at, last_at, ticks, reason::text FROM gaps"
_TIMERS = "SELECT job_id, kind::text, fire_at, due_at FROM timers WHERE due_at < 'infinity'"
# A job's ticks are judged up to its deletion, up to where its timer stands, or all of them once the last was fired.
# Their fire times decide, not their due times. One at the instant of an edit or a deletion belongs to the time before.
_VERSIONS = """
SELECT version.job_id, version.effective_at, version.spec::text, job.created_at,
       coalesce(job.deleted_at + interval '1 microsecond', tick.fire_at,
                finished.finished_at + interval '1 microsecond', clock_at()) AS until_at
  FROM job_versions version
  JOIN jobs job USING (job_id)
  LEFT JOIN timers tick ON tick.job_id = job.job_id AND tick.kind = 'tick'
  LEFT JOIN finished_jobs finished ON finished.job_id = job.job_id
 ORDER BY version.job_id, version.spec_version
"""


_INSTANT = timedelta(microseconds=1)


class Ledger:
    """All that is on record at one moment."""

    def __init__(self, jobs: list[JobHistory], writes: list[FencedWrite], timers: list[PendingTimer]) -> None:
        self.jobs = jobs
        self.writes = writes
        self.timers = timers

    def starts_us(self) -> list[int]:
        """When runs started, by the database's clock."""
        starts = (run.started_us for job in self.jobs for run in job.runs)
        return [start for start in starts if start is not None]


async def read_ledger(connection: asyncpg.Connection | PoolConnectionProxy) -> Ledger:
    """The ledger of all jobs, in one snapshot."""
    async with connection.transaction(isolation="repeatable_read"):
        attempts = await connection.fetch(_ATTEMPTS)
        withdrawals = await connection.fetch(_WITHDRAWALS)
        gaps = await connection.fetch(_GAPS)
        timers = await connection.fetch(_TIMERS)
        versions = await connection.fetch(_VERSIONS)
    ticks = _ticks(versions)
    runs = _runs(attempts, withdrawals)
    by_job: dict[int, list[GapRecord]] = defaultdict(list)
    for job_id, first_at, last_at, count, reason in gaps:
        by_job[job_id].append(GapRecord(to_us(first_at), to_us(last_at), count, GapReason(reason)))
    jobs = [
        JobHistory(job_id, tuple(times), tuple(runs.get(job_id, ())), tuple(by_job.get(job_id, ())))
        for job_id, times in ticks.items()
    ]
    writes = [FencedWrite(row["job_id"] & 255, row["epoch"], row["seq"]) for row in attempts]
    pending = [PendingTimer(job_id, kind, to_us(fire_at), to_us(due_at)) for job_id, kind, fire_at, due_at in timers]
    return Ledger(jobs, writes, pending)


def read_deliveries(logs: Iterable[Path]) -> list[Delivery]:
    """The receivers' logs, as `receiver.py` writes them. A line that a kill cut short says nothing."""
    deliveries = []
    for log in logs:
        for line in log.read_text(encoding="utf-8").splitlines():
            try:
                said = json.loads(line)
            except json.JSONDecodeError:
                continue
            key, token = parse_run_id(said["run_id"]), parse_token(said["token"])
            deliveries.append(
                Delivery(key, said["idempotency_key"], token.seq, said["attempt"], said["at_us"], said["worker"])
            )
    return deliveries


def _ticks(versions: list[asyncpg.Record]) -> dict[int, list[int]]:
    """Each job's fire times, under the version that was in force at each."""
    ticks: dict[int, list[int]] = {}
    for version, following in zip(versions, [*versions[1:], None], strict=True):
        job_id, effective_at, spec, created_at, until_at = version
        if following is not None and following["job_id"] == job_id:
            until_at = min(until_at, following["effective_at"] + _INSTANT)
        schedule = _schedule(job_id, read_stored(spec), created_at)
        # A job fires strictly after it is there, unless it says `now`.
        after = effective_at if schedule.text == "now" else effective_at + _INSTANT
        fires = schedule.between(after, until_at) if after < until_at else []
        ticks.setdefault(job_id, []).extend(to_us(at) for at in fires)
    return ticks


def _schedule(job_id: int, spec: JobSpec, created_at: datetime) -> Schedule:
    key = format_id(Prefix.JOB, job_id)
    return Schedule(spec.schedule, spec.timezone, spec.dst_gap, spec.dst_overlap, key=key, anchor_at=created_at)


def _runs(attempts: list[asyncpg.Record], withdrawals: list[asyncpg.Record]) -> dict[int, list[RunRecord]]:
    tries: dict[tuple[int, datetime], list[AttemptRecord]] = defaultdict(list)
    reasons: dict[tuple[int, datetime], str] = {}
    for row in attempts:
        key = (row["job_id"], row["fire_at"])
        reasons[key] = row["reason"]
        tries[key].append(
            AttemptRecord(
                row["lane_id"], row["seq"], row["attempt"], row["spec_version"], to_us(row["due_at"]), _outcome(row)
            )
        )
    withdrawn = {(row["job_id"], row["fire_at"]): row for row in withdrawals}
    reasons |= {key: row["reason"] for key, row in withdrawn.items()}
    runs: dict[int, list[RunRecord]] = defaultdict(list)
    for key, reason in reasons.items():
        gone = to_us(withdrawn[key]["withdrawn_at"]) if key in withdrawn else None
        runs[key[0]].append(RunRecord(key[0], to_us(key[1]), RunReason(reason), tuple(tries[key]), gone))
    return runs


def _outcome(row: asyncpg.Record) -> OutcomeRecord | None:
    if row["result"] is None:
        return None
    started_at = row["started_at"]
    return OutcomeRecord(
        Outcome(row["result"]),
        row["is_final"],
        # A worker's guess of the database's clock is never fast, but may be slow. It cannot start before it was fired.
        None if started_at is None else max(to_us(started_at), row["seq"]),
        to_us(row["finished_at"]),
        row["worker"] or "",
    )
