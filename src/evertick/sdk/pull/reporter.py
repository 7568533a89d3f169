"""Tells the server how attempts ended: whatever has gathered while one call was under way goes along in the next.

An outcome stays until the server has answered for it. What was lost on the way is told again; the server keeps the
first.
"""

import asyncio
import logging

from evertick.client import ApiError, AsyncClient, Invalid
from evertick.contract.workers import OutcomeReport
from evertick.executor.counters import Counters
from evertick.runtime.loop import Loop
from evertick.sdk.pull.patience import Patience

logger = logging.getLogger("evertick.worker")

MOST = 100
"""Outcomes in one call: with the longest errors, still well within what the server reads."""
RECHECK_SECONDS = 60.0


class Reporter:
    """Gathers outcomes, and sends them one batch after the other."""

    def __init__(self, client: AsyncClient, worker_id: str, figures: Counters) -> None:
        self._client = client
        self._worker_id = worker_id
        self._figures = figures
        self._waiting: list[OutcomeReport] = []
        self._most = MOST
        self._is_repeated = False
        self._patience = Patience("outcomes")
        self._loop = Loop("outcomes", self._step)
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def tokens(self) -> list[str]:
        """Of the attempts whose outcomes the server has not heard yet; safe from any thread."""
        return [report.token for report in self._waiting.copy()]

    def start(self) -> None:
        self._loop.start()

    def add(self, report: OutcomeReport) -> None:
        self._waiting.append(report)
        if len(self._waiting) == 1:  # else the loop is at it, or waits for a server that is away
            self._empty.clear()
            self._loop.wake()

    async def drain(self) -> None:
        """Return when everything is told."""
        await self._empty.wait()

    async def stop(self) -> None:
        await self._loop.stop()

    async def _step(self) -> float:
        while self._waiting:
            try:
                await self._tell(self._waiting[: self._most])
            except Invalid as error:
                self._divide(error)
            except ApiError as error:
                self._is_repeated = True
                return self._patience.failed(error)
        self._empty.set()
        return RECHECK_SECONDS

    async def _tell(self, batch: list[OutcomeReport]) -> None:
        recorded = await self._client.workers.record(self._worker_id, batch)
        self._patience.succeeded()
        del self._waiting[: len(batch)]
        # What was told before may have counted then.
        stale = 0 if self._is_repeated else len(recorded.stale)
        self._is_repeated = False
        self._most = MOST
        if stale:
            self._figures.stale += stale
            logger.info("%d outcomes came too late: others had ended those attempts", stale)

    def _divide(self, error: Invalid) -> None:
        """One outcome that the server cannot take must not keep all others from it."""
        if self._most > 1:
            self._most = min(self._most, len(self._waiting)) // 2 or 1
            return
        refused = self._waiting.pop(0)
        self._most = MOST
        logger.error("the outcome of %s cannot be recorded, so it will be lost: %s", refused.token, error)
