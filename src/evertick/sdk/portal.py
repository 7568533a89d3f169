"""Lets plain functions call what is async: on a loop in a thread of its own, kept for the next call."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Portal:
    """A thread with an event loop, from its making until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="evertick-submit", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def refuse_on_loop(instead: str) -> None:
    """A loop that waits for itself never ends."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"this is async code: {instead}")
