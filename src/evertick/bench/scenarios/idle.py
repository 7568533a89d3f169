"""Scenario `idle`: what Evertick costs while nothing is due: statements per second, and CPU of each process."""

from dataclasses import dataclass
from typing import Annotated, Any

from evertick.bench import queries
from evertick.bench.processes import peak_memory_mb
from evertick.bench.results import cpu_used
from evertick.bench.scenario import Jobs, Option, Rules, Scenario, Seconds, Seed, Workers
from evertick.bench.steps import load_background_jobs, start_cluster, vacuum_and_checkpoint
from evertick.bench.testbed import Testbed

OWN_TRANSACTIONS = 3
"""Transactions of the bench between two readings of the counter: the first reading, and two of the time."""


@dataclass(frozen=True, slots=True)
class IdleOptions:
    jobs: Jobs = 100_000
    seconds: Seconds = 60.0
    rules: Rules = 1_000
    workers: Workers = 1
    calm_seconds: Annotated[float, Option("Pause before the measurement.", 0, 3600)] = 15.0
    seed: Seed = 1


async def run(testbed: Testbed, options: IdleOptions) -> dict[str, Any]:
    await load_background_jobs(testbed, options.jobs, options.rules, options.seed)
    await vacuum_and_checkpoint(testbed)
    scheduler, *_ = await start_cluster(testbed, options.workers)
    await testbed.sleep(options.calm_seconds, "waiting before the measurement")
    cpu_before, before = testbed.cpu_seconds(), await queries.activity(testbed.pool)
    await testbed.sleep(options.seconds, "measuring")
    cpu_after, after = testbed.cpu_seconds(), await queries.activity(testbed.pool)
    seconds = (after.now_at - before.now_at).total_seconds()
    statements = after.transactions - before.transactions - OWN_TRANSACTIONS
    return {
        "runs": 0,
        "seconds": round(seconds, 3),
        "statements_per_second": round(max(statements, 0) / seconds, 2),
        "cores_used": cpu_used(cpu_before, cpu_after, seconds, digits=4),
        "scheduler_peak_memory_mb": peak_memory_mb(scheduler.pid),
    }


SCENARIO = Scenario(
    "idle",
    "What Evertick costs while nothing is due: statements per second, and CPU of each process.",
    "evertick bench idle --jobs 1000000 --seconds 60 --json",
    IdleOptions,
    run,
)
