"""Background work: one step again and again, through every error, until told to stop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from evertick.store.database import is_transient

logger = logging.getLogger("evertick")

FIRST_BACKOFF = 0.1
LONGEST_BACKOFF = 5.0


class Loop:
    """Calls `step` at once when woken, else after the pause in seconds that its last call returned.

    An error never ends the loop: it is logged and counted, and the next step comes after a backoff that doubles. A lost
    database is logged in one line, everything else with its traceback.
    """

    def __init__(self, name: str, step: Callable[[], Awaitable[float]]) -> None:
        self.name = name
        self.errors = 0
        self._step = step
        self._woken = asyncio.Event()
        self._stopped = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)

    def wake(self) -> None:
        """Let the next step come at once. Waking again before it began changes nothing."""
        self._woken.set()

    async def stop(self) -> None:
        """Let the step that is under way end, and call no other."""
        self._stopped.set()
        self._woken.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        backoff = FIRST_BACKOFF
        while not self._stopped.is_set():
            self._woken.clear()
            try:
                pause = await self._step()
                backoff = FIRST_BACKOFF
            except Exception as error:  # noqa: BLE001 - the edge of a role: whatever it is, the role goes on
                self.errors += 1
                _report(self.name, error, backoff)
                await _wait(self._stopped, backoff)
                backoff = min(2 * backoff, LONGEST_BACKOFF)
            else:
                await _wait(self._woken, pause)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def _report(name: str, error: Exception, pause: float) -> None:
    if is_transient(error):
        logger.warning("%s: the database does not answer (%s), next try in %.1f s", name, type(error).__name__, pause)
    else:
        logger.error("%s failed, next try in %.1f s", name, pause, exc_info=error)
