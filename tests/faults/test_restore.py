"""Copies of a database beside the one that is at work: of its files by pg_basebackup, of its contents by pg_dump.

The clock of the original is most of a day behind, and that of the copy is right: what was saved a moment ago is
yesterday's state there.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from cli.commands import Cli
from evertick.domain.cluster_identity import Suspicion
from evertick.domain.policies import MissedWindow
from evertick.domain.schedule.instants import duration_us, to_us
from evertick.domain.states import RunReason
from evertick.store.engine import lanes
from evertick.store.server.programs import find_programs
from faults.checkers import check_all
from faults.cluster import Cluster
from faults.processes import Process
from faults.replication import Server, replicated

pytestmark = pytest.mark.slow

AGE = timedelta(hours=20, minutes=30)
HOURS = 20
MAX_MISSED = 3
SET_CLOCK = """
CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    AS 'SELECT clock_timestamp() - make_interval(secs => {seconds})'
"""
OUTCOMES = "SELECT count(*) FROM outcomes"
ATTEMPTS = "SELECT count(*) FROM attempts"
TRACES = "SELECT count(*) FROM nodes WHERE seen_at > clock_at() - interval '1 hour'"
HOURLY_RUNS = """
SELECT DISTINCT jobs.name, attempts.fire_at, attempts.reason::text
  FROM attempts JOIN jobs USING (job_id) WHERE jobs.name LIKE 'hourly%'
"""
MISSED_TICKS = """
SELECT jobs.name, sum(ticks)::integer
  FROM gaps JOIN jobs USING (job_id) WHERE jobs.name LIKE 'hourly%' AND gaps.reason = 'missed' GROUP BY jobs.name
"""
AUDITED = "SELECT count(*) FROM audit_log WHERE action = 'confirm_cluster'"


def _cluster(url: str, folder: Path) -> Cluster:
    folder.mkdir()
    return Cluster(url, folder)


async def set_clock(server: Server, behind: timedelta) -> None:
    await server.ask(SET_CLOCK.format(seconds=behind.total_seconds()))


@asynccontextmanager
async def at_work(url: str, folder: Path) -> AsyncIterator[Cluster]:
    """The original: a scheduler and a worker, one job that fires each second and hourly ones of each policy."""
    cluster = _cluster(url, folder)
    await cluster.open()
    try:
        cluster.scheduler()
        cluster.worker()
        for policy in MissedWindow:
            fields = {"missed_window": policy, "max_missed": MAX_MISSED, "concurrent_policy": "ALLOW"}
            await cluster.jobs(1, f"hourly {policy}", schedule="every 1h", **fields)
        await cluster.jobs(1, "pulse", schedule="every 1s")
        await cluster.until_count(OUTCOMES, 2)
        yield cluster
    finally:
        await cluster.close()


@asynccontextmanager
async def beside(url: str, folder: Path) -> AsyncIterator[Cluster]:
    """Processes on a copy."""
    cluster = _cluster(url, folder)
    await cluster.open()
    try:
        yield cluster
    finally:
        await cluster.close()


async def check_that_nothing_runs(copy: Cluster, original: Cluster) -> Process:
    """While the original goes on, processes on the copy fire nothing, run nothing, and say why."""
    before = await copy.value(ATTEMPTS)
    server = copy.all_roles()
    copy.worker()
    server.wait_for("nothing fires or runs here")
    server.wait_for("evertick cluster confirm")
    await original.until_count(OUTCOMES, await original.value(OUTCOMES) + 3)
    assert await copy.value(ATTEMPTS) == before
    assert await copy.value(TRACES) == 0
    assert [log.read_text(encoding="utf-8") for log in copy.folder.glob("worker-*.receipts")] == [""]
    examined = await Cli(copy.url).run("doctor")
    assert examined.exit_code == 1
    assert "evertick cluster confirm" in examined.stdout
    return server


async def test_a_promoted_base_backup_runs_nothing_until_confirmed_and_then_keeps_to_the_misfire_policies(
    data_dir: Path, tmp_path: Path
) -> None:
    async with replicated(data_dir) as pair:
        await set_clock(pair.primary, AGE)
        async with at_work(pair.primary.url(), tmp_path / "original") as original:
            await pair.part()
            await pair.promote()
            await set_clock(pair.standby, timedelta(0))
            async with beside(pair.standby.url(), tmp_path / "copy") as copy:
                await check_probe(await check_that_nothing_runs(copy, original))
                await Cli(copy.url)("cluster", "confirm")
                assert await copy.value(AUDITED) == 1
                await check_misfires(copy)


async def check_probe(server: Process) -> None:
    """A process that serves the API stays ready, so that people can look at the copy, and warns."""
    server.wait_for("API key: ")
    said = server.log.read_text(encoding="utf-8")
    address, key = (said.partition(words)[2].split()[0] for words in ("Evertick is ready at ", "API key: "))
    async with httpx.AsyncClient(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=120) as client:
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["ready"]) == (200, True)
        assert "restored from a backup" in answer.json()["warnings"][0]
        assert "evertick_database_suspected 1" in (await client.get("/metrics")).text
        assert "restored from a backup" in (await client.get("/api/v1/cluster")).json()["suspicion"]
        assert len((await client.get("/api/v1/jobs")).json()) == 1 + len(MissedWindow)


async def check_misfires(copy: Cluster) -> None:
    """After the confirmation each tick of the time since the backup has run, or is in a gap, as its policy says."""
    expected = {"hourly skip-0": 0, "hourly run_once-0": 1, "hourly run_all-0": MAX_MISSED}
    await copy.until_count(f"SELECT count(*) FROM ({HOURLY_RUNS}) AS runs", sum(expected.values()))
    done = await copy.value(OUTCOMES)
    await copy.until_count(OUTCOMES, done + 3)
    await copy.wait_until_idle()
    runs = await copy.pool.fetch(HOURLY_RUNS)
    counts = Counter(str(name).lower() for name, _, _ in runs)
    assert {name: counts[name] for name in expected} == expected
    assert {reason for _, _, reason in runs} == {RunReason.CATCH_UP}
    missed = {str(name).lower(): ticks for name, ticks in await copy.pool.fetch(MISSED_TICKS)}
    assert missed == {name: HOURS - count for name, count in expected.items()}
    ledger = await copy.ledger()
    verdicts = check_all(
        ledger.jobs,
        now_us=to_us(await lanes.clock(copy.pool)),
        start_bound_us=duration_us(2 * AGE),
        end_bound_us=duration_us(2 * AGE),
        allow_gaps=True,
        timers=(),
        writes=ledger.writes,
    )
    assert [verdict for verdict in verdicts if not verdict.ok] == []


@pytest.mark.campaign
async def test_a_restored_dump_runs_nothing_until_confirmed(data_dir: Path, tmp_path: Path) -> None:
    programs = find_programs(data_dir.parent)
    first, second = (Server(data_dir.with_name(f"{data_dir.name}-{name}"), programs) for name in ("first", "second"))
    try:
        await first.create()
        await second.create(empty=True)
        await set_clock(first, AGE)
        async with at_work(first.url(), tmp_path / "original") as original:
            dump = str(second.data_dir / "dump")
            programs.run_checked("pg_dump", "-Fc", "-f", dump, first.url(), cwd=second.data_dir)
            programs.run_checked("pg_restore", "-d", second.url(), dump, cwd=second.data_dir)
            await set_clock(second, timedelta(0))
            async with beside(second.url(), tmp_path / "copy") as copy:
                await check_that_nothing_runs(copy, original)
                assert await copy.value("SELECT suspicion FROM cluster_identity") == Suspicion.COPIED
                await Cli(copy.url)("cluster", "confirm")
                await check_misfires(copy)
    finally:
        first.kill()
        second.kill()
