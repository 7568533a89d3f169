"""Guards: the hot statements find their rows by index, in tables that are empty, small, large or huge.

Plans are generic, as in production: made once for all values, and perhaps kept while the tables grow. So a plan that is
made on an empty table must do on a full one.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

import postgres
from evertick.store import statements
from evertick.store.database import connect
from plans import nodes, plan_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIZES = [
    pytest.param(0, id="empty"),
    pytest.param(1_000, id="small"),
    pytest.param(100_000, id="large"),
    pytest.param(1_000_000, id="huge", marks=pytest.mark.campaign),
]

# Reading these whole costs little: 256 rows, a few, so many that statistics are soon fresh, as they change often, one.
TINY = {
    "partitions",
    "nodes",
    "lanes",
    "clock_marks",
    "cluster_identity",
    "tenants",
    "pg_inherits",
    "pg_class",
    "pg_database",
    "alert_targets",
    "alert_looks",
}

INDEXES = {
    "timers.load": {"timers_due", "timers_pkey"},
    "timers.load_jobs": {"timers_pkey"},
    "timers.walk_streams": {"timers_of_tenant", "timers_pkey"},
    "timers.load_streams": {"timers_of_tenant", "timers_pkey"},
    "timers.count_due": {"timers_due", "timers_pkey"},
    "timers.next_due": {"timers_due"},
    "timers.trace_parents": {"requested_runs_pkey", "requested_runs_by_age"},  # by fire time: as good
    "timers.trace_authors": {"timers_pkey", "job_versions_pkey"},
    "timers.fire": {
        *("timers_pkey", "outcomes_pkey", "attempts_pkey", "attempts_of_run", "open_runs_pkey", "gaps_pkey"),
        *("withdrawals_pkey", "partitions_pkey", "queues_pkey", "leases_held"),
    },
    "lanes.lease": {"lanes_of_queue", "lanes_pkey", "attempts_pkey", "queues_pkey", "ready_batches_pkey"},
    "lanes.lease_by_queue": {"lanes_of_queue", "lanes_pkey", "attempts_pkey", "ready_batches_pkey"},
    "consumers.hand_over": {"leases_of_worker", "leases_of_attempt", "leases_pkey", "outcomes_pkey"},
    "consumers.reportable": {
        *("queues_pkey", "lanes_pkey", "attempts_pkey", "job_versions_pkey", "leases_of_attempt"),
    },
    "consumers.claim": {
        *("queues_pkey", "lanes_pkey", "attempts_pkey", "job_versions_pkey", "outcomes_pkey", "leases_of_attempt"),
        "leases_pkey",
    },
    "consumers.release": {"leases_of_attempt", "leases_pkey", "outcomes_pkey"},
    "lanes.dispatched_queues": {
        *("ready_batches_dispatched", "leases_dispatched", "queues_pkey", "tenants_pkey", "webhook_secrets_pkey"),
        "leases_free",  # while there are none
    },
    "lanes.count_ready": {
        *("queues_pkey", "lanes_of_queue", "ready_batches_pkey", "attempts_pkey", "leases_free"),
    },
    "ready.in_lanes": {"ready_batches_pkey"},
    "lanes.lock_caps": {"queues_pkey", "tenants_pkey", "ready_batches_pkey", "leases_free"},
    "lanes.running": {
        *("queues_tenant_id_name_key", "leases_held", "attempts_pkey", "outcomes_pkey", "leases_of_attempt"),
    },
    "lanes.lease_free": {"queues_pkey", "leases_free", "leases_pkey"},
    "lanes.put_back": {"leases_of_worker", "leases_pkey", "outcomes_pkey"},
    "lanes.mark_started": {"leases_pkey", "leases_of_worker", "leases_of_attempt", "outcomes_pkey"},
    "lanes.leased": {
        *("attempts_pkey", "job_versions_pkey", "outcomes_pkey", "requested_runs_pkey", "queues_pkey"),
        "requested_runs_by_age",  # by fire time: as good
    },
    "lanes.extend": {"leases_of_worker", "leases_pkey"},
    "lanes.ended_elsewhere": {"outcomes_pkey"},
    "outcomes.record": {"jobs_pkey", "attempts_pkey", "open_runs_pkey", "leases_pkey"},
    "outcomes.take_over": {"leases_expired", "leases_of_worker", "leases_pkey"},  # while they are few, one does as well
    "outcomes.open_in": {"attempts_pkey", "outcomes_pkey", "leases_of_attempt", "leases_pkey", "job_versions_pkey"},
    "pulls.queue": {"queues_tenant_id_name_key", "tenants_pkey", "api_keys_pkey", "api_keys_of_tenant"},
    "pulls.look": {"queues_tenant_id_name_key", "lanes_of_queue", "ready_batches_pkey", "leases_free"},
    "pulls.ended_keys": {"api_keys_pkey", "api_keys_of_tenant"},
    "pulls.answered": {"idempotency_keys_pkey"},
    "orphans.check": {
        *("lanes_of_partition", "attempts_pkey", "outcomes_pkey", "leases_expired", "leases_of_attempt"),
        "open_runs_pkey",
    },
    "orphans.mark_swept": {"lanes_pkey"},
    "fuse.recent_runs": {"jobs_pkey", "timers_pkey", "attempts_pkey", "outcomes_pkey"},
    "orphans.drop_ended": {"leases_pkey", "outcomes_pkey"},
    "orphans.rebase": {"leases_pkey"},
    "members.last_seq": {"lanes_of_partition", "attempts_pkey"},
    "replan.page": {
        *("timers_pkey", "requested_runs_pkey", "open_runs_pkey", "outcomes_pkey"),
        "requested_runs_by_age",  # by fire time: as good
    },
    "replan.move": {"timers_pkey", "job_versions_pkey"},
    "diagnostics.oldest_due": {"timers_due"},
    "target_hosts.add": {"target_hosts_pkey", "tenants_pkey"},
    "target_hosts.lock_available": {"target_hosts_pkey"},
    "target_hosts.store": {"target_hosts_pkey"},
    "target_hosts.watched": {"target_hosts_watched"},
    "target_hosts.count_open": {"target_hosts_watched"},
    "target_hosts.limit": {"target_hosts_pkey"},
    "target_hosts.limited": {"target_hosts_limited"},
    "target_hosts.page": {"target_hosts_pkey"},
    "references.queue_page": {"queues_tenant_id_name_key", "ready_batches_pkey", "leases_free", "tenants_pkey"},
    "tenants.count_due": {"queues_tenant_id_name_key", "lanes_of_queue", "timers_of_tenant"},
    "tenants.stored": {"storage_sums_pkey", "storage_changes_of_tenant"},
    "retention.check_versions": {
        *("superseded_versions_to_check", "superseded_versions_pkey", "jobs_pkey", "job_versions_pkey", "timers_pkey"),
        *("dead_letters_pkey", "attempts_of_run", "attempts_pkey", "outcomes_pkey", "open_runs_pkey"),
        "dead_letters_of_job",  # by job: as good
    },
    "gates.let_in": {
        *("open_runs_at_gate", "open_runs_pkey", "timers_in_order", "jobs_pkey", "job_versions_pkey", "attempts_pkey"),
    },
    "gates.waiting": {"open_runs_at_gate"},
    "replays.scan": {"dead_letters_of_tenant", "dead_letters_of_job", "jobs_pkey", "outcomes_pkey"},
    "runs.dead_letters_page": {"dead_letters_of_tenant", "dead_letters_of_job", "jobs_pkey", "outcomes_pkey"},
    "replays.take": {"replays_running", "tenants_pkey"},
    "replays.restart": {"replays_running_of_tenant", "replays_pkey"},
    "replays.count_running": {"replays_running_of_tenant"},
    "retention.sweep_rules": {"rules_pkey", "job_versions_of_rule"},
    "jobs.view": {
        *("jobs_pkey", "jobs_of_tenant", "job_versions_pkey", "rules_pkey", "timers_pkey", "finished_jobs_pkey"),
        *("attempts_of_run", "outcomes_pkey", "lanes_pkey", "leases_of_attempt", "withdrawals_pkey"),
    },
    "job_lists.page": {"jobs_of_tenant", "finished_jobs_pkey", "job_versions_pkey"},
    "job_lists.fitting": {
        *("jobs_pkey", "finished_jobs_pkey", "job_versions_pkey"),
        "jobs_of_tenant",  # by tenant and job: as good
    },
    "job_lists.next_by_name": {"jobs_by_text"},
    "job_lists.next_by_run": {"queues_tenant_id_name_key", "lanes_of_queue", "timers_of_tenant", "jobs_pkey"},
    "job_lists.due_together": {"queues_tenant_id_name_key", "timers_of_tenant"},
    "job_lists.next_by_failures": {"dead_letters_of_tenant", "jobs_pkey"},
    "job_lists.count_letters": {"dead_letters_of_tenant"},
    "job_lists.next_by_last_failure": {"dead_letters_of_tenant"},
    "job_history.days": {"attempts_of_run", "outcomes_pkey"},
    "job_history.versions": {"job_versions_pkey", "audit_log_by_age"},
    "overview.minutes": {
        *("queues_tenant_id_name_key", "lanes_of_queue", "ready_batches_pkey", "attempts_pkey", "outcomes_pkey"),
    },
    "overview.planned": {"queues_tenant_id_name_key", "lanes_of_queue", "timers_of_tenant"},
    "overview.attention": {
        *("dead_letters_of_tenant", "jobs_paused", "replays_running_of_tenant", "target_hosts_pkey"),
    },
    "alerts.watched_jobs": {"jobs_with_alerts", "alerts_open_of_job"},
    "alerts.job_facts": {
        *("jobs_pkey", "job_versions_pkey", "timers_pkey", "finished_jobs_pkey", "attempts_of_run", "outcomes_pkey"),
        *("lanes_pkey", "leases_expired", "leases_of_attempt", "open_runs_pkey", "rules_pkey", "alert_targets_pkey"),
    },
    "alerts.note_successes": {"jobs_pkey"},
    "alerts.lock_targets": {"jobs_pkey"},
    "alerts.durations": {"attempts_of_run", "outcomes_pkey"},
    "alerts.tenant_facts": {
        *("alert_targets_pkey", "tenants_pkey", "dead_letters_of_tenant", "timers_of_tenant", "jobs_of_tenant"),
        *("storage_sums_pkey", "storage_changes_of_tenant", "jobs_by_name", "jobs_by_text"),
    },
    "alerts.failing_hosts": {"target_hosts_pkey"},
    "alerts.of_jobs": {"alerts_of_job"},
    "alerts.of_tenants": {"alerts_about_tenant", "alerts_of_tenant"},
    "alerts.close": {"alerts_pkey", "alerts_open"},
    "alerts.tell": {"alerts_pkey"},
    "alerts.untold": {"alert_targets_pkey", "alerts_untold", "timers_pkey", "open_runs_pkey", "jobs_pkey"},
    "alerts.page": {
        *("alerts_of_tenant", "alerts_pkey", "jobs_pkey", "timers_pkey", "open_runs_pkey", "attempts_of_run"),
        *("outcomes_pkey", "withdrawals_pkey"),
    },
    "job_lists.last_looked_at": {"jobs_of_tenant"},
}

_FILL = """
INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, queue_id, spec_version, kind, partition, priority)
SELECT n, now(), now() + n % 1000 * interval '1 s', 1, 1, 1, 1, 'tick', n & 255, 1 FROM generate_series(1, $1) AS n;
INSERT INTO attempts (lane_id, seq, job_id, fire_at, due_at, spec_version, epoch, reason, attempt)
SELECT lane_id_of(1, n & 255, 1), microseconds(now()) + n, n, now(), now(), 1, 1, 'tick', 1
  FROM generate_series(1, $1) AS n;
INSERT INTO ready_batches (lane_id, last_seq, first_seq, due_at, attempts, is_dispatched)
SELECT lane_id_of(1, n & 255, 1), microseconds(now()) + n, microseconds(now()) + n, now(), 1, n % 2 = 0
  FROM generate_series(1, $1 / 10) AS n;
INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final)
SELECT lane_id_of(1, n & 255, 1), microseconds(now()) + n, now(), 'success', true
  FROM generate_series(1, $1) AS n;
INSERT INTO jobs (job_id, tenant_id, created_at, updated_at, spec_version, name, queue, has_alerts)
SELECT n, 1, now(), now(), 1, n::text, 'default', n % 10 = 0 FROM generate_series(1, $1 / 10) AS n;
INSERT INTO alerts (alert_id, tenant_id, job_id, opened_at, openings, is_open, is_told_open, notice_at, notice_job_id,
                    condition, subject, detail)
SELECT n, n % 3, CASE WHEN n % 5 > 0 THEN n END, now(), 1, n % 2 = 0, n % 4 = 0, CASE WHEN n % 3 = 0 THEN now() END, n,
       '', n::text, ''
  FROM generate_series(1, $1 / 100) AS n;
INSERT INTO job_versions (job_id, rule_id, effective_at, spec_version, timeout_seconds, name, timezone, retry, spec)
SELECT n, 1, now(), 1, 60, '', 'UTC', '{}', '{}' FROM generate_series(1, $1 / 10) AS n;
INSERT INTO rules (digest, canonical) SELECT sha256(n::text::bytea), '' FROM generate_series(1, $1 / 100) AS n;
INSERT INTO superseded_versions (job_id, check_at, spec_version)
SELECT n, now(), 1 FROM generate_series(1, $1 / 10) AS n;
INSERT INTO finished_jobs (job_id, finished_at) SELECT n, now() FROM generate_series(1, $1 / 10) AS n;
INSERT INTO target_hosts (tenant_id, host, state, changed_at, window_at, reported_at, watched_until, calls, failures,
                          calls_before, failures_before, openings)
SELECT 1, n::text, 'open', now(), now(), now(), CASE WHEN n % 2 = 0 THEN now() END, 0, 0, 0, 0, 1
  FROM generate_series(1, $1 / 10) AS n;
INSERT INTO dead_letters (job_id, fire_at, tenant_id, lane_id, seq, died_at, spec_version, attempt, reason)
SELECT n, now(), n % 3, 1, n, now(), 1, 1, 'exhausted' FROM generate_series(1, $1 / 10) AS n;
INSERT INTO replays (tenant_id, created_at, next_batch_at, died_from, reached_died_at, reached_job_id, reached_fire_at,
                     rate_per_second, status, actor)
SELECT n % 100, now(), now(), now(), now(), 1, now(), 1, (ARRAY['running', 'done'])[1 + n % 2]::replay_status, ''
  FROM generate_series(1, $1 / 100) AS n;
INSERT INTO storage_changes (tenant_id, bytes) SELECT n % 100, 1 FROM generate_series(1, $1 / 10) AS n;
INSERT INTO lanes (lane_id, queue_id, partition, priority)
SELECT lane_id_of(1, n, 1), 1, n, 1 FROM generate_series(0, 255) AS n;
INSERT INTO queues (tenant_id, name) VALUES (1, 'default');
INSERT INTO leases (lease_id, lane_id, first_seq, last_seq, expires_at, lease_seconds, partition, worker, handler)
SELECT n, lane_id_of(1, n & 255, 1), n, n, now(), 30, n & 255, CASE WHEN n % 2 = 0 THEN n::text END,
       CASE WHEN n % 3 = 0 THEN '' ELSE 'handle' END
  FROM generate_series(1, $1 / 100) AS n;
INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, queue_id, spec_version, kind, partition, priority,
                    gate_id)
SELECT n, now(), now() + interval '1 s', 1, 1, 1, 1, 'queued', n & 255, 1, n % 7 - 3
  FROM generate_series(1, $1 / 10) AS n;
INSERT INTO open_runs (job_id, fire_at, lane_id, seq, gate_id, is_inside)
SELECT n, now(), 1, n, CASE WHEN n % 3 = 0 THEN n % 7 - 3 END, n % 2 = 0 FROM generate_series(1, $1 / 100) AS n;
INSERT INTO gaps (job_id, first_at, last_at, ticks, spec_version, reason)
SELECT n, now(), now(), 1, 1, 'missed' FROM generate_series(1, $1 / 100) AS n
"""


@dataclass(frozen=True)
class Scan:
    """How a plan reads a table."""

    table: str
    index: str | None
    condition: str


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=SIZES)
async def filled(request: pytest.FixtureRequest, postgres_server: postgres.Server) -> AsyncIterator[asyncpg.Connection]:
    async with postgres_server.database() as url:
        connection = await connect(url)
        for statement in _FILL.split(";") if request.param else ():
            await connection.execute(statement.replace("$1", str(request.param)))
        if request.param:
            await connection.execute("ANALYZE", timeout=300)
        yield connection
        await connection.close()


async def scans(connection: asyncpg.Connection, statement: statements.Statement) -> list[Scan]:
    """How the generic plan of a statement reads each table; partitions and their indexes by their parents' names."""
    plan = await plan_of(connection, statement)
    parents = {
        row["child"]: row["parent"]
        for row in await connection.fetch(
            "SELECT inhrelid::regclass::text AS child, inhparent::regclass::text AS parent FROM pg_inherits"
        )
    }
    return [
        Scan(parents.get(scan.table, scan.table), parents.get(scan.index or "", scan.index), scan.condition)
        for node in nodes(plan)
        for scan in _scan(node)
    ]


def _scan(node: dict[str, Any]) -> Iterator[Scan]:
    if node["Node Type"] in {"Seq Scan", "Index Scan", "Index Only Scan"}:
        yield Scan(node["Relation Name"], node.get("Index Name"), node.get("Index Cond", ""))
    elif node["Node Type"] == "Bitmap Index Scan":
        yield Scan("", node["Index Name"], node.get("Index Cond", ""))


async def leading_columns(connection: asyncpg.Connection) -> dict[str, str]:
    rows = await connection.fetch(
        "SELECT indexrelid::regclass::text AS index, trim('()' FROM pg_get_indexdef(indexrelid, 1, false)) AS column"
        " FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE relnamespace = 'evertick'::regnamespace"
    )
    return {row["index"]: row["column"] for row in rows}


@pytest.mark.parametrize("name", INDEXES)
async def test_a_hot_statement_finds_its_rows_by_index(filled: asyncpg.Connection, name: str) -> None:
    aggregate, verb = name.split(".")
    found = await scans(filled, statements.load(aggregate)[verb])
    leading = await leading_columns(filled)
    whole = [
        scan
        for scan in found
        if scan.table not in TINY and (scan.index is None or leading[scan.index] not in scan.condition)
    ]
    assert whole == []
    assert {scan.index for scan in found if scan.table not in TINY} <= INDEXES[name]


async def test_recording_looks_up_open_runs_by_a_plan_from_when_there_were_none(
    postgres_server: postgres.Server,
) -> None:
    """Vacuum finds the table empty between two ticks. The index is as large as it ever was, and will be full again."""
    async with postgres_server.database() as url:
        connection = await connect(url)
        await connection.execute(
            "INSERT INTO open_runs (job_id, fire_at, lane_id, seq)"
            " SELECT n, now(), 1, n FROM generate_series(1, 20000) AS n"
        )
        await connection.execute("DELETE FROM open_runs")
        await connection.execute("VACUUM (ANALYZE) open_runs")
        found = await scans(connection, statements.load("outcomes")["record"])
        await connection.close()
    open_runs = [scan for scan in found if scan.table == "open_runs"]
    assert open_runs
    assert [scan for scan in open_runs if not all(key in scan.condition for key in ("job_id", "fire_at"))] == []


@pytest.mark.parametrize("jobs", [100, 300])
async def test_firing_looks_timers_up_by_their_key_also_while_they_are_few(
    postgres_server: postgres.Server, jobs: int
) -> None:
    """By another index it would read all versions of a partition's timers that a pinned snapshot keeps."""
    async with postgres_server.database() as url:
        connection = await connect(url)
        await connection.execute(_FILL.split(";", maxsplit=1)[0].replace("$1", str(jobs)))
        await connection.execute("ANALYZE timers")
        found = await scans(connection, statements.load("timers")["fire"])
        await connection.close()
    assert {scan.index for scan in found if scan.table == "timers"} == {"timers_pkey"}


@pytest.mark.parametrize("name", ["jobs.view", "alerts.job_facts", "runs.of_job", "runs.of_tenant"])
async def test_questions_that_several_statements_ask_are_a_part_of_their_plans(
    filled: asyncpg.Connection, name: str
) -> None:
    """A function that is called for each row shows no scans of its own."""
    aggregate, verb = name.split(".")
    found = {scan.index for scan in await scans(filled, statements.load(aggregate)[verb])}
    assert {"leases_of_attempt", "outcomes_pkey"} <= found


async def test_loading_reads_no_timers_beyond_its_stretch(filled: asyncpg.Connection) -> None:
    found = await scans(filled, statements.load("timers")["load"])
    assert any(scan.index == "timers_due" and scan.condition.count("due_at") == 2 for scan in found)


async def test_a_list_of_runs_reads_no_ledger_whole(filled: asyncpg.Connection) -> None:
    found = await scans(filled, statements.load("runs")["of_tenant"])
    leading = await leading_columns(filled)
    ledgers = [scan for scan in found if scan.table in {"attempts", "outcomes", "timers", "withdrawals"}]
    assert {scan.table for scan in ledgers} == {"attempts", "outcomes", "timers", "withdrawals"}
    assert [scan for scan in ledgers if scan.index is None or leading[scan.index] not in scan.condition] == []


@pytest.mark.parametrize("name", ["diagnostics.oldest_due", "tenants.oldest_due"])
async def test_a_look_for_the_oldest_due_timer_reads_none_that_are_not_due(
    filled: asyncpg.Connection, name: str
) -> None:
    aggregate, verb = name.split(".")
    found = await scans(filled, statements.load(aggregate)[verb])
    assert {"due_at" in scan.condition for scan in found if scan.index == "timers_due"} == {True}


async def test_a_plan_that_reads_a_whole_table_is_noticed(filled: asyncpg.Connection) -> None:
    careless = statements.parse(
        "careless", "-- name: count\nSELECT count(error) FROM outcomes WHERE code = :code::integer"
    )
    assert None in {scan.index for scan in await scans(filled, careless["count"])}
