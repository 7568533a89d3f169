"""Keeps this node a member, and its partitions those that the balanced assignment gives it.

1. Heartbeat: records that this node is alive, and reads which others are and the database's time. After a long time
   without one, the node gives up its partitions by it, and takes them again as after any outage. On a server that was
   started since, or is another, it first decides whether the database may be a restored copy (`confirming`).
2. Drop partitions that by the table this node does not hold, or holds in another epoch.
3. Give up partitions that the assignment gives to others, between two firings.
4. Take partitions that it gives to this node and no live node holds. The rest follow when their holders give them up.

Steps 1 and 2 are one loop, 3 and 4 another: giving up waits for a firing, and a heartbeat must not wait.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from evertick.domain.assignment import Changes, Member, assign, changes
from evertick.domain.catch_up import OUTAGE
from evertick.roles.scheduler.confirming import Confirming
from evertick.roles.scheduler.state import State
from evertick.runtime.clock import monotonic_us
from evertick.runtime.recent_rate import RecentRate
from evertick.store.engine import members, wakeups
from evertick.store.engine.members import HeartbeatReply
from evertick.version import __version__

logger = logging.getLogger("evertick.scheduler")

MISSED_HEARTBEATS = 3
"""A node that comes back after so many, and after `OUTAGE`, counts what fell due meanwhile as left from an outage."""
REBALANCE_SECONDS = 5.0
"""A heartbeat that finds partitions to move starts this at once. The interval covers what a heartbeat does not see."""


class Membership:
    """The heartbeat and what follows from it, on connections of its own, so that other work cannot delay it."""

    def __init__(  # noqa: PLR0913 - its times and its callbacks
        self,
        state: State,
        *,
        heartbeat: timedelta,
        lifetime: timedelta,
        fired: RecentRate,
        changed: Callable[[], None],
        gained: Callable[[], None],
        lost: Callable[[Iterable[int]], None],
    ) -> None:
        self._state = state
        self._ownership = state.ownership
        self._pool = state.reserved
        self._me = state.me
        self._heartbeat = heartbeat
        self._lifetime = lifetime
        self._outage = max(OUTAGE, MISSED_HEARTBEATS * heartbeat)
        self._fired = fired
        self._changed = changed
        self._gained = gained
        self._lost = lost
        self.confirming = Confirming(state.reserved, state.node)
        self.others: tuple[Member, ...] = ()

    async def step(self) -> float:
        """Send a heartbeat, and drop the partitions that are not held any more by the table."""
        before = dict(self._ownership.epochs)
        reply = await self._beat()
        if not reply.is_confirmed and await self.confirming.may_work():
            reply = await self._beat()
        if not reply.is_confirmed:
            self.others = ()
            self._drop(set(self._ownership.epochs))
            return self._heartbeat.total_seconds()
        self.confirming.remembered_at = reply.now_at
        if reply.others != self.others:
            logger.info(
                "members: %s",
                ", ".join(sorted(member.node for member in (self._me, *reply.others))),
                extra={"node": self._me.node},
            )
        self.others = reply.others
        held = await members.held(self._pool, self._me.node)
        self._drop_lost(before, held)
        wanted = self._wanted()
        if wanted.release or wanted.take or self._ownership.in_doubt or held.keys() - self._ownership.epochs.keys():
            self._changed()
        return self._heartbeat.total_seconds()

    async def _beat(self) -> HeartbeatReply:
        asked_us = monotonic_us()
        reply = await members.heartbeat(
            self._pool,
            self._me,
            __version__,
            self._lifetime,
            self._outage,
            fired_per_second=self._fired.per_second(),
        )
        self._state.clock.observe(reply.now_at, asked_us)
        return reply

    async def rebalance(self) -> float:
        """Give up and take partitions until this node holds what the assignment gives it."""
        unknown = (await members.held(self._pool, self._me.node)).keys() - self._ownership.epochs.keys()
        if unknown:
            # Held by the table and not in memory: an answer was lost. Taking them again gives a known epoch.
            await self._take(unknown)
        if release := self._wanted().release:
            await self._release(set(release))
        if self._ownership.in_doubt:
            await self._retake()
        if take := self._wanted().take:
            await self._take(take)
        return REBALANCE_SECONDS

    def _wanted(self) -> Changes:
        return changes(self._me.node, set(self._ownership.epochs), assign((self._me, *self.others)))

    async def leave(self) -> None:
        """Give up all partitions, and the membership."""
        async with self._ownership.writing:
            await members.leave(self._pool, self._me.node)
            self._drop(set(self._ownership.epochs))
        await wakeups.notify(self._pool, {wakeups.MEMBERS: ""})

    def _drop_lost(self, before: dict[int, int], held: dict[int, int]) -> None:
        """Drop partitions that are lost. Those that were taken after the query began are not in its answer yet."""
        epochs = self._ownership.epochs
        lost = {each for each, epoch in before.items() if epochs.get(each) == epoch and held.get(each) != epoch}
        if lost:
            logger.warning("lost %d partitions", len(lost), extra=self._fields({each: before[each] for each in lost}))
            self._drop(lost)

    async def _release(self, partitions: set[int]) -> None:
        async with self._ownership.writing:
            released = {each: epoch for each, epoch in self._ownership.epochs.items() if each in partitions}
            self._drop(partitions)
            await members.release(self._pool, self._me.node, partitions)
        logger.info("released %d partitions", len(partitions), extra=self._fields(released))
        await wakeups.notify(self._pool, {wakeups.MEMBERS: ""})

    async def _take(self, partitions: Iterable[int]) -> None:
        epochs = await members.take(self._pool, self._me.node, partitions, self._lifetime, self._outage)
        if not epochs:
            return
        await self._gain(epochs)
        logger.info(
            "took %d partitions, holds %d", len(epochs), len(self._ownership.epochs), extra=self._fields(epochs)
        )
        self._gained()

    async def _retake(self) -> None:
        """Fence off a firing whose end is unknown: it has committed before this, or cannot commit any more."""
        async with self._ownership.writing:
            mine = set(self._ownership.epochs)
            epochs = await members.take(self._pool, self._me.node, mine, self._lifetime, self._outage)
            self._drop(mine - epochs.keys())
            await self._gain(epochs)
            self._ownership.in_doubt = False
        self._lost(mine)  # what the firing did is to be read anew
        self._gained()

    async def _gain(self, epochs: dict[int, int]) -> None:
        # Read after the take has committed: no other node writes there any more.
        last_seq = await members.last_seq(self._pool, epochs)
        outages = await members.outages(self._pool, epochs)
        self._ownership.gain(epochs, last_seq, outages, self._state.clock.now_us())

    def _fields(self, epochs: dict[int, int]) -> dict[str, Any]:
        """The fields of a record about partitions: which, and in which epoch each."""
        return {"node": self._me.node, "epochs": dict(sorted(epochs.items()))}

    def _drop(self, partitions: set[int]) -> None:
        self._ownership.drop(partitions)
        self._state.pending.keep_only(self._ownership.epochs)
        self._lost(partitions)
