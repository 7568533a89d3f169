"""SIGINT and SIGTERM during a measurement: they end the scenario, and only that, at any moment.

A signal sets a flag. It never raises in the middle of making or removing something, so a server, a database or a
process that was begun is always known to the one who removes it. Further signals change nothing.
"""

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

LOOK_SECONDS = 0.1

T = TypeVar("T")


class Interruption:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self.is_asked = False

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        self.is_asked = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if somebody has asked."""
        if self.is_asked:
            raise KeyboardInterrupt

    async def end(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of some work, or KeyboardInterrupt once it has ended because somebody asked.

        The work is a task of its own: its caller is not cancelled and clears away undisturbed. It is cancelled until
        it has ended, for a cancellation can be lost (`asyncio.wait_for` in Python 3.11 drops one that races a result).
        """
        working = asyncio.create_task(work)
        while not working.done():
            if self.is_asked:
                working.cancel()
            await asyncio.wait({working}, timeout=LOOK_SECONDS)
        if working.cancelled() or working.exception() is not None:
            self.check()  # whatever ended it then, it was asked to end
        return await working


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Signals as a request, until the end; also those that were ignored, as a shell's background jobs ignore SIGINT."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, interruption.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
