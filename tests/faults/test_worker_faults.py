"""Workers that die or stand still at each moment of an attempt, and workers that are asked to stop."""

import signal
from pathlib import Path
from typing import Any

import pytest

from evertick.domain.ids import RunKey
from faults.checkers import Verdict, lost_before_started_again
from faults.cluster import LONG_LEASES, Cluster
from faults.ledger import read_deliveries

LEASED = "SELECT count(*) FROM leases"
RESULTS = "SELECT result::text FROM outcomes ORDER BY seq"


def _hold(until: Path, effect: str) -> dict[str, Any]:
    return {
        "schedule": "now",
        "target": {"type": "worker", "queue": "faults", "handler": "hold"},
        "payload": {"until": str(until), "effect": effect},
        "retry_delay_seconds": 0.1,
    }


async def _results(cluster: Cluster) -> list[str]:
    return [row[0] for row in await cluster.pool.fetch(RESULTS)]


async def _check(cluster: Cluster) -> dict[str, Verdict]:
    """Nothing was started again before its attempt was lost."""
    again = lost_before_started_again((await cluster.ledger()).jobs, read_deliveries(cluster.folder.glob("*.receipts")))
    assert again.ok, again
    return await cluster.check()


async def _told(cluster: Cluster, count: int) -> None:
    async def holds() -> bool:
        return len(read_deliveries(cluster.folder.glob("*.receipts"))) >= count

    await cluster.until(holds, f"the receiver was told {count} times")


async def test_a_worker_killed_before_its_side_effect_is_followed_by_one_that_does_it(cluster: Cluster) -> None:
    gate = cluster.folder / "gate"
    cluster.scheduler()
    victim = cluster.worker()
    await cluster.jobs(3, **_hold(gate, "after"))
    await cluster.until_count(LEASED, 1)
    victim.kill()
    gate.touch()
    cluster.worker()
    await cluster.wait_until_idle()
    await _check(cluster)
    results = await _results(cluster)
    assert results.count("success") == 3
    assert results.count("lost") == len(results) - 3 >= 3  # of the second worker too, if the machine stood still


async def test_a_worker_killed_after_its_side_effect_leads_to_a_second_one_with_a_larger_token(
    cluster: Cluster,
) -> None:
    gate = cluster.folder / "gate"
    cluster.scheduler()
    victim = cluster.worker()
    await cluster.jobs(3, **_hold(gate, "before"))
    await _told(cluster, 3)
    victim.kill()
    gate.touch()
    cluster.worker()
    await cluster.wait_until_idle()
    verdicts = await _check(cluster)
    assert verdicts["C4"].figures["duplicates"] >= 3


async def test_workers_killed_while_busy_lose_no_run(cluster: Cluster) -> None:
    await cluster.jobs(
        200,
        schedule="every 1s",
        target={"type": "worker", "queue": "faults", "handler": "linger"},
        payload={"seconds": 0.1},
    )
    cluster.scheduler()
    workers = [cluster.worker(), cluster.worker()]
    for _ in range(4):
        count = await cluster.value("SELECT count(*) FROM outcomes")
        await cluster.until_count("SELECT count(*) FROM outcomes", count + 150)
        workers.pop(0).kill()
        workers.append(cluster.worker())
    await cluster.wait_until_idle()
    await cluster.check()


async def test_a_worker_that_slept_past_its_lease_is_told_that_its_outcome_is_stale(cluster: Cluster) -> None:
    gate = cluster.folder / "gate"
    cluster.scheduler()
    sleeper = cluster.worker()
    await cluster.jobs(1, **_hold(gate, "before"))
    await _told(cluster, 1)
    sleeper.send(signal.SIGSTOP)
    cluster.worker()
    await _told(cluster, 2)
    sleeper.send(signal.SIGCONT)
    gate.touch()
    await cluster.wait_until_idle()
    verdicts = await _check(cluster)
    *lost, last = await _results(cluster)
    assert (set(lost), last) == ({"lost"}, "success")
    assert verdicts["C4"].figures["duplicates"] == len(lost)


@pytest.mark.parametrize("handler", ["linger", "linger_in_thread"])
async def test_a_worker_that_slept_past_its_lease_starts_nothing_that_others_were_given(
    cluster: Cluster, handler: str
) -> None:
    count = 60
    await cluster.jobs(
        count,
        schedule="now",
        target={"type": "worker", "queue": "faults", "handler": handler},
        payload={"seconds": 1.5},
    )
    cluster.scheduler()
    # The threads and the tasks are few, but it leases for both. All of them are busy: none is about to start a handler.
    sleeper = cluster.worker("--concurrency", "8")
    await _told(cluster, 8)
    sleeper.send(signal.SIGSTOP)
    cluster.worker("--concurrency", str(count))
    await cluster.until_count("SELECT count(*) FROM outcomes WHERE result = 'success'", count)
    sleeper.send(signal.SIGCONT)
    assert sleeper.terminate() == 0
    await cluster.wait_until_idle()
    await cluster.check()
    assert await cluster.value("SELECT count(*) FROM outcomes WHERE result = 'lost'") > 0
    assert _started_after_a_larger_token(cluster) == []


def _started_after_a_larger_token(cluster: Cluster) -> list[RunKey]:
    """The runs of which a handler was called under a smaller token than one was called under before."""
    largest: dict[RunKey, int] = {}
    late = []
    for each in sorted(read_deliveries(cluster.folder.glob("*.receipts")), key=lambda each: each.at_us):
        if each.seq < largest.get(each.run_key, 0):
            late.append(each.run_key)
        largest[each.run_key] = max(each.seq, largest.get(each.run_key, 0))
    return late


async def test_two_apps_on_one_queue_leave_each_other_their_runs(cluster: Cluster) -> None:
    cluster.settings |= LONG_LEASES
    await cluster.pool.execute(_NOTE_PUT_BACKS)
    cluster.scheduler()
    cluster.worker()
    cluster.worker(app="other")
    foreign = {"type": "worker", "queue": "faults", "handler": "note_elsewhere"}
    await cluster.jobs(300, schedule="now", max_retries=0)
    await cluster.jobs(300, "other", schedule="now", max_retries=0, target=foreign)
    await cluster.until_count("SELECT count(*) FROM attempts", 600)
    await cluster.wait_until_idle()
    verdicts = await cluster.check()
    assert verdicts["C4"].figures["duplicates"] == 0
    assert await _results(cluster) == ["success"] * 600
    assert await cluster.value("SELECT count(*) FROM dead_letters") == 0
    assert await cluster.value("SELECT max(attempt) FROM attempts") == 1
    assert (
        await cluster.value("SELECT max(times) FROM (SELECT count(*) AS times FROM put_backs GROUP BY seq) AS of") == 1
    )
    await cluster.until_count("SELECT -count(*) FROM leases", 0)


_NOTE_PUT_BACKS = """
CREATE TABLE put_backs (seq bigint NOT NULL);
CREATE FUNCTION note_put_back() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO evertick.put_backs VALUES (NEW.first_seq); RETURN NULL; END $$;
CREATE TRIGGER note_put_back AFTER INSERT OR UPDATE ON leases
    FOR EACH ROW WHEN (NEW.worker IS NULL) EXECUTE FUNCTION note_put_back();
"""


async def test_a_worker_asked_to_stop_finishes_or_hands_back_and_burns_no_attempt(cluster: Cluster) -> None:
    cluster.settings |= LONG_LEASES
    await cluster.jobs(
        300,
        schedule="now",
        target={"type": "worker", "queue": "faults", "handler": "linger"},
        payload={"seconds": 0.3},
    )
    cluster.scheduler()
    leaver = cluster.worker("--concurrency", "20")
    await _told(cluster, 10)
    assert leaver.terminate() == 0
    cluster.worker()
    await cluster.wait_until_idle()
    verdicts = await cluster.check()
    assert verdicts["C4"].figures["duplicates"] == 0
    assert set(await _results(cluster)) <= {"success", "deferred"}
    assert await cluster.value("SELECT max(attempt) FROM attempts") == 1
