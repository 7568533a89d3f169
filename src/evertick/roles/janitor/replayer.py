"""Works off replays of many dead letters.

Duty: makes runs of the letters that a replay wants, at its rate, until none is left or it is cancelled.

Invariants: no letter becomes two runs. Due times come no faster than the rate. Each run costs what a submission costs:
it is drawn from the tenant's rate bucket, and a tenant that is over its storage quota gets none. It waits for no user:
a letter whose job is locked is tried again a moment later.

Steps: each second it locks a replay whose next batch is due within a second, looks at the next letters, draws for those
that are wanted, makes runs of them, and writes the position that it has reached: all in one transaction, but for the
draw, which nobody may wait for. Of several janitors each takes another replay.

Crash: the transaction was committed or not, and another janitor goes on from the position. A batch that fails is tried
again after a while, and other replays come first. What was drawn for it is lost: a second's submissions at most.
"""

import logging
from datetime import timedelta
from typing import NamedTuple

from evertick.domain.admission import AdmissionRequest, Admitted, Quota, Usage, admit
from evertick.domain.ids import Prefix, format_id
from evertick.domain.rate_bucket import Drawn, Rate
from evertick.domain.replaying import AHEAD, plan_batch
from evertick.runtime.logs import tenant_fields
from evertick.runtime.loop import Loop
from evertick.store.database import Pool, Session, is_transient
from evertick.store.engine.rate_buckets import Ask, DatabaseBuckets, RateBuckets, submit_key
from evertick.store.jobs import replays
from evertick.store.jobs.replays import Progress, ScannedLetter, TakenReplay
from evertick.store.jobs.runs import ReplayRate
from evertick.store.tenants import tenants

logger = logging.getLogger("evertick.janitor")

POLL_SECONDS = AHEAD.total_seconds()
MIN_POLL_SECONDS = 0.05
MAX_LOOKED_AT = 1000
"""Letters in one batch, wanted or not."""
MAX_BATCHES = 100
"""Batches in one step: the loop stops only between two steps."""
LOCKED_WAIT = timedelta(seconds=1)
FAILED_SECONDS = 10.0
FULL_SECONDS = 10.0
"""Until the next look at a tenant that is over its storage quota."""
BUSY_WAIT_US = 100_000
"""After another process was drawing from the same bucket."""


class BatchResult(NamedTuple):
    """What a batch did: the replay, how many runs it made, and whether it was the last batch.

    `wait`: how long until the tenant may submit more.
    """

    replay_id: int
    replayed: int
    is_done: bool
    wait: timedelta = timedelta(0)


class Replayer:
    """Works off replays on the janitor's pool: on one connection, and draws on another."""

    def __init__(self, pool: Pool, buckets: RateBuckets | None = None) -> None:
        self._pool = pool
        self._buckets = buckets or DatabaseBuckets(pool)
        self._loop = Loop("replay", self.step)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    async def replay_batch(self) -> BatchResult | None:
        """One batch of the replay that is due first. None: none is due."""
        replay: TakenReplay | None = None
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                replay = await replays.take(connection, AHEAD)
                return None if replay is None else await self._replay_batch(connection, replay)
        except Exception as error:
            if replay is None or is_transient(error):
                raise
            fields = {"replay_id": format_id(Prefix.REPLAY, replay.replay_id)} | tenant_fields(replay.tenant_id)
            logger.warning("a batch of replay %d failed: %r", replay.replay_id, error, extra=fields)
            await replays.postpone(self._pool, replay.replay_id, FAILED_SECONDS)
            return BatchResult(replay.replay_id, 0, is_done=False)

    async def _replay_batch(self, connection: Session, replay: TakenReplay) -> BatchResult:
        quota = Quota(storage_bytes=replay.storage_quota_bytes)
        usage = Usage(0, 0, 0, *await tenants.stored(connection, replay.tenant_id))
        if not isinstance(admit(quota, usage, AdmissionRequest()), Admitted):
            await replays.postpone(connection, replay.replay_id, FULL_SECONDS)
            return BatchResult(replay.replay_id, 0, is_done=False)
        batch = plan_batch(replay.rate_per_second, replay.submits_per_second, replay.next_batch_at, replay.now_at)
        scanned = await replays.scan(connection, replay.tenant_id, replay.wanted, replay.reached, MAX_LOOKED_AT)
        part = _up_to(scanned, batch.size)
        # Before the jobs are locked: Redis may be slow.
        drawn = await self._draw(replay, sum(letter.is_wanted for letter in part))
        part = _up_to(part, drawn.granted)
        wanted = {letter.job_id for letter in part if letter.is_wanted}
        # In one statement after the other: a deletion of a job that ended meanwhile is visible.
        is_deleted = await replays.lock_jobs(connection, replay.tenant_id, wanted) if wanted else {}
        free = _before_locked(part, is_deleted)
        letters = [letter for letter in free if letter.is_wanted and not is_deleted[letter.job_id]]
        pace = ReplayRate(batch.start_at, batch.seconds_apart)
        made = await replays.replay(connection, replay.tenant_id, letters, pace)
        next_at = batch.next_at(len(made))
        if wait := LOCKED_WAIT if len(free) < len(part) else timedelta(microseconds=drawn.wait_us):
            next_at = max(next_at, replay.now_at + wait + AHEAD)
        is_done = len(scanned) < MAX_LOOKED_AT and len(free) == len(scanned)
        reached = free[-1].position if free else replay.reached
        await replays.advance(connection, replay.replay_id, Progress(reached, next_at, len(made), len(free), is_done))
        return BatchResult(replay.replay_id, len(made), is_done, timedelta(microseconds=drawn.wait_us))

    async def _draw(self, replay: TakenReplay, runs: int) -> Drawn:
        """Draw for as many of these runs as the tenant may submit now."""
        if not runs:
            return Drawn(0)
        rate = Rate(replay.submits_per_second, replay.submit_burst)
        (drawn,) = await self._buckets.draw([Ask(submit_key(replay.tenant_id), rate, 1, runs)])
        return Drawn(0, BUSY_WAIT_US) if drawn is None else drawn

    async def step(self) -> float:
        """Work off what is due, and say after how many seconds more is."""
        pause = POLL_SECONDS
        for _ in range(MAX_BATCHES):
            result = await self.replay_batch()
            if result is None:
                return pause
            if result.wait:  # a small burst is used up several times a second
                pause = max(MIN_POLL_SECONDS, min(pause, result.wait.total_seconds()))
            if result.is_done:
                fields = {"replay_id": format_id(Prefix.REPLAY, result.replay_id)}
                logger.info("replay %d is done", result.replay_id, extra=fields)
        return 0


def _up_to(scanned: list[ScannedLetter], size: int) -> list[ScannedLetter]:
    """The letters before the first wanted one that is too many."""
    found = 0
    for place, letter in enumerate(scanned):
        found += letter.is_wanted
        if found > size:
            return scanned[:place]
    return scanned


def _before_locked(letters: list[ScannedLetter], is_deleted: dict[int, bool]) -> list[ScannedLetter]:
    """The letters before the first whose job another session has locked. A job without a row is locked by its purge."""
    for place, letter in enumerate(letters):
        if letter.is_wanted and letter.job_id not in is_deleted:
            return letters[:place]
    return letters
