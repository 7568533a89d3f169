"""A past for the jobs of a server, for screenshots: runs of the last hour and of the last 90 days, and gaps."""

from datetime import UTC, datetime, timedelta

from browser.live_server import LiveServer
from evertick.store.maintenance import ledgers

DAYS = 90
_RUNS = """
WITH planned AS (
    SELECT job.job_id, lane.lane_id, job.spec_version, at.fire_at,
           microseconds(at.fire_at) + 20000 + abs(hashint8(job.job_id + at.number)) % 180000 AS seq,
           abs(hashint8(job.job_id * 7 + at.number)) AS chance
      FROM (SELECT job_id, queue, spec_version, row_number() OVER (ORDER BY job_id) AS place
              FROM jobs WHERE status = 'active' AND queue <> 'default') AS job
      JOIN queues queue ON queue.name = job.queue
      JOIN lanes lane ON lane.queue_id = queue.queue_id AND lane.partition = job.job_id & 255 AND lane.priority = 1
                     AND NOT lane_is_gated(lane.lane_id)
     CROSS JOIN LATERAL (
               SELECT number, date_trunc('minute', now()) - number * $1::interval AS fire_at
                 FROM generate_series(1, $2::integer) AS number
                WHERE abs(hashint8(job.job_id + number)) % 1000 < $3::float + $4::float * sin(number / 7.0)
           ) AS at
     WHERE $5::bigint IS NULL OR job.job_id = $5::bigint
),
fired AS (
    INSERT INTO attempts (lane_id, seq, job_id, fire_at, due_at, spec_version, epoch, reason, attempt)
    SELECT lane_id, seq, job_id, fire_at, fire_at, spec_version, 1, 'tick', 1 FROM planned
        ON CONFLICT DO NOTHING
 RETURNING lane_id, seq
)
INSERT INTO outcomes (lane_id, seq, started_at, finished_at, result, is_final, worker, error, held_ms)
SELECT lane_id, seq, ended.started_at, ended.started_at + (30 + chance % 400) * interval '1 millisecond',
       CASE WHEN chance % 41 = 0 THEN 'failed' ELSE 'success' END::outcome_result, true, 'worker-1',
       CASE WHEN chance % 41 = 0 THEN 'TimeoutError: the mail server did not answer within 30 s' END, 3
  FROM planned
  JOIN fired USING (lane_id, seq)
 CROSS JOIN LATERAL (
           SELECT 'epoch'::timestamptz + (seq + 9000) * interval '1 microsecond' AS started_at
       ) AS ended
"""
_HEADS = """
UPDATE lanes SET head = greatest(head, ended.seq)
  FROM (SELECT lane_id, max(seq) AS seq FROM outcomes GROUP BY lane_id) AS ended
 WHERE lanes.lane_id = ended.lane_id
"""
_LETTERS = """
INSERT INTO dead_letters (job_id, fire_at, tenant_id, lane_id, seq, died_at, spec_version, attempt, reason)
SELECT job_id, fire_at, 1, lane_id, seq, finished_at, spec_version, attempt, 'exhausted'
  FROM attempts
  JOIN outcomes USING (lane_id, seq)
 WHERE result = 'failed' AND fire_at > now() - $1::interval
    ON CONFLICT DO NOTHING
"""
_GAPS = """
INSERT INTO gaps (job_id, first_at, last_at, ticks, spec_version, reason)
SELECT job_id, at.first_at, at.first_at + interval '50 minutes', 6, spec_version, 'missed'
  FROM jobs
 CROSS JOIN (SELECT now() - 9 * interval '1 day' AS first_at) AS at
 WHERE job_id = $1
"""


def add_history(server: LiveServer) -> None:
    """Runs of all jobs in the last hour, with dead letters, and of one job in the last 90 days."""
    server.run(_add(server))


async def _add(server: LiveServer) -> None:
    today = datetime.now(UTC)
    async with server.pool.acquire() as connection:
        for day in range(DAYS + 1):
            await ledgers.add_day(connection, (today - timedelta(days=day)).date())
        job_id = await connection.fetchval("SELECT job_id FROM jobs WHERE name = 'growth/digest-01'")
        await connection.execute("UPDATE jobs SET created_at = now() - interval '80 days' WHERE job_id = $1", job_id)
        await connection.execute(_RUNS, timedelta(minutes=1), 60, 250.0, 120.0, None)
        await connection.execute(_RUNS, timedelta(minutes=150), DAYS * 9, 600.0, 350.0, job_id)
        await connection.execute(_HEADS)
        await connection.execute(_LETTERS, timedelta(hours=1))
        await connection.execute(_GAPS, job_id)
