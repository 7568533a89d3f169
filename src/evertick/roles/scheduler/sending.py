"""Sends planned timers to the statement that fires.

The statement passes over what users have locked. Should it run into a lock all the same, the batch is split until the
timers that met it are found: the others fire, and those are tried again after a second, in a statement of their own.
"""

import logging
from collections.abc import Callable

from evertick.domain.schedule.instants import SECOND_US, from_us
from evertick.roles.scheduler.planning import PlannedBatch
from evertick.roles.scheduler.state import State
from evertick.runtime.logs import jobs_fields
from evertick.store.database import is_lock_timeout, was_rolled_back
from evertick.store.engine import timers
from evertick.store.engine.timers import Fired
from evertick.store.maintenance import ledgers

logger = logging.getLogger("evertick.scheduler")

BUSY_US = SECOND_US // 10
"""A timer that another session had locked is tried again after so long."""
ASIDE_US = SECOND_US
"""A timer that ran into the session's lock_timeout is tried again after so long."""
LOCK_TIMEOUTS = 8
"""Lock time-outs of one batch at most. The rest is tried after the next batch, so that other timers get their turn."""


class Sending:
    """Knows which jobs ran into a lock. Calls `fired` with each part that was fired and its result."""

    def __init__(self, state: State, fired: Callable[[PlannedBatch, Fired], None]) -> None:
        self._state = state
        self._fired = fired
        self._apart: set[int] = set()

    async def send(self, planned: PlannedBatch) -> bool:
        """Fire all but what meets a lock. Returns whether no timer met one that had not met one before."""
        apart = self._apart & {entry.timer.job_id for entry in planned.entries} if self._apart else set()
        self._apart -= apart
        parts = planned.split_off(apart) if apart else [planned]
        conflicts = 0
        is_clean = True
        while parts:
            part = parts.pop(0)
            try:
                fired = await self._fire(part)
            except Exception as error:
                if not is_lock_timeout(error):
                    raise
                conflicts += 1
                is_clean = is_clean and part.entries[0].timer.job_id in apart
                smaller = part.split()
                if not smaller:
                    self._put_aside(part, ASIDE_US)
                parts[:0] = smaller
                if conflicts == LOCK_TIMEOUTS:
                    break
            else:
                self._fired(part, fired)
        for part in parts:
            self._put_aside(part, BUSY_US)
        return is_clean

    def _put_aside(self, part: PlannedBatch, pause_us: int) -> None:
        at_us = self._state.clock.now_us() + pause_us
        for entry in part.entries:
            self._apart.add(entry.timer.job_id)
            self._state.pending.retry_at(entry, at_us)
        logger.warning(
            "%d timers ran into locks of other sessions: they are tried apart",
            len(part.entries),
            extra=jobs_fields(entry.timer.job_id for entry in part.entries),
        )

    async def _fire(self, planned: PlannedBatch) -> Fired:
        """Fire; if the tables lack the day's partition, add it and fire again."""
        try:
            return await self._write(planned)
        except Exception as error:
            if not timers.lacks_day(error):
                raise
        at_us = max(self._state.ownership.last_seq, self._state.clock.now_us())
        for day in sorted({from_us(at_us).date(), from_us(at_us + SECOND_US).date()}):
            added = await ledgers.add_day(self._state.pool, day)
            logger.warning(
                "the attempts tables lacked the partition of %s, which janitors add days ahead%s",
                day,
                ": added" if added else "",
            )
        return await self._write(planned)

    async def _write(self, planned: PlannedBatch) -> Fired:
        try:
            return await timers.fire(
                self._state.firing,
                self._state.node,
                self._state.ownership.epochs,
                self._state.ownership.last_seq,
                planned.firing,
            )
        except BaseException as error:
            # Unless the server itself said that nothing was done, the statement may yet be under way there.
            self._state.ownership.in_doubt = not (was_rolled_back(error) or timers.lacks_day(error))
            raise
