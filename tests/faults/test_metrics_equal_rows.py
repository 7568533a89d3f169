"""C9: what the processes of a cluster counted equals the rows, and the checker can fail."""

import re
from pathlib import Path

import httpx
import pytest
from hypothesis import given, strategies as st

from evertick.domain.states import Outcome
from faults.checkers import metrics_equal_rows
from faults.full_cluster import FIRST, SECOND, FullCluster
from faults.metric_rows import counted_in, rows_of
from faults.processes import Process
from faults.webhook_receiver import receiving

FIGURES = st.dictionaries(st.sampled_from(["fired", "retries", "dead", "outcome success"]), st.integers(1, 50))
ENOUGH = "SELECT least((SELECT count(*) FROM outcomes WHERE result = '{}'), 3)"


@given(FIGURES)
def test_equal_figures_pass(rows: dict[str, int]) -> None:
    assert metrics_equal_rows(rows, rows).ok
    assert metrics_equal_rows({}, rows, may_miss=True).ok


@given(FIGURES.filter(bool), st.data())
def test_a_figure_that_is_off_by_one_or_missing_is_told(rows: dict[str, int], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(rows)))
    for wrong in (rows | {name: rows[name] + 1}, {**rows, "gap missed": 1}):
        assert not metrics_equal_rows(wrong, rows).ok
        assert not metrics_equal_rows(wrong, rows, may_miss=True).ok
    for missing in (rows | {name: rows[name] - 1}, {each: rows[each] for each in rows if each != name}):
        assert len(metrics_equal_rows(missing, rows).faults) == 1
        assert metrics_equal_rows(missing, rows, may_miss=True).ok


@pytest.mark.slow
@pytest.mark.usefixtures("pool")
async def test_the_counters_of_all_processes_equal_the_rows(database_url: str, tmp_path: Path) -> None:
    async with receiving(tmp_path, FIRST) as receiver:
        cluster = FullCluster(database_url, tmp_path, receiver.url)
        cluster.settings["EVERTICK_METRICS_PORT"] = "0"
        await cluster.begin()
        try:
            cluster.scheduler()
            cluster.dispatcher()
            cluster.direct_worker()
            cluster.pull_worker(cluster.api_address())
            await cluster.add(FIRST, 5, "SKIP", seconds=1.5)  # every second tick overlaps
            await cluster.add(SECOND, 5, "ALLOW", seconds=0)
            await cluster.add_webhooks(5, "ALLOW")
            # Without its arguments a handler fails for good. One that takes too long is tried again.
            await cluster.jobs(2, "failing", schedule="every 1s", target=_target("stay"))
            slow = {"payload": {"seconds": 60}, "timeout_seconds": 1, "max_retries": 1}
            await cluster.jobs(2, "slow", schedule="every 1s", target=_target("linger"), **slow)
            for result in (Outcome.SUCCESS, Outcome.FAILED, Outcome.TIMED_OUT):
                await cluster.until_count(ENOUGH.format(result), 3)
            await cluster.until_count("SELECT count(*) FROM gaps WHERE reason = 'overlap'", 3)
            await cluster.until_count("SELECT count(*) FROM outcomes", 100)
            await cluster.wait_until_idle()

            async def is_equal() -> bool:
                return metrics_equal_rows(await _counted(cluster.processes), await rows_of(cluster.pool)).ok

            await cluster.until(is_equal, "what has ended is observed a moment later")
            rows = await rows_of(cluster.pool)
            assert {"fired", "retries", "dead", "gap overlap", "outcome success", "outcome failed"} <= rows.keys()
            assert not metrics_equal_rows(await _counted(cluster.processes[:-2]), rows).ok
        finally:
            await cluster.close()


def _target(handler: str) -> dict[str, str]:
    return {"type": "worker", "queue": "faults", "handler": handler}


async def _counted(processes: list[Process]) -> dict[str, float]:
    async with httpx.AsyncClient(trust_env=False, timeout=60, verify=False) as reader:
        return counted_in([(await reader.get(f"{_address(process)}/metrics")).text for process in processes])


def _address(process: Process) -> str:
    found = re.search(r"metrics are at (\S+)/metrics", process.log.read_text(encoding="utf-8"))
    assert found is not None
    return found[1]
