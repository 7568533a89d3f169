"""Long work on the event loop, in slices that leave room for others. What may take long in one step: `background`."""

import asyncio
import time

SLICE_SECONDS = 0.005


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
