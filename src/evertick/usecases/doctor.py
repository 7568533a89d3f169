"""The doctor: examines a database as a whole, and reports the state of each part and what to do about it."""

import time
from collections.abc import AsyncIterator
from datetime import timedelta

from evertick.config.settings import Settings
from evertick.domain.ids import PARTITIONS
from evertick.domain.schedule.instants import SECOND_US, to_us
from evertick.roles.dispatcher.settings import egress_of
from evertick.roles.janitor.archiving import waiting_days
from evertick.runtime import timeouts
from evertick.store.archive import days
from evertick.store.database import Pool, is_behind_pooler, open_pool
from evertick.store.engine import clock, identity, members, orphans, wakeups, workers
from evertick.store.errors import DatabaseUnreachable
from evertick.store.location import DatabaseAddress, replica_of
from evertick.store.maintenance import diagnostics, ledgers
from evertick.store.maintenance.diagnostics import ServerFacts
from evertick.store.migrate import SchemaMismatch, check_schema
from evertick.store.tenants import broker_connections, events, tenants
from evertick.targets.brokers.publishers import missing_client
from evertick.usecases import diagnosis
from evertick.usecases.diagnosis import Diagnosis
from evertick.usecases.engine_status import replica_lag

LIFETIME = timedelta(seconds=5)
STUCK_SECONDS = 60.0
UNSERVED_SECONDS = 60.0
ORPHAN_AGE = timedelta(minutes=10)
"""Twice the age at which schedulers look for them."""
DAYS_AHEAD = 3
MAX_PER_LANE = 1000
_CLOCK_SAMPLES = 3


async def examine(
    pool: Pool, lifetime: timedelta = LIFETIME, settings: Settings | None = None, url: DatabaseAddress | None = None
) -> list[Diagnosis]:
    """All diagnoses, in the order in which one part depends on another.

    `lifetime`: for so long after its last heartbeat a scheduler counts as alive. `settings`: by which processes here
    would start. `url`: where they would listen for wake-ups, if that is to be examined.
    """
    return [finding async for finding in _examine(pool, lifetime, settings or Settings(), url)]


async def _examine(
    pool: Pool, lifetime: timedelta, settings: Settings, url: DatabaseAddress | None
) -> AsyncIterator[Diagnosis]:
    server, skew_seconds = await _sample_clock(pool)
    yield diagnosis.on_server(server.version, is_pooled=await is_behind_pooler(pool))
    if url is not None:
        yield await _try_wakeups(pool, url)
    yield diagnosis.on_clock(skew_seconds)
    yield diagnosis.on_connections(server.connections, server.most_connections)
    yield diagnosis.on_snapshot(await diagnostics.oldest_snapshot(pool))
    try:
        await check_schema(pool)
    except SchemaMismatch as mismatch:
        yield diagnosis.on_schema(str(mismatch))
        return  # the rest cannot be read
    yield diagnosis.on_schema(None)
    yield diagnosis.on_identity(await identity.facts(pool), settings.cluster)
    yield diagnosis.on_clock_steps(await clock.marks(pool))
    alive = [node for node in await members.members(pool, lifetime) if node.is_alive]
    yield diagnosis.on_versions({node.version for node in alive})
    yield diagnosis.on_partitions(await members.unheld(pool, lifetime), [node.node for node in alive])
    if (replica_url := replica_of(settings)) is not None:
        yield await _try_replica(pool, replica_url, settings)
    yield diagnosis.on_days(await ledgers.missing_days(pool, DAYS_AHEAD), DAYS_AHEAD)
    yield diagnosis.on_lag(await diagnostics.oldest_due(pool))
    yield diagnosis.on_leases(await diagnostics.stuck_leases(pool, STUCK_SECONDS))
    checked = await orphans.check(pool, range(PARTITIONS), {}, most_per_lane=MAX_PER_LANE, age=ORPHAN_AGE)
    yield diagnosis.on_orphans([(each.lane_id, seq) for each in checked for seq in each.orphans])
    idle = await workers.idle_queues(pool, UNSERVED_SECONDS)
    yield diagnosis.on_workers(await workers.alive(pool), idle, server.clock_at)
    yield diagnosis.on_ready(await diagnostics.ready_queues(pool, MAX_PER_LANE))
    yield diagnosis.on_unserved(await diagnostics.unserved(pool, UNSERVED_SECONDS))
    yield diagnosis.on_dead_letters(await diagnostics.dead_letters(pool, diagnosis.MAX_LETTERS))
    yield await _examine_archive(pool, settings)
    yield diagnosis.on_events(await events.lag(pool))
    # As a process that runs all roles with these settings would have it.
    yield diagnosis.on_egress(egress_of(settings, await tenants.count(pool), runs_api=True).words)
    used = await broker_connections.types_in_use(pool)
    yield diagnosis.on_brokers(used, [str(each) for each in map(missing_client, used) if each is not None])
    yield diagnosis.on_dead_tuples(await diagnostics.dead_tuples(pool))


async def _examine_archive(pool: Pool, settings: Settings) -> Diagnosis:
    marks = await days.marks(pool)
    before_at = (await clock.marks(pool)).trusted_at - settings.history
    waiting = len(await waiting_days(pool, before_at)) if marks.is_on else 0
    return diagnosis.on_archive(marks, await days.summary(pool), waiting, settings.archive_url)


async def _try_wakeups(pool: Pool, url: DatabaseAddress) -> Diagnosis:
    try:
        return diagnosis.on_wakeups(await wakeups.arrive(pool, url, timeouts.LISTEN))
    except DatabaseUnreachable as error:
        return diagnosis.on_unreachable_listener(str(error))


async def _try_replica(pool: Pool, url: DatabaseAddress, settings: Settings) -> Diagnosis:
    try:
        async with await open_pool(url, max_size=1) as replica:
            lag_seconds = await replica_lag(replica, pool)
    except DatabaseUnreachable as error:
        return diagnosis.on_unreachable_replica(str(error))
    return diagnosis.on_replica(lag_seconds, settings.database_replica_max_lag_seconds)


async def _sample_clock(pool: Pool) -> tuple[ServerFacts, float]:
    """The server, and how many seconds this machine's clock is ahead of it, by the fastest of several samples."""
    samples: list[tuple[float, float, ServerFacts]] = []
    for _ in range(_CLOCK_SAMPLES):
        before = time.time()
        server = await diagnostics.server(pool)
        after = time.time()
        samples.append((after - before, (before + after) / 2 - to_us(server.clock_at) / SECOND_US, server))
    _, skew_seconds, server = min(samples)
    return server, skew_seconds
