"""Long work that leaves room for others: in slices on the event loop, or aside in a thread."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
SLICE_SECONDS = 0.005

# One thread: two that compute would share the interpreter with the loop by thirds and be done no sooner.
_thread = ThreadPoolExecutor(1, "aside")


async def aside(work: Callable[[], _T]) -> _T:
    """Do work whose length cannot be known, in turn with whatever else is done aside, while the loop goes on."""
    return await asyncio.get_running_loop().run_in_executor(_thread, work)


class Slices:
    """Cuts a long piece of work on the loop: `if slices.is_over: await slices.pause()` between two small steps."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + SLICE_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether others should have their turn. Asked for each of very many steps, so it is no coroutine."""
        return time.perf_counter() > self._until

    async def pause(self) -> None:
        """Let others have their turn."""
        await asyncio.sleep(0)
        self._until = time.perf_counter() + SLICE_SECONDS
