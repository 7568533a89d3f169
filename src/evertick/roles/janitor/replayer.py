"""Works off replays of many dead letters.

Duty: makes runs of the letters that a replay wants, at its rate, until none is left or it is cancelled.

Invariants: no letter becomes two runs. Due times come no faster than the rate, and than the replay's share of its
tenant's `submits_per_second`. It waits for no user: a letter whose job is locked is tried again a moment later.

Steps: each second it locks a replay whose next batch is due, looks at the next letters, makes runs of those that are
wanted, and writes the position that it has reached: all in one transaction. Of several janitors each takes another one.

Crash: the transaction was committed or not, and another janitor goes on from the position. A batch that fails is tried
again after a while, and other replays come first.
"""

import logging
from datetime import timedelta
from typing import NamedTuple

from evertick.domain.replaying import pace_of, plan_batch
from evertick.runtime.loop import Loop
from evertick.store.database import Pool, Session, is_transient
from evertick.store.jobs import replays
from evertick.store.jobs.replays import Progress, ScannedLetter, TakenReplay
from evertick.store.jobs.runs import ReplayRate

logger = logging.getLogger("evertick.janitor")

POLL_SECONDS = 1.0
MAX_LOOKED_AT = 1000
"""Letters in one batch, wanted or not."""
MAX_BATCHES = 100
"""Batches in one step: the loop stops only between two steps."""
LOCKED_SECONDS = 1.0
FAILED_SECONDS = 10.0


class BatchResult(NamedTuple):
    """What a batch did: the replay, how many runs it made, and whether it was the last batch."""

    replay_id: int
    replayed: int
    is_done: bool


class Replayer:
    """Works off replays on the janitor's pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._loop = Loop("replay", self._step)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    async def replay_batch(self) -> BatchResult | None:
        """One batch of the replay that is due first. None: none is due."""
        replay: TakenReplay | None = None
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                replay = await replays.take(connection)
                return None if replay is None else await _replay_batch(connection, replay)
        except Exception as error:
            if replay is None or is_transient(error):
                raise
            logger.warning("a batch of replay %d failed: %r", replay.replay_id, error)
            await replays.postpone(self._pool, replay.replay_id, FAILED_SECONDS)
            return BatchResult(replay.replay_id, 0, is_done=False)

    async def _step(self) -> float:
        for _ in range(MAX_BATCHES):
            result = await self.replay_batch()
            if result is None:
                return POLL_SECONDS
            if result.is_done:
                logger.info("replay %d is done", result.replay_id)
        return 0


async def _replay_batch(connection: Session, replay: TakenReplay) -> BatchResult:
    pace = pace_of(replay.rate_per_second, replay.submits_per_second, replay.running)
    batch = plan_batch(pace, replay.next_batch_at, replay.now_at)
    scanned = await replays.scan(connection, replay.tenant_id, replay.wanted, replay.reached, MAX_LOOKED_AT)
    part = _first_wanted(scanned, batch.size)
    wanted = {letter.job_id for letter in part if letter.is_wanted}
    # In one statement after the other: a deletion of a job that ended meanwhile is visible.
    is_deleted = await replays.lock_jobs(connection, replay.tenant_id, wanted) if wanted else {}
    free = _before_locked(part, is_deleted)
    letters = [letter for letter in free if letter.is_wanted and not is_deleted[letter.job_id]]
    made = await replays.replay(connection, replay.tenant_id, letters, ReplayRate(batch.start_at, batch.seconds_apart))
    next_at = batch.next_at(len(made))
    if len(free) < len(part):
        next_at = max(next_at, replay.now_at + timedelta(seconds=LOCKED_SECONDS))
    is_done = len(scanned) < MAX_LOOKED_AT and len(free) == len(scanned)
    reached = free[-1].position if free else replay.reached
    await replays.advance(connection, replay.replay_id, Progress(reached, next_at, len(made), len(free), is_done))
    return BatchResult(replay.replay_id, len(made), is_done)


def _first_wanted(scanned: list[ScannedLetter], size: int) -> list[ScannedLetter]:
    """The letters up to the last that one batch takes."""
    found = 0
    for place, letter in enumerate(scanned):
        found += letter.is_wanted
        if found == size:
            return scanned[: place + 1]
    return scanned


def _before_locked(letters: list[ScannedLetter], is_deleted: dict[int, bool]) -> list[ScannedLetter]:
    """The letters before the first whose job another session has locked. A job without a row is locked by its purge."""
    for place, letter in enumerate(letters):
        if letter.is_wanted and letter.job_id not in is_deleted:
            return letters[:place]
    return letters
