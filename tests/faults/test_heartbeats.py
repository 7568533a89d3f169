"""How long the heartbeats of living schedulers are apart under load: what decides the default of the timeout."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from faults.cluster import Cluster
from faults.proxy import Proxy

SECONDS = 60.0
SLOW_SECONDS = 20.0
TIMEOUTS = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
_GAPS = "SELECT node, extract(epoch FROM seen_at)::float AS at FROM nodes"


@contextmanager
def _busy(processes: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(10_000))"]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


@pytest.mark.campaign
@pytest.mark.parametrize("heartbeat", [0.25, 0.5])
@pytest.mark.parametrize(
    ("jobs", "busy_per_core"),
    [
        pytest.param(0, 0, id="idle"),
        pytest.param(1500, 0, id="firing"),
        pytest.param(0, 4, id="busy"),
        pytest.param(1500, 4, id="firing-busy"),
    ],
)
async def test_how_far_heartbeats_are_apart(cluster: Cluster, heartbeat: float, jobs: int, busy_per_core: int) -> None:
    cluster.settings |= {"EVERTICK_HEARTBEAT_SECONDS": str(heartbeat), "EVERTICK_HEARTBEAT_TIMEOUT_SECONDS": "30"}
    if jobs:
        await cluster.jobs(jobs, schedule="every 1s", concurrent_policy="ALLOW", max_concurrent=100)
    for _ in range(3):
        cluster.scheduler()
    if jobs:
        cluster.worker()
    await cluster.until_count("SELECT count(*) FROM nodes", 3)  # starting is not measured
    with _busy(busy_per_core * (os.cpu_count() or 1)):
        gaps = await _gaps(cluster, SECONDS)
    load = os.getloadavg()[0]
    alarms = {timeout: sum(gap > timeout for gap in gaps) for timeout in TIMEOUTS}
    ordered = sorted(gaps)
    print(  # noqa: T201 - the figures are what it is for
        f"\nheartbeat {heartbeat} s, {jobs} jobs each second, {busy_per_core} busy processes per core, load {load:.0f}:"
        f" {len(gaps)} heartbeats, p50 {ordered[len(gaps) // 2]:.2f} s, p99 {ordered[len(gaps) * 99 // 100]:.2f} s,"
        f" longest {ordered[-1]:.2f} s; later than the timeout: {alarms}"
    )
    assert gaps


@pytest.mark.campaign
@pytest.mark.parametrize("round_trip", [0.2, 0.5, 1.0, 2.0])
@pytest.mark.parametrize(("heartbeat", "lifetime"), [(0.25, 1.75), (0.5, 5.0)])
async def test_how_far_heartbeats_are_apart_on_a_slow_line(
    cluster: Cluster, heartbeat: float, lifetime: float, round_trip: float
) -> None:
    cluster.settings |= {
        "EVERTICK_HEARTBEAT_SECONDS": str(heartbeat),
        "EVERTICK_HEARTBEAT_TIMEOUT_SECONDS": str(lifetime),
    }
    proxy = Proxy(cluster.url)
    try:
        nodes = [cluster.scheduler(url=proxy.url) for _ in range(2)]
        await cluster.until_count("SELECT count(*) FROM nodes", len(nodes))
        proxy.delay(round_trip / 2)
        gaps = await _gaps(cluster, SLOW_SECONDS)
        said = "".join(node.log.read_text(encoding="utf-8") for node in nodes)
    finally:
        await asyncio.to_thread(proxy.stop)
    print(  # noqa: T201 - as above
        f"\nheartbeat {heartbeat} s, timeout {lifetime} s, round trip {round_trip} s: {len(gaps)} heartbeats, longest"
        f" {max(gaps, default=0):.2f} s, {sum(gap > lifetime for gap in gaps)} later than the timeout;"
        f" {said.count('lost ')} times partitions were lost, {said.count('heartbeat: ')} heartbeats failed"
    )


@pytest.mark.campaign
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_how_long_a_take_over_takes(cluster: Cluster, number: signal.Signals) -> None:
    cluster.settings |= {"EVERTICK_HEARTBEAT_SECONDS": "0.5", "EVERTICK_HEARTBEAT_TIMEOUT_SECONDS": "5"}
    left, victim = cluster.scheduler(), cluster.scheduler()
    took: list[float] = []
    for _ in range(5):
        for pid in (left.pid, victim.pid):
            await cluster.until_count(f"SELECT count(*) FROM partitions WHERE holder LIKE '%-{pid}-%'", 128)
        began = time.monotonic()
        victim.send(number)
        await cluster.until_count(f"SELECT count(*) FROM partitions WHERE holder LIKE '%-{left.pid}-%'", 256)
        took.append(time.monotonic() - began)
        victim = cluster.scheduler()
    shown = ", ".join(f"{seconds:.2f}" for seconds in took)
    print(f"\n{number.name}: the other holds everything after {shown} s")  # noqa: T201 - as above


async def _gaps(cluster: Cluster, seconds: float) -> list[float]:
    """The times between the heartbeats of each node, by the database's clock."""
    seen: defaultdict[str, list[float]] = defaultdict(list)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for node, at in await cluster.pool.fetch(_GAPS):
            if not seen[node] or seen[node][-1] != at:
                seen[node].append(at)
        await asyncio.sleep(0.02)
    return [after - before for times in seen.values() for before, after in pairwise(times)]
