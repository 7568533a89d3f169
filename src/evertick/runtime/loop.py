"""Work on the event loop: one step again and again, through every error, until it is stopped; and long work in slices.

Work that may take long in one step belongs into `background`. The remote worker uses this module without the server's
dependencies, so it does not import the store.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from evertick.metrics.catalog import LOOP_ERRORS

logger = logging.getLogger("evertick")

FIRST_BACKOFF = 0.1
LONGEST_BACKOFF = 2.0
"""The maximum delay between the end of an outage and the next try."""
QUIET_SECONDS = 5.0
"""An outage is over after so long without an error. A single step without one may have had nothing to do."""
REPORT_SECONDS = 10.0
"""The interval at which the same error is logged again during an outage."""
STOP_SECONDS = 5.0
"""For so long `stop` waits for the step under way. After that the step is cancelled."""
SLICE_SECONDS = 0.005
DELAY_INTERVAL_SECONDS = 0.1


class Unavailable(NamedTuple):
    """What a loop depends on cannot be reached for the moment; it asked to be left alone for `wait_seconds`."""

    what: str
    reason: str
    wait_seconds: float = 0.0


Diagnose: TypeAlias = Callable[[BaseException], Unavailable | None]
"""Tells an outage, which ends by itself, from a surprise (None)."""


def diagnose_database(error: BaseException) -> Unavailable | None:
    """For loops of roles. A process that has not loaded the store has no database."""
    database = sys.modules.get("evertick.store.database")
    if database is None or not database.is_transient(error):
        return None
    return Unavailable("the database", database.reason_of(error))


class NotYet(float):
    """A pause after a step that could not do its work yet: it neither failed nor shows that an outage is over."""

    __slots__ = ()


class Loop:
    """Calls `step` at once when woken, else after the pause in seconds that its last call returned.

    An error never ends the loop: it is logged and counted, and the next step comes after a backoff that doubles, but no
    later than after `longest_pause`, whatever was asked for.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], Awaitable[float]],
        *,
        longest_backoff: float = LONGEST_BACKOFF,
        diagnose: Diagnose = diagnose_database,
        longest_pause: Callable[[], float] | None = None,
    ) -> None:
        self.name = name
        self.errors = 0
        self._step = step
        self._outage = Outage(name, longest_backoff, diagnose, longest_pause)
        self._woken = asyncio.Event()
        self._stopped = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)

    def wake(self) -> None:
        """Let the next step come at once. Waking again before it began changes nothing."""
        self._woken.set()

    async def stop(self, within_seconds: float = STOP_SECONDS) -> None:
        """Let the step that is under way end, or end it if it takes too long, and call no other."""
        self._stopped.set()
        self._woken.set()
        if self._task is None:
            return
        _, under_way = await asyncio.wait([self._task], timeout=within_seconds)
        if under_way:
            logger.warning("%s: ended in the middle of a step, %.0f s after it was stopped", self.name, within_seconds)
            self._task.cancel()
            await asyncio.wait([self._task], timeout=STOP_SECONDS)

    async def _run(self) -> None:
        while not self._stopped.is_set():
            self._woken.clear()
            began = time.monotonic()
            try:
                pause = await self._step()
            except Exception as error:  # noqa: BLE001 - the edge of a role: whatever it is, the role goes on
                self.errors += 1
                LOOP_ERRORS.add(1, self.name)
                await _wait(self._stopped, self._outage.failed(error, began))
            else:
                self._outage.went_well(pause)
                await _wait(self._woken, pause)


class Outage:
    """The consecutive errors of one loop: how long to pause, and what to log.

    An outage is logged in one line with the reason, any other error with its traceback; the same error again only every
    `REPORT_SECONDS`, and the end of the outage once.
    """

    def __init__(
        self,
        name: str,
        longest_backoff: float = LONGEST_BACKOFF,
        diagnose: Diagnose = diagnose_database,
        longest_pause: Callable[[], float] | None = None,
    ) -> None:
        self._name = name
        self._longest_pause = longest_pause
        self._longest = longest_backoff
        self._diagnose = diagnose
        self._backoff = 0.0
        self._began = self._failed = self._reported = 0.0
        self._well_since: float | None = None
        self._reported_type: type[Exception] | None = None
        self._unavailable: Unavailable | None = None

    def failed(self, error: Exception, began: float) -> float:
        """Log the failure of a step that began then, unless it was just logged; return the pause after it."""
        now = time.monotonic()
        if not self._backoff:
            self._began, self._reported_type = began, None
        self._failed, self._well_since = now, None
        self._backoff = min(2 * self._backoff, self._longest) or min(FIRST_BACKOFF, self._longest)
        self._unavailable = self._diagnose(error)
        if type(error) is not self._reported_type or now - self._reported >= REPORT_SECONDS:
            self._report(error)
            self._reported = now
        pause = self._backoff + (self._unavailable.wait_seconds if self._unavailable else 0.0)
        return pause if self._longest_pause is None else min(pause, self._longest_pause())

    def went_well(self, pause: float) -> None:
        """A step ended without an error. The outage is over when that lasts."""
        if not self._backoff or isinstance(pause, NotYet):
            return
        now = time.monotonic()
        if self._well_since is None:
            self._well_since = now
        if pause >= QUIET_SECONDS or now - self._failed >= max(QUIET_SECONDS, 2 * self._backoff):
            what = f"{self._unavailable.what} answers again" if self._unavailable else "works again"
            logger.info("%s: %s after %.1f s", self._name, what, self._well_since - self._began)
            self._backoff = 0.0

    def _report(self, error: Exception) -> None:
        if self._unavailable is not None:
            what, reason, _ = self._unavailable
            logger.warning("%s: %s is unavailable: %s; next try in %.1f s", self._name, what, reason, self._backoff)
        elif type(error) is self._reported_type:
            reason = f"{type(error).__name__}: {error}"
            logger.error("%s still fails: %s; next try in %.1f s", self._name, reason, self._backoff)
        else:
            logger.error("%s failed, next try in %.1f s", self._name, self._backoff, exc_info=error)
        self._reported_type = type(error)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


class Slices:
    """Cuts a long piece of work on the loop: `if slices.is_over: await slices.pause()` between two small steps."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + SLICE_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether the slice is used up. Checked for each of very many steps, so it is no coroutine."""
        return time.perf_counter() > self._until

    async def pause(self) -> None:
        """Let other tasks run, and begin the next slice."""
        await asyncio.sleep(0)
        self._until = time.perf_counter() + SLICE_SECONDS


class LoopDelay:
    """Calls `observe` after each interval with how many seconds later than planned the loop ran it."""

    def __init__(self, observe: Callable[[float], None], interval_seconds: float = DELAY_INTERVAL_SECONDS) -> None:
        self._observe = observe
        self._interval = interval_seconds
        self._due = 0.0
        self._loop = Loop("loop delay", self._step)

    def start(self) -> None:
        self._due = time.monotonic()
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    async def _step(self) -> float:
        now = time.monotonic()
        self._observe(max(0.0, now - self._due))
        self._due = now + self._interval
        return self._interval
