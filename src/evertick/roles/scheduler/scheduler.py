"""The scheduler: holds partitions and fires their timers at their times.

Duty: each timer of a partition that this node holds is fired once it is due, soon after, and once.

Invariants: it writes attempts only for partitions that it holds, and the statement that writes checks that. Seqs of a
lane grow in the order of their commits: one firing at a time, and none while the end of an earlier one is unknown.

Steps, each a loop of its own:
1. membership: heartbeats; gives up and takes partitions. On connections of its own.
2. loading: timers of the coming minutes into memory (`pending_timers`); when woken, the jobs that were named; each
   second what is due and no wake-up named. Where more is due than fits into memory, some of every tenant's (`backlog`).
3. firing: the timers that are due, in fair order and in batches; what an outage left at a limited rate. What is costly
   to plan is planned in the background meanwhile, in turn among tenants, and fires in a later batch.
4. backpressure: timers of full queues are kept back until there is room.
5. reaping: leases that ran out, after a grace; attempts that no lease covers (`Sweeping`).
6. maintenance: marks of the clock.
7. fuse: jobs that fire more often than their schedule allows are paused.
8. gates: what has fired and waits for a place of its key is let in, after each firing and outcome, and by a sweep.

Stop: it gives up its partitions before it waits for anything but the statement that fires. Crash: the others take its
partitions after `lifetime`, and go on from the table. Nothing is lost: a timer moves in the statement that appends its
attempt. Slow database: batches grow, unless a statement takes too long: then they shrink.
Users who hold locks: their jobs wait for them, all others fire. Silent connection: each loop gives up its own statement
after its own time-out (`runtime.timeouts`) and goes on with a new connection. Lost partitions: their timers are
forgotten at the next heartbeat, and refused by the fence before that. The same holds after the whole process was
stopped.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from evertick.config.settings import DEFAULTS
from evertick.domain.assignment import Member
from evertick.domain.schedule.instants import SECOND_US
from evertick.metrics.catalog import CLOCK_SKEW, PARKED_TIMERS, PARTITIONS_HELD, PENDING_TIMERS
from evertick.roles.scheduler.backpressure import Backpressure
from evertick.roles.scheduler.catching_up import CatchUp
from evertick.roles.scheduler.firing import Firing
from evertick.roles.scheduler.fuse import Fuse
from evertick.roles.scheduler.loading import Loading
from evertick.roles.scheduler.maintenance import Maintenance
from evertick.roles.scheduler.membership import Membership
from evertick.roles.scheduler.pending_timers import PendingTimers
from evertick.roles.scheduler.reaping import Reaping
from evertick.roles.scheduler.state import State
from evertick.runtime import timeouts
from evertick.runtime.clock import Clock, DatabaseClock
from evertick.runtime.gates import Gates
from evertick.runtime.loop import LONGEST_BACKOFF, Loop
from evertick.runtime.recent_rate import RecentRate
from evertick.runtime.wakeups import Listener, Notifier
from evertick.store.database import Pool, Timeouts, open_pool, reason_of
from evertick.store.engine import lanes
from evertick.store.engine.timers import Timer
from evertick.store.engine.wakeups import MEMBERS, READY, TIMERS
from evertick.store.location import DatabaseAddress

logger = logging.getLogger("evertick.scheduler")

CONNECTIONS = 4
FIRING_CONNECTIONS = 2
RESERVED_CONNECTIONS = 2  # for heartbeats, and for taking and giving up partitions
STOP_SECONDS = 5.0
"""The longest that each part of a stop takes. Without a database the other nodes notice the missing heartbeats."""


class Scheduler:
    """One scheduler node."""

    def __init__(  # noqa: PLR0913 - where it works and its times
        self,
        url: DatabaseAddress,
        node: str,
        *,
        heartbeat: timedelta = timedelta(seconds=0.5),
        lifetime: timedelta = timedelta(seconds=5),
        horizon: timedelta = timedelta(minutes=2),
        lease_time: timedelta = timedelta(seconds=30),
        clock: Clock | None = None,
        catch_up_factor: float | None = None,
        normal_rate: float = DEFAULTS.normal_rate,
    ) -> None:
        self.node = node
        self.clock: Clock = clock or DatabaseClock()
        self._url = url
        self._me = Member(node)
        self._heartbeat = heartbeat
        self._lifetime = lifetime
        self._horizon = horizon
        self._lease_time = lease_time
        self._catch_up_factor = catch_up_factor
        self._normal_rate = normal_rate
        self._listener: Listener | None = None
        self._unwatch: list[Callable[[], None]] = []

    async def open(self) -> None:
        """Connect, and put the parts together; nothing runs yet."""
        self._pools: list[Pool] = []
        self._has_left = False
        try:
            pool = await self._open_pool("load", CONNECTIONS, timeouts.LOAD)
            firing = await self._open_pool("fire", FIRING_CONNECTIONS, timeouts.FIRE)
            waits = timeouts.node_heartbeat(self._lifetime)
            reserved = await self._open_pool("heartbeat", RESERVED_CONNECTIONS, waits)
            self.clock.observe(await lanes.clock(pool))
        except BaseException:
            await self.close()
            raise
        self.state = State(self._me, self.clock, pool, firing, reserved, PendingTimers(self.clock.now_us()))
        self._assemble()
        self._watch()

    async def close(self) -> None:
        for unwatch in self._unwatch:
            unwatch()
        await asyncio.gather(*(pool.close() for pool in self._pools))

    async def start(self) -> None:
        """Join the cluster and go on until `stop`."""
        await self.open()
        self._notifier.start()
        for loop in self._loops:
            loop.start()
        self._listener = Listener(self._url, self._heard, TIMERS, MEMBERS)
        self._listener.start()
        logger.info("scheduler %s started", self.node, extra={"node": self.node})

    async def hand_over(self) -> None:
        """Give up all partitions, as soon as what is being written is written: the others fire on at once.

        It goes on without partitions until `stop`.
        """
        if self._has_left:
            return
        self._has_left = True
        # They would join again.
        await asyncio.gather(*(loop.stop(STOP_SECONDS) for loop in (self._heartbeat_loop, self._rebalance_loop)))
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.membership.leave()
        except Exception as error:  # noqa: BLE001 - it stops all the same
            logger.warning(
                "could not hand over (%s): others take over in %s",
                reason_of(error),
                self._lifetime,
                extra={"node": self.node},
            )

    async def stop(self) -> None:
        """Hand everything over, finish what is under way, and end."""
        await self.hand_over()
        if self._listener is not None:
            await self._listener.stop()
        await asyncio.gather(*(loop.stop(STOP_SECONDS) for loop in self._loops))
        await self.firing.background.stop()
        await self._notifier.stop()
        await self.close()
        logger.info("scheduler %s stopped", self.node, extra={"node": self.node})

    async def join(self) -> None:
        """Take part without loops: the caller drives the steps."""
        await self.membership.step()
        await self.membership.rebalance()

    async def fire_due(self) -> int:
        """Fire all that is due by the clock, from the table as it is now; returns how many timers were tried."""
        self.state.pending.keep_only(())
        self.backpressure.clear()
        self.loading.lost(self.state.ownership.epochs)
        await self.backpressure.read()
        await self.loading.load_due()
        tried = await self._fire_loaded()
        while self.loading.is_behind:
            await self.loading.load_due()
            more = await self._fire_loaded()
            if not more:
                break
            tried += more
        return tried

    async def fire_timers(self, found: Sequence[Timer]) -> set[int]:
        """Fire these timers, as they are in the table now, and nothing else; returns the lanes that got work.

        For a caller that drives the steps: nobody is notified.
        """
        self.state.pending.keep_only(())
        await self.loading.add(found)
        await self._fire_loaded()
        return self._notifier.take(READY)

    async def _fire_loaded(self) -> int:
        tried = 0
        while (batch := await self.firing.fire_batch()) or await self.firing.background.finish():
            tried += batch
        return tried

    async def _open_pool(self, purpose: str, connections: int, waits: Timeouts) -> Pool:
        pool = await open_pool(self._url, max_size=connections, timeouts=waits, purpose=purpose)
        self._pools.append(pool)
        return pool

    def _assemble(self) -> None:
        state = self.state
        self._notifier = Notifier(state.pool)
        catch_up = CatchUp(state, self._catch_up_factor, self._normal_rate)
        self.backpressure = Backpressure(state, freed=self._wake_firing, short=self._wake_pressure, catch_up=catch_up)
        self._pressure_loop = Loop("backpressure", self.backpressure.step_when_due)
        self.gates = Gates(state.pool, self._notifier.put_back, lambda: self.state.ownership.epochs)
        self.firing = Firing(
            state,
            self.backpressure,
            horizon=self._horizon,
            ready=self._notifier.ready,
            woken=self._wake_jobs,
            planned=self._wake_firing,
            updated=self._read_on,
            waiting=self.gates.note,
            catch_up=catch_up,
        )
        self._fire_loop = Loop("fire", self.firing.step)
        self.loading = Loading(
            state,
            horizon=self._horizon,
            loaded=self._fire_loop.wake,
            is_full=self.backpressure.is_full,
            catch_up=catch_up,
        )
        self._load_loop = Loop("load", self.loading.step)
        self.membership = Membership(
            state,
            heartbeat=self._heartbeat,
            lifetime=self._lifetime,
            fired=RecentRate(lambda: self.firing.counters.fired),
            changed=self._wake_rebalancing,
            gained=self._load_loop.wake,
            lost=self._lost,
        )
        soon = self._lifetime.total_seconds() / 4  # a node that pauses for longer after an error counts as dead
        self._heartbeat_loop = Loop("heartbeat", self.membership.step, longest_backoff=min(soon, LONGEST_BACKOFF))
        self._rebalance_loop = Loop("rebalance", self.membership.rebalance)
        self.reaping = Reaping(state, lease_time=self._lease_time, woken=self._wake_jobs, left=self.gates.note)
        self._reap_loop = Loop("reap", self.reaping.step)
        self.maintenance = Maintenance(state)
        self._maintenance_loop = Loop("maintain", self.maintenance.step)
        self.fuse = Fuse(state)
        fuse_loop = Loop("fuse", self.fuse.step)
        upkeep = (self._pressure_loop, self._reap_loop, self._maintenance_loop, fuse_loop, self.gates.loop)
        working = (self._load_loop, self._fire_loop, *upkeep)
        self._loops = (self._heartbeat_loop, self._rebalance_loop, *working)
        self.clock.listeners.append(self._stepped)

    def _watch(self) -> None:
        """Show what is held and what waits in memory."""
        self._unwatch = [
            PARTITIONS_HELD.watch_value(lambda: len(self.state.ownership.epochs)),
            PENDING_TIMERS.watch_value(lambda: len(self.state.pending)),
            PARKED_TIMERS.watch_value(lambda: self.backpressure.parked),
            CLOCK_SKEW.watch_value(lambda: self.clock.skew_us / SECOND_US, "scheduler"),
        ]

    def _stepped(self, _: timedelta) -> None:
        """The database's clock was set: what is due has to be read anew, and a mark tells the janitors."""
        self.state.pending = PendingTimers(self.clock.now_us())
        self.backpressure.clear()
        self.state.ownership.limit_outages(self.clock.now_us())
        self.loading.lost(self.state.ownership.epochs)
        for loop in (self._load_loop, self._fire_loop, self._maintenance_loop):
            loop.wake()

    def _lost(self, partitions: Iterable[int]) -> None:
        """What was read of partitions does not count any more: they are lost, or read anew."""
        self.loading.lost(partitions)
        self.backpressure.drop_stale()

    def _wake_firing(self) -> None:
        self._fire_loop.wake()

    def _wake_pressure(self) -> None:
        self._pressure_loop.wake()

    def _read_on(self) -> None:
        """Timers have fired: there may be room for more of a backlog."""
        if self.loading.is_urgent:
            self._load_loop.wake()

    def _wake_rebalancing(self) -> None:
        self._rebalance_loop.wake()

    def _wake_jobs(self, job_ids: Iterable[int]) -> None:
        self.loading.woken(frozenset(job_ids))
        self._load_loop.wake()

    def _heard(self, channel: str, ids: frozenset[int] | None) -> None:
        if channel == MEMBERS:
            self._heartbeat_loop.wake()
        else:
            self.loading.woken(ids)
            self._load_loop.wake()
