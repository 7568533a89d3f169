"""Decides whether this cluster may work on a server that was started since the last confirmation, or is another.

Until a server is confirmed, statements take no partitions there, fire nothing and lease nothing. A restart or a
fail-over is confirmed by the first scheduler that comes. A database that may be a restored copy is not: an operator has
to confirm it, and until then schedulers look again with each heartbeat.
"""

import logging
import time
from datetime import datetime

from evertick.domain.cluster_identity import REMEDY, Suspicion, explain, judge
from evertick.store.database import Pool
from evertick.store.engine import identity
from evertick.store.engine.identity import Facts

logger = logging.getLogger("evertick.scheduler")

MAX_TRIES = 3
"""Another scheduler that decides at the same moment is first once, as a rule."""
REMIND_SECONDS = 60.0


class Confirming:
    """`remembered_at`: the last heartbeat of this process that counted, by the database's clock."""

    def __init__(self, pool: Pool, node: str) -> None:
        self._pool = pool
        self._node = node
        self._told: Suspicion | None = None
        self._told_again = 0.0
        self.remembered_at: datetime | None = None

    async def may_work(self) -> bool:
        """Look at the server, and confirm it unless something speaks against it."""
        for _ in range(MAX_TRIES):
            known = await identity.facts(self._pool)
            if known.is_confirmed and known.confirmed is not None:
                return True  # another scheduler was first
            suspicion = self._judge(known)
            if suspicion is None:
                if await identity.confirm(self._pool, known):
                    self._tell_confirmed(known)
                    return True
            elif known.suspected is not None or await identity.suspect(self._pool, known, suspicion):
                self._tell_suspected(known.suspected or suspicion)
                return False
        return False  # the next heartbeat asks again

    def _judge(self, known: Facts) -> Suspicion | None:
        if known.confirmed is None:
            return None  # a new database
        return judge(
            known.here,
            known.confirmed,
            active_at=known.active_at,
            now_at=known.now_at,
            remembered_at=self.remembered_at,
            suspicion=known.suspected,
        )

    def _tell_confirmed(self, known: Facts) -> None:
        self._told = None
        if known.confirmed is None:
            return
        if known.here.has_history_of(known.confirmed):
            logger.info("the database's server was started again: work goes on", extra={"node": self._node})
        else:
            logger.warning(
                "the database's server has changed, as by a fail-over (timeline %s, before %s): work goes on",
                *(known.timeline, known.confirmed_timeline),
                extra={"node": self._node},
            )

    def _tell_suspected(self, suspicion: Suspicion) -> None:
        """Say it at once, and again each minute: nothing else tells why nothing fires."""
        now = time.monotonic()
        if suspicion is self._told and now < self._told_again:
            return
        self._told, self._told_again = suspicion, now + REMIND_SECONDS
        logger.error("%s. To do: %s", explain(suspicion), REMEDY, extra={"node": self._node})
